"""What a loop that is not ours is told, and what it says: one JSON value in, one JSON line a step out."""

from typing import Literal

from msgspec import Struct, json


class Job(Struct, frozen=True, kw_only=True):
    """One process of a plain loop or of `torch.distributed.pipelining`; everything else stands in the run file."""

    run_file: str
    first_blocks: tuple[int, ...] = (0,)  # of each stage
    stage: int = 0
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    rendezvous: str = ""  # a file by which the processes find each other; empty for one process
    interface: str = ""  # the network interface to use; torch's choice when empty

    @property
    def stages(self) -> int:
        """Return how many processes there are."""
        return len(self.first_blocks)


class Step(Struct, frozen=True, kw_only=True, tag_field="event", tag="step"):
    """A step is done; named and counted as the coordinator does, from 1."""

    step: int
    loss: float
    gradient_norm: float


class Evaluation(Struct, frozen=True, kw_only=True, tag_field="event", tag="evaluation"):
    """The held-out loss after a step."""

    step: int
    loss: float


def write_line(said: Step | Evaluation) -> bytes:
    """Return a line of output."""
    return json.encode(said) + b"\n"
