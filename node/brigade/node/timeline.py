"""The vocabulary of timelines: what a stage did when, as JSON lines. Reading and writing the files: `timeline_file`.

Seconds are those of the machine's wall clock, kept steady: the timelines of nodes on one machine can be laid over each
other.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from msgspec import DecodeError, Struct, json

from brigade.wire.message_parts import Slot

Kind = Literal[
    # the device; at a pretended device with the time that it is made to take
    "forward",
    "backward",
    "sum",  # of tied gradients, and the norm
    "optimizer",  # the update, and tied weights
    "snapshot",
    "evaluate",
    # threads beside it
    "encode_activation",
    "encode_gradient",
    "encode_tied",
    "decode_activation",
    "decode_gradient",
    "decode_tied",
    # links: an instant, unless said otherwise
    "sent_activation",  # handed over to the connection
    "sent_gradient",
    "sent_tied",
    "arrived_activation",  # whole, not yet decoded
    "arrived_gradient",
    "arrived_tied",
    # the life of a stage
    "load",  # from the order until the stage stands and its neighbours are connected
    "begun",  # an instant: all stages stand, training begins with this step
    "dropped",  # an instant: the plan is over
]
MOST_STAGES = 1024  # of a plan in a timeline that is read: a page has a row for each
COMPUTE_KINDS = frozenset({"forward", "backward", "sum", "optimizer", "snapshot", "evaluate"})


class StageBegan(Struct, frozen=True, kw_only=True, tag_field="line", tag="stage"):
    """A stage of a plan stands at this node; the actions behind it are its own until the next such line."""

    run_id: str
    generation: int
    stage: int
    node: str  # its name
    stages: int  # of the plan
    at_s: float


class Action(Struct, frozen=True, tag_field="line", tag="action", omit_defaults=True, gc=False):
    """Something that a stage did from `begin_s` to `end_s`."""

    kind: Kind
    step: int
    index: int  # of the microbatch; -1 for what concerns the whole step
    begin_s: float
    end_s: float
    evaluation: bool = False
    other: int = -1  # the stage at the other end of a link
    bytes: int = 0  # payload


Entry = StageBegan | Action


class StageLife(NamedTuple):
    """One stage of one plan at one node, with what it did in the order in which it was noted."""

    began: StageBegan
    actions: list[Action]


class Label(Struct, frozen=True, gc=False):
    """Which action: all of it but the times."""

    kind: Kind
    step: int
    index: int = -1
    evaluation: bool = False
    other: int = -1


def label(kind: Kind, slot: Slot, other: int = -1) -> Label:
    """Return the label of an action on one microbatch."""
    return Label(kind, slot.step, slot.index, slot.evaluation, other)


_ENCODER = json.Encoder()
_DECODER: "json.Decoder[Entry]" = json.Decoder(Entry)


def to_lines(entries: Iterable[Entry]) -> bytes:
    """Return one line of JSON for each entry."""
    return _ENCODER.encode_lines(entries)


def parse_lines(data: bytes) -> Iterator[Entry]:
    """Yield the entries of a file; what a node that was killed left half written is skipped."""
    for line in data.splitlines():
        try:
            yield _DECODER.decode(line)
        except DecodeError:  # covers a line that is no such object
            continue


def lives(entries: Iterable[Entry]) -> list[StageLife]:
    """Group entries by the stage that they belong to; actions before the first `StageBegan` are left out.

    A file that was begun anew repeats the line of the stage; that is the same life. Lives of a stage that its plan does
    not have, or of a plan of more than `MOST_STAGES`, are left out.
    """
    found: dict[StageBegan, StageLife] = {}
    life: StageLife | None = None
    for entry in entries:
        if isinstance(entry, StageBegan):
            sound = 0 <= entry.stage < entry.stages <= MOST_STAGES
            life = found.setdefault(entry, StageLife(entry, [])) if sound else None
        elif life is not None:
            life.actions.append(entry)
    return list(found.values())
