"""Random numbers of a stage as a function of (run seed, step, microbatch, block).

They do not depend on the split, on what runs in between, or on whether a forward is the first or a repeated one.
Blocks draw from torch's global generators; nothing else in a node's process may draw from them while a block runs.
"""

import torch

from brigade.partition.seeds import derive
from brigade.wire.messages import Slot


def seed_block(run_seed: int, slot: Slot, block: int) -> None:
    """Seed torch's generators for one forward of `block`, on every device of this process."""
    purpose = "evaluation" if slot.evaluation else "dropout"
    torch.manual_seed(derive(run_seed, purpose, slot.step, slot.index, block))
