"""The built-in language model: a decoder-only transformer with pre-norm blocks, as a list of blocks.

Architecture and initial weights follow GPT-2 (Radford et al. 2019): standard deviation 0.02, projections onto the
residual stream scaled by 1/sqrt(2 * layers), biases zero. Positions are learned or rotary (Su et al. 2021, halves
rotated). Dropout draws from torch's global generator only, so that a seed set before a block decides it.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from brigade.wire.errors import ConfigError
from brigade.wire.run_spec import GptSpec

INITIAL_STD = 0.02
ROPE_BASE = 10_000.0


def build(spec: GptSpec) -> list[nn.Module]:
    """Return [embedding, layer, ..., layer, head]: token ids (B, T) become logits (B, T, vocabulary)."""
    if spec.hidden_size % spec.num_attention_heads:
        raise ConfigError(
            f"model.hidden_size: {spec.hidden_size} is no multiple of model.num_attention_heads, "
            f"{spec.num_attention_heads}"
        )
    if spec.position_embedding == "rope" and (spec.hidden_size // spec.num_attention_heads) % 2:
        raise ConfigError(
            f"model.hidden_size: rope needs an even number of dimensions per head, "
            f"found {spec.hidden_size // spec.num_attention_heads}"
        )
    embedding = Embedding(spec)
    head = Head(spec)
    if spec.tie_word_embeddings:
        head.projection.weight = embedding.tokens.weight
    return [embedding, *(Layer(spec) for _ in range(spec.num_hidden_layers)), head]


class Embedding(nn.Module):
    """Token ids (B, T) of any integer type to the residual stream (B, T, C)."""

    def __init__(self, spec: GptSpec) -> None:
        super().__init__()
        self.max_position_embeddings = spec.max_position_embeddings
        self.tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.positions = (
            nn.Embedding(spec.max_position_embeddings, spec.hidden_size)
            if spec.position_embedding == "learned"
            else None
        )
        self.dropout = nn.Dropout(spec.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw initial weights."""
        nn.init.normal_(self.tokens.weight, std=INITIAL_STD)
        if self.positions is not None:
            nn.init.normal_(self.positions.weight, std=INITIAL_STD)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up tokens and positions."""
        length = ids.shape[-1]
        if length > self.max_position_embeddings:
            raise ValueError(f"{length} tokens in a row, but max_position_embeddings is {self.max_position_embeddings}")
        stream: Tensor = self.tokens(ids.long())
        if self.positions is not None:
            stream = stream + self.positions(torch.arange(length, device=ids.device))
        dropped: Tensor = self.dropout(stream)
        return dropped


class Attention(nn.Module):
    """Causal self-attention over (B, T, C)."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, spec: GptSpec) -> None:
        super().__init__()
        self.heads = spec.num_attention_heads
        self.dropout_probability = spec.dropout
        self.residual_std = INITIAL_STD / math.sqrt(2 * spec.num_hidden_layers)
        self.rotary = spec.position_embedding == "rope"
        self.qkv = nn.Linear(spec.hidden_size, 3 * spec.hidden_size)
        self.out = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.dropout = nn.Dropout(spec.dropout)
        if self.rotary:
            table = (spec.max_position_embeddings, spec.hidden_size // spec.num_attention_heads // 2)
            self.register_buffer("cosines", torch.empty(table), persistent=False)
            self.register_buffer("sines", torch.empty(table), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw initial weights and compute the tables of rotary positions."""
        _reset_linear(self.qkv, INITIAL_STD)
        _reset_linear(self.out, self.residual_std)
        if self.rotary:
            positions, half = self.cosines.shape
            frequencies = ROPE_BASE ** (-torch.arange(half, dtype=torch.float64, device=self.cosines.device) / half)
            angles = torch.arange(positions, dtype=torch.float64, device=self.cosines.device)[:, None] * frequencies
            with torch.no_grad():
                self.cosines.copy_(angles.cos())
                self.sines.copy_(angles.sin())

    def forward(self, stream: Tensor) -> Tensor:
        """Mix each position with those before it."""
        batch, length, width = stream.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(stream).split(width, dim=-1)
        )
        if self.rotary:
            query, key = self._rotate(query), self._rotate(key)
        mixed = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout_probability if self.training else 0.0, is_causal=True
        )
        out: Tensor = self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return out

    def _rotate(self, heads: Tensor) -> Tensor:
        length = heads.shape[-2]
        cosines, sines = self.cosines[:length], self.sines[:length]
        left, right = heads.chunk(2, dim=-1)
        return torch.cat((left * cosines - right * sines, right * cosines + left * sines), dim=-1).to(heads.dtype)


class FeedForward(nn.Module):
    """Two linear maps with a GELU between, on each position alone."""

    def __init__(self, spec: GptSpec) -> None:
        super().__init__()
        width = spec.intermediate_size or 4 * spec.hidden_size
        self.residual_std = INITIAL_STD / math.sqrt(2 * spec.num_hidden_layers)
        self.up = nn.Linear(spec.hidden_size, width)
        self.down = nn.Linear(width, spec.hidden_size)
        self.dropout = nn.Dropout(spec.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw initial weights."""
        _reset_linear(self.up, INITIAL_STD)
        _reset_linear(self.down, self.residual_std)

    def forward(self, stream: Tensor) -> Tensor:
        """Transform each position."""
        out: Tensor = self.dropout(self.down(F.gelu(self.up(stream), approximate="tanh")))
        return out


class Layer(nn.Module):
    """One transformer layer: (B, T, C) to (B, T, C)."""

    def __init__(self, spec: GptSpec) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(spec.hidden_size)
        self.attention = Attention(spec)
        self.feed_forward_norm = nn.LayerNorm(spec.hidden_size)
        self.feed_forward = FeedForward(spec)

    def forward(self, stream: Tensor) -> Tensor:
        """Add attention, then the feed-forward map, to the residual stream."""
        stream = stream + self.attention(self.attention_norm(stream))
        out: Tensor = stream + self.feed_forward(self.feed_forward_norm(stream))
        return out


class Head(nn.Module):
    """Final norm and the map to logits: (B, T, C) to (B, T, vocabulary)."""

    def __init__(self, spec: GptSpec) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(spec.hidden_size)
        self.projection = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw initial weights."""
        nn.init.normal_(self.projection.weight, std=INITIAL_STD)

    def forward(self, stream: Tensor) -> Tensor:
        """Return a logit for each token of the vocabulary."""
        logits: Tensor = self.projection(self.norm(stream))
        return logits


def _reset_linear(linear: nn.Linear, std: float) -> None:
    nn.init.normal_(linear.weight, std=std)
    nn.init.zeros_(linear.bias)
