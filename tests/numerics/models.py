"""Chains with awkward boundaries, as functions that a run file could name, and small data sets for all tests."""

from typing import Any

import torch
from torch import Tensor, nn

from brigade.node.datasets import FactorySource
from brigade.partition.samples import Source
from brigade.wire.run_spec import FactoryData

WIDTH = 32
LABELS = 12


# --- data ----------------------------------------------------------------------------------------------------------


def token_data(samples: int = 40, length: int = 12, vocabulary: int = 64, padded: bool = True) -> tuple[Any, Any]:
    """Sequences that can be learnt, some targets padded, one sample without any target."""
    generator = torch.Generator().manual_seed(5)
    start = torch.randint(vocabulary, (samples + 8, 1), generator=generator)
    tokens = (start + 3 * torch.arange(length + 1)) % vocabulary
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].clone()
    if padded:
        lengths = torch.randint(1, length + 1, (samples + 8,), generator=generator)
        targets[torch.arange(length) >= lengths[:, None]] = -100
        targets[3] = -100
    pairs = list(zip(inputs, targets, strict=True))
    return pairs[:samples], pairs[samples:]


def vector_data(samples: int = 40, width: int = WIDTH, labels: int = LABELS) -> tuple[Any, Any]:
    """Vectors with a label that depends on them."""
    generator = torch.Generator().manual_seed(6)
    inputs = torch.randn(samples + 8, width, generator=generator)
    targets = (inputs @ torch.randn(width, labels, generator=generator)).argmax(-1)
    pairs = list(zip(inputs, targets, strict=True))
    return pairs[:samples], pairs[samples:]


def tokens(**arguments: Any) -> Source:
    return FactorySource(FactoryData(factory="tests.numerics.models:token_data", arguments=arguments))


def vectors(**arguments: Any) -> Source:
    return FactorySource(FactoryData(factory="tests.numerics.models:vector_data", arguments=arguments))


# --- blocks --------------------------------------------------------------------------------------------------------


class Dense(nn.Module):
    """The plain part of every block below."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        return h + torch.tanh(self.linear(self.norm(h)))


class Tail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, LABELS)

    def forward(self, h: Tensor) -> Tensor:
        return self.linear(h)


class Apply(nn.Module):
    """A block whose forward is a function of (its Dense, value)."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.dense = Dense()
        self.function = function

    def forward(self, value: Any) -> Any:
        return self.function(self.dense, value)


def chain_of(functions: list[Any]) -> list[nn.Module]:
    return [*(Apply(function) for function in functions), Tail()]


def bool_mask() -> list[nn.Module]:
    def masked(f: Any, v: Any) -> Any:
        return torch.where(v[1], f(v[0]), v[0]), v[1]

    return chain_of([lambda f, x: (f(x), x > 0), masked, masked, masked, lambda f, v: torch.where(v[1], f(v[0]), v[0])])


def int_positions() -> list[nn.Module]:
    def use(f: Any, v: Any) -> Any:
        h, order = v
        return f(h.gather(-1, order)), order

    return chain_of([lambda f, x: (f(x), x.argsort(-1)), use, use, use, lambda f, v: use(f, v)[0]])


def nested_dict() -> list[nn.Module]:
    def open_up(f: Any, x: Any) -> Any:
        return {"h": f(x), "rest": [x.sin(), {"deep": (x.cos(), None, 3, "word", True, 0.5)}]}

    def use(f: Any, v: Any) -> Any:
        sin, inner = v["rest"]
        cos, none, three, word, true, half = inner["deep"]
        assert none is None
        assert (three, word, true) == (3, "word", True)
        deep = (cos * 0.9, None, three, word, true, half)
        return {"h": f(v["h"]) + half * sin * cos, "rest": [sin + v["h"] * 0.1, {"deep": deep}]}

    return chain_of([open_up, use, use, use, lambda f, v: f(v["h"]) + v["rest"][0]])


def with_none() -> list[nn.Module]:
    return chain_of([lambda f, x: (f(x), None), *[lambda f, v: (f(v[0]), v[1])] * 3, lambda f, v: f(v[0])])


