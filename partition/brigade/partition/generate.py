"""Text from a trained byte-level model, one byte at a time."""

import torch
from torch import Tensor

from brigade.partition.chain import PlainModel

DEFAULT_CONTEXT = 256


def sample_text(model: PlainModel, prompt: bytes, length: int, temperature: float, seed: int) -> bytes:
    """Return `length` bytes that continue `prompt` (a line break when empty), without the prompt.

    A temperature of 0 takes the likeliest byte. The model sees as many bytes as it has positions, at most
    `DEFAULT_CONTEXT`; torch's global generator and the model's mode are left as they were.
    """
    device = next(model.parameters()).device
    context = min(getattr(model[0], "max_position_embeddings", DEFAULT_CONTEXT), DEFAULT_CONTEXT)
    generator = torch.Generator().manual_seed(seed)
    text = list(prompt or b"\n")
    start = len(text)
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for _ in range(length):
                window = torch.tensor([text[-context:]], dtype=torch.long, device=device)
                text.append(_choose(model(window)[0, -1, :256].float().cpu(), temperature, generator))
    finally:
        model.train(was_training)
    return bytes(text[start:])


def _choose(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature <= 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits / temperature, dim=0)
    return int(torch.multinomial(probabilities, 1, generator=generator))
