"""Random numbers of a stage as a function of (run seed, step, microbatch, block).

They do not depend on the split, on what runs in between, or on whether a forward is the first or a repeated one.
Blocks draw from torch's default generators; nothing else in a node's process may draw from them while a block runs.
"""

import torch

from brigade.partition.seeds import derive
from brigade.wire.message_parts import Slot


def seed_block(run_seed: int, slot: Slot, block: int, device: torch.device) -> None:
    """Seed the default generators of the CPU and of `device` for one forward of `block`.

    (`torch.manual_seed` also queues calls for every kind of device that is not in use, a stack trace with each: 3 ms.)
    """
    purpose = "evaluation" if slot.evaluation else "dropout"
    seed = derive(run_seed, purpose, slot.step, slot.index, block)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
