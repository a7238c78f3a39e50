import torch
from torch import nn

from brigade.node.buffers import BlockBuffers


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(3.0))
        self.register_buffer("nothing", None)
        self.norm = nn.BatchNorm1d(3)
        self.norm.twin = self.table  # the same buffer in two places
        self.norm.register_buffer("shared", self.table, persistent=False)

    def forward(self, h):
        return self.norm(h)


def test_originals_are_untouched_and_changes_are_kept():
    block = Block()
    buffers = BlockBuffers(block)
    originals = buffers.fork()
    before = [None if value is None else value.clone() for value in originals]
    block(torch.randn(4, 3))
    buffers.settle(originals)
    for value, expected in zip(originals, before, strict=True):
        assert (value is None and expected is None) or torch.equal(value, expected)
    assert int(block.norm.num_batches_tracked) == 1
    assert not torch.equal(block.norm.running_mean, torch.zeros(3))
    buffers.install(originals)
    assert int(block.norm.num_batches_tracked) == 0


def test_constant_buffers_are_not_kept_twice():
    block = Block()
    buffers = BlockBuffers(block)
    table = block.table
    originals = buffers.fork()
    assert block.table is not table
    buffers.settle(originals)
    assert block.table is table


def test_writes_through_data_are_seen():
    block = Block()
    buffers = BlockBuffers(block)
    originals = buffers.fork()
    block.table.data.add_(1)
    buffers.settle(originals)
    assert block.table.tolist() == [1.0, 2.0, 3.0]


def test_a_buffer_in_two_places_stays_one():
    block = Block()
    buffers = BlockBuffers(block)
    buffers.settle(buffers.fork())
    buffers.fork()
    assert block.norm.shared is block.table


def test_nan_counts_as_changed():
    block = Block()
    buffers = BlockBuffers(block)
    originals = buffers.fork()
    block.table.fill_(float("nan"))
    buffers.settle(originals)
    assert bool(block.table.isnan().all())
