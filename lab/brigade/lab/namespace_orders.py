"""What the lab and the delay line of its namespaces say to each other: one JSON object a line."""

from msgspec import Struct, json

from brigade.lab.namespace_packets import Way


class Open(Struct, frozen=True, tag="open"):
    """The first order: serve a device in a namespace; answered by `Opened` or `Failed`."""

    namespace: str
    device: str
    ways: tuple[Way, ...]
    seed: int


class Report(Struct, frozen=True, tag="report"):
    """Say what was lost, and how late it all was; answered by `Reported`."""


Order = Open | Report


class Opened(Struct, frozen=True, tag="opened"):
    """Packets pass."""


class Failed(Struct, frozen=True, tag="failed"):
    """The device cannot be served."""

    reason: str


class Lost(Struct, frozen=True):
    """Bytes that a host has sent to another and that got lost, by their addresses."""

    source: str
    target: str
    lost_bytes: int


class Reported(Struct, frozen=True, tag="reported"):
    """What happened since the beginning; lateness should stay well below 2 ms."""

    lost: tuple[Lost, ...]
    late_mean_s: float
    late_most_s: float


Answer = Opened | Failed | Reported

read_order = json.Decoder(Order).decode
read_answer = json.Decoder(Answer).decode


def write_line(message: Order | Answer) -> bytes:
    """Return an order or an answer as it is sent."""
    return json.encode(message) + b"\n"
