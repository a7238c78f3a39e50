"""What the lab and its nursery say to each other: one JSON object a line."""

from msgspec import Struct, json


class Bear(Struct, frozen=True, tag="bear"):
    """Start `python -m MODULE ARGUMENTS`; answered by `Born`, and by `Died` when it has ended."""

    number: int
    module: str
    arguments: tuple[str, ...]
    output: str  # file for what it prints
    namespace: str = ""  # network namespace to live in; empty: that of the nursery


class Signal(Struct, frozen=True, tag="signal"):
    """Send a signal to one that lives."""

    number: int
    signal: int


Order = Bear | Signal


class Ready(Struct, frozen=True, tag="ready"):
    """Everything is imported."""


class Born(Struct, frozen=True, tag="born"):
    """It runs."""

    number: int
    pid: int


class Died(Struct, frozen=True, tag="died"):
    """It has ended, with this code, or minus the signal that ended it."""

    number: int
    exit_code: int


Answer = Ready | Born | Died

read_order = json.Decoder(Order).decode
read_answer = json.Decoder(Answer).decode


def write_line(message: Order | Answer) -> bytes:
    """Return an order or an answer as it is sent."""
    return json.encode(message) + b"\n"
