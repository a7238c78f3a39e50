"""What the lab and its relay say to each other: one JSON object a line, orders in and answers out."""

from msgspec import Struct, json

from brigade.lab.fabric import CutState
from brigade.lab.scenario_spec import HostSpec, LinkSpec, PairSpec


class Open(Struct, frozen=True, tag="open"):
    """The first order: make the network and listen for all hosts; answered by `Opened` or `Failed`."""

    hosts: tuple[HostSpec, ...]
    coordinator: LinkSpec
    pairs: tuple[PairSpec, ...]
    first_port: int
    seed: int = 0


class Cut(Struct, frozen=True, tag="cut"):
    """Cut what a host sends to another (to all when empty), and with `both` what it receives."""

    host: str
    other: str = ""
    both: bool = True
    state: CutState = "silent"


class Heal(Struct, frozen=True, tag="heal"):
    """Make both directions whole again."""

    host: str
    other: str = ""


class ChangeRate(Struct, frozen=True, tag="change_rate"):
    """Give a host another uplink or downlink; what is None stays."""

    host: str
    up: str | None = None
    down: str | None = None


class Corrupt(Struct, frozen=True, tag="corrupt"):
    """Change one byte in each of the next pieces from one host to another."""

    source: str
    target: str
    pieces: int = 1


class Count(Struct, frozen=True, tag="count"):
    """Say what has passed; answered by `Counted`."""


Order = Open | Cut | Heal | ChangeRate | Corrupt | Count


class Opened(Struct, frozen=True, tag="opened"):
    """Every host can be reached."""


class Failed(Struct, frozen=True, tag="failed"):
    """The network could not be opened."""

    reason: str


class RouteCount(Struct, frozen=True):
    """Bytes from one host to another: taken from the sender, and handed to the receiver."""

    source: str
    target: str
    accepted: int
    delivered: int


class Counted(Struct, frozen=True, tag="counted"):
    """What has passed since the beginning, and how late the relay was in its work: it should be well below 2 ms."""

    routes: tuple[RouteCount, ...]
    late_mean_s: float
    late_most_s: float


Answer = Opened | Failed | Counted

read_order = json.Decoder(Order).decode
read_answer = json.Decoder(Answer).decode


def write_line(message: Order | Answer) -> bytes:
    """Return an order or an answer as it is sent."""
    return json.encode(message) + b"\n"
