"""Use the trained model without Bucket Brigade: `python use_model.py runs/spirals/model.safetensors`."""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from spirals.data import datasets
from spirals.model import blocks
from torch import nn


def load(path: Path) -> nn.Sequential:
    """The chain as one module; names in the file are those of its state, so `strict=True` holds."""
    model = nn.Sequential(*blocks(width=64, depth=4))
    model.load_state_dict(load_file(path), strict=True)
    return model.eval()


def accuracy(model: nn.Module) -> float:
    """How many of the held-out points the model assigns to the right arm."""
    _, validation = datasets()
    inputs = torch.stack([torch.as_tensor(inputs) for inputs, _ in validation])
    targets = torch.tensor([int(arm) for _, arm in validation])
    with torch.no_grad():
        return (model(inputs).argmax(dim=1) == targets).float().mean().item()


if __name__ == "__main__":
    print(f"accuracy on held-out points: {accuracy(load(Path(sys.argv[1]))):.3f}")
