import itertools

import torch

from brigade.node.randomness import seed_block
from brigade.partition.seeds import derive
from brigade.wire.message_parts import Slot

CPU = torch.device("cpu")


def draw(run_seed, step, microbatch, block, evaluation=False):
    seed_block(run_seed, Slot(step=step, index=microbatch, evaluation=evaluation), block, CPU)
    return torch.rand(4)


def test_every_part_of_the_address_counts():
    drawn = [draw(*address) for address in itertools.product((0, 1), repeat=4)]
    drawn += [draw(0, 0, 0, 0, evaluation=True)]
    assert len({tuple(each.tolist()) for each in drawn}) == len(drawn)


def test_the_same_address_gives_the_same_numbers_whatever_was_drawn_before():
    first = draw(1, 2, 3, 4)
    torch.rand(17)
    assert torch.equal(draw(1, 2, 3, 4), first)


def test_it_is_what_manual_seed_gives():
    torch.manual_seed(derive(1, "dropout", 2, 3, 4))
    assert torch.equal(torch.rand(4), draw(1, 2, 3, 4))
