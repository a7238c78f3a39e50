"""The built-in classifiers of vectors and of images, as lists of blocks.

Initial weights are torch's own. Dropout draws from torch's global generator only.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from brigade.wire.errors import ConfigError
from brigade.wire.run_spec import CnnSpec, MlpSpec


def build_mlp(spec: MlpSpec) -> list[nn.Module]:
    """Return one block per hidden layer and the output layer: (N, ...) of `input_size` values to (N, labels)."""
    sizes = (spec.input_size, *spec.hidden_sizes)
    blocks: list[nn.Module] = [
        DenseLayer(inputs, outputs, spec.batch_norm, spec.dropout) for inputs, outputs in pairwise(sizes)
    ]
    return [*blocks, Output(sizes[-1], spec.num_labels)]


def build_cnn(spec: CnnSpec) -> list[nn.Module]:
    """Return one block per convolution and the output layer: (N, channels, height, width) to (N, labels).

    Every convolution halves the image.
    """
    side = spec.image_size >> len(spec.hidden_channels)
    if side < 1:
        raise ConfigError(
            f"model.hidden_channels: {len(spec.hidden_channels)} convolutions halve an image of {spec.image_size} "
            f"pixels to nothing; expected at most {spec.image_size.bit_length() - 1}"
        )
    channels = (spec.num_channels, *spec.hidden_channels)
    blocks: list[nn.Module] = [
        ConvolutionLayer(inputs, outputs, spec.batch_norm, spec.dropout) for inputs, outputs in pairwise(channels)
    ]
    return [*blocks, Output(channels[-1] * side * side, spec.num_labels)]


class DenseLayer(nn.Module):
    """Linear map, optional batch norm, ReLU, dropout; flattens what it gets."""

    def __init__(self, inputs: int, outputs: int, batch_norm: bool, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = nn.BatchNorm1d(outputs) if batch_norm else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        """Transform (N, ...) to (N, outputs)."""
        values = self.linear(_as_float(values).flatten(1))
        if self.norm is not None:
            values = self.norm(values)
        out: Tensor = self.dropout(values.relu())
        return out


class ConvolutionLayer(nn.Module):
    """3x3 convolution, optional batch norm, ReLU, 2x2 maximum, dropout."""

    def __init__(self, inputs: int, outputs: int, batch_norm: bool, dropout: float) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)
        self.norm = nn.BatchNorm2d(outputs) if batch_norm else None
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Transform (N, inputs, H, W) to (N, outputs, H // 2, W // 2)."""
        images = self.convolution(_as_float(images))
        if self.norm is not None:
            images = self.norm(images)
        out: Tensor = self.dropout(self.pool(images.relu()))
        return out


class Output(nn.Module):
    """Linear map to one logit per label; flattens what it gets."""

    def __init__(self, inputs: int, labels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, labels)

    def forward(self, values: Tensor) -> Tensor:
        """Return logits (N, labels)."""
        logits: Tensor = self.linear(_as_float(values).flatten(1))
        return logits


def _as_float(values: Tensor) -> Tensor:
    # Images often come as bytes; weights and autocast decide about floating types.
    return values if values.is_floating_point() else values.to(torch.get_default_dtype())