def passed_through() -> list[nn.Module]:
    """A tensor made in the first block, passed unchanged through three, used in the fifth."""
    carry = lambda f, v: (f(v[0]), v[1])  # noqa: E731
    return chain_of([lambda f, x: (f(x), f(x).sin()), carry, carry, carry, lambda f, v: f(v[0] + v[1])])


def twice() -> list[nn.Module]:
    """The same tensor returned twice, and an input that is returned as it came, twice."""

    def double(f: Any, x: Any) -> Any:
        h = f(x)
        return h, h

    return chain_of([
        double, lambda f, v: (v[0], v[0], f(v[1])), lambda f, v: double(f, v[0] * 2 + v[1] - v[2]),
        lambda f, v: (f(v[0]), v[1]), lambda f, v: f(v[0] - 0.5 * v[1]),
    ])  # fmt: skip


def never_used() -> list[nn.Module]:
    """A tensor that nobody needs crosses all boundaries: its part of the first blocks gets no gradient."""

    class Spare(Apply):
        def __init__(self, function: Any) -> None:
            super().__init__(function)
            self.spare = Dense()

        def forward(self, x: Any) -> Any:
            return self.function(self.dense, x), self.spare(x)

    carry = lambda f, v: (f(v[0]), v[1])  # noqa: E731
    return [Spare(lambda f, x: f(x)), *chain_of([carry, carry, carry, lambda f, v: f(v[0])])]


def unused_on_odd_steps(microbatches: int) -> list[nn.Module]:
    class Sometimes(Apply):
        calls = 0

        def forward(self, v: Any) -> Any:
            step = self.calls // microbatches
            if self.training and v[0].device.type != "meta":
                self.calls += 1
            return self.dense(v[0] + v[1] if step % 2 == 0 else v[0])

    class Two(Apply):
        def __init__(self) -> None:
            super().__init__(None)
            self.second = Dense()

        def forward(self, x: Any) -> Any:
            return self.dense(x), self.second(x)

    carry = lambda f, v: (f(v[0]), v[1])  # noqa: E731
    return [Two(), Apply(carry), Apply(carry), Apply(carry), Sometimes(None), Tail()]


def without_parameters() -> list[nn.Module]:
    return [Dense(), nn.ReLU(inplace=True), nn.Identity(), nn.Tanh(), Dense(), Tail()]


def in_place() -> list[nn.Module]:
    """Blocks that change their input in place."""

    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, h: Tensor) -> Tensor:
            return self.linear(h.add_(0.25).relu_())

    class Clone(InPlace):
        def forward(self, h: Tensor) -> Tensor:
            return self.linear(h.clone())

    return [Clone(), InPlace(), InPlace(), InPlace(), InPlace(), Tail()]


def counting() -> list[nn.Module]:
    """Batch norm, a persistent step counter that the output depends on, written through `.data`, and a mask buffer."""

    class Counting(nn.Module):
        count: Tensor
        average: Tensor
        mask: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("count", torch.zeros((), dtype=torch.long))
            self.register_buffer("average", torch.zeros(WIDTH))
            self.register_buffer("mask", torch.ones(WIDTH), persistent=False)
            self.reset_parameters()

        def reset_parameters(self) -> None:
            self.count.zero_()
            self.average.zero_()
            self.mask.copy_(torch.arange(WIDTH) % 3 > 0)

        def forward(self, h: Tensor) -> Tensor:
            if self.training:
                self.count += 1
                self.average.data.mul_(0.9).add_(0.1 * h.detach().mean(0))
            scaled = (self.linear(self.norm(h)) - self.average) / (1 + 0.01 * self.count)
            return h + torch.tanh(scaled) * self.mask

    return [*(Counting() for _ in range(5)), Tail()]


def shared_by_four() -> list[nn.Module]:
    """One weight in blocks 1, 2, 4 (twice) and 5; block 4 multiplies by it under two names."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.again = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, h: Tensor) -> Tensor:
            return h + self.again(torch.tanh(self.linear(h)))

    first, second, third = Shared(), Shared(), Shared()
    last = nn.Sequential()
    last.linear = nn.Linear(WIDTH, WIDTH, bias=False)
    last.tail = nn.Linear(WIDTH, LABELS)
    for linear in (second.linear, third.linear, third.again, last.linear):
        linear.weight = first.linear.weight
    return [Dense(), first, second, Dense(), third, last]
