"""Factories as users write them: with and without torch's conventions."""

import math

import numpy as np
import torch
from torch import nn


class Scale(nn.Module):
    """Has parameters and `reset_parameters`, as torch's own modules do."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.register_buffer("ramp", torch.empty(size), persistent=False)
        self.register_buffer("steps", torch.empty((), dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.uniform_(self.weight, 0.5, 1.5)
        with torch.no_grad():
            self.ramp.copy_(torch.arange(len(self.weight), dtype=torch.float32))
        self.steps.zero_()

    def forward(self, x):
        return x * self.weight + self.ramp


class Raw(nn.Module):
    """Makes its parameters in `__init__` and has no `reset_parameters`."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size) / math.sqrt(size))
        self.register_buffer("mask", torch.tril(torch.ones(size, size)), persistent=False)
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x):
        return x @ (self.weight * self.mask)


def conventional(size=6, blocks=6):
    return [nn.Sequential(nn.Linear(size, size), Scale(size)) for _ in range(blocks)]


def raw(size=6, blocks=6):
    return [Raw(size) for _ in range(blocks)]


def mixed(size=6):
    return [nn.Linear(size, size), Raw(size), Scale(size), nn.Linear(size, size), Raw(size), nn.Linear(size, size)]


def drawn_afterwards(size=6, how="init"):
    blocks = [nn.Linear(size, size) for _ in range(3)]
    for block in blocks:
        if how == "init":
            nn.init.constant_(block.weight, 0.25)
        elif how == "data":
            block.weight.data.fill_(0.25)
        elif how == "item":
            with torch.no_grad():
                block.weight[:] = 0.25
        elif how == "multiply":
            with torch.no_grad():
                block.weight *= 0.25
        elif how == "assign":
            block.weight = nn.Parameter(torch.full((size, size), 0.25))
        elif how == "data_set":
            block.weight.data = torch.full((size, size), 0.25)
        elif how == "numpy":
            block.weight = nn.Parameter(torch.from_numpy(np.random.standard_normal((size, size)).astype("float32")))
    return blocks


def attention(size=8):
    return [nn.TransformerEncoderLayer(size, 2, 16, batch_first=True) for _ in range(3)]


def attribute(size=4):
    class Attribute(nn.Linear):
        def __init__(self):
            super().__init__(size, size)
            self.table = torch.arange(size, dtype=torch.float32)

        def forward(self, x):
            return super().forward(x) + self.table

    return [Attribute(), nn.Linear(size, size)]


def tied(size=6):
    first, last = nn.Linear(size, size), nn.Linear(size, size)
    last.weight = first.weight
    middle = nn.Sequential(nn.Linear(size, size), nn.Linear(size, size))
    middle[1].weight = middle[0].weight
    return [first, middle, nn.Sequential(last, nn.ReLU())]


def tied_thrice_raw(size=6):
    blocks = [Raw(size) for _ in range(3)]
    blocks[1].weight = blocks[2].weight = blocks[0].weight
    return blocks


def same_block_twice(size=6):
    block = nn.Linear(size, size)
    return [block, nn.ReLU(), block]


def shared_norm(size=6):
    norm = nn.BatchNorm1d(size)
    return [norm, nn.Linear(size, size), norm]


class Calls(nn.Module):
    """Any function as a block."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, value):
        return self.function(value)


def nested(size=4):
    return [
        Calls(lambda x: (x, x > 0, {"ids": x.long(), "rest": [None, 3, True, "s"]})),
        nn.Sequential(Calls(lambda v: v)),
        Calls(lambda v: v[0] * v[1] + v[2]["ids"] * v[2]["rest"][1]),
        nn.Linear(size, size),
    ]


RETURNS = {
    "none": lambda x: None,
    "set": lambda x: {x},
    "object": lambda x: (x, object()),
    "keys": lambda x: {1: x},
    "size": lambda x: (x, x.shape),
    "sparse": lambda x: torch.empty(x.shape, layout=torch.sparse_coo),
    "raises": lambda x: x @ x,
    "quadratic": lambda x: x.new_zeros(len(x), len(x) ** 2),
    "fickle": lambda x: x if len(x) == 2 else (x, x),
    "fickle_kind": lambda x: x if len(x) == 2 else x.double(),
    "item": lambda x: x * x.sum().item(),
}


def returning(what):
    return [nn.Linear(4, 4), Calls(RETURNS[what]), nn.Linear(4, 4)]


def lazy():
    return [nn.LazyLinear(4)]


def fickle(state=[]):  # noqa: B006 - the point is that calls differ
    state.append(None)
    return [Raw(4 + len(state))]


def empty():
    return []


def one_module():
    return nn.Linear(2, 2)


def not_modules():
    return [nn.Linear(2, 2), "relu"]


def needs_values(size=4):
    return [nn.Dropout(torch.linspace(0, 0.5, 3)[1].item()), nn.Linear(size, size)]


def fails():
    raise RuntimeError("no such thing")


number = 3
