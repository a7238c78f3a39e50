"""Chains of three blocks over rows of four numbers; the second block does what the name says."""

import torch
from torch import nn


def chain(second, width=4):
    return [nn.Linear(4, width), second, nn.Linear(4, 4)]


def plain():
    return chain(nn.Linear(4, 4))


def wider():
    return [nn.Linear(4, 4), nn.Linear(5, 4), nn.Linear(4, 4)]


def doubled():
    return chain(nn.Linear(4, 4).double())


def normed():
    return chain(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))


class Raises(nn.Module):
    def forward(self, h):
        raise RuntimeError("no forward today")


class OutOfMemory(nn.Module):
    def forward(self, h):
        raise MemoryError


class _NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h * 2

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("no backward today")


class RaisesInBackward(nn.Module):
    def forward(self, h):
        return _NoBackward.apply(h)


class Returns(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, h):
        return self.function(h)


class ExtraState(nn.Linear):
    def get_extra_state(self):
        return {"seen": 3}

    def set_extra_state(self, state):
        pass


def raises_in_forward():
    return chain(Raises())


def out_of_memory():
    return chain(OutOfMemory())


def raises_in_backward():
    return chain(RaisesInBackward())


def returns_a_list():
    return chain(Returns(lambda h: [h]))


def returns_more_rows():
    return chain(Returns(lambda h: torch.cat((h, h[:1]))))


def returns_ints():
    return chain(Returns(lambda h: h.long()))


def extra_state():
    return chain(ExtraState(4, 4))


def data():
    return [(torch.zeros(4), torch.zeros(4))], None
