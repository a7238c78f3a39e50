"""What the coordinator knows of each node, and the news about nodes that the rest of the run reacts to."""

from dataclasses import dataclass, field

from brigade.wire.costs import DeviceReport
from brigade.wire.messages import Hello, Pulse
from brigade.wire.plan import NodeContact

CLOSED_GRACE_S = 3.0  # a closed control connection without a heartbeat after it means that the node is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A node that was admitted once, also in an earlier life of the coordinator."""

    node_id: str
    name: str
    public_key: str
    revoked: bool = False


@dataclass(slots=True, kw_only=True)
class Member:
    """A node that takes part now."""

    node_id: str
    name: str
    public_key: str
    endpoint: str
    incarnation: str
    device: DeviceReport
    control: int
    heard_at: float
    closed_at: float | None = None
    pulse: Pulse = field(default_factory=lambda: Pulse(number=0, incarnation=""))
    leaving: bool = False

    @property
    def contact(self) -> NodeContact:
        """Return how other nodes reach this one."""
        return NodeContact(node_id=self.node_id, name=self.name, public_key=self.public_key, endpoint=self.endpoint)

    def lost_at(self, silence_limit_s: float) -> float:
        """Return when this node counts as lost if nothing is heard until then."""
        silent_at = self.heard_at + silence_limit_s
        if self.closed_at is None:
            return silent_at
        grace_s = CLOSED_GRACE_S if self.heard_at <= self.closed_at else silence_limit_s
        return min(silent_at, self.closed_at + grace_s)

    def loss(self, now: float) -> str:
        """Return, for a person, why this node counts as lost."""
        if self.closed_at is not None:
            return f"its connection is gone and no heartbeat came for {now - self.heard_at:.0f} s"
        return f"no heartbeat for {now - self.heard_at:.0f} s"


@dataclass(frozen=True, slots=True)
class Challenge:
    """A newcomer with the identity of a live node: whoever of the two is silent loses."""

    connection: int
    hello: Hello
    decided_at: float


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node was welcomed."""

    member: Member


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node does not take part any more."""

    member: Member
    reason: str
    polite: bool = False  # it said so itself


MembershipNews = NodeJoined | NodeGone


def clean_name(text: str) -> str:
    """Return a name that can stand in a table: printable, without blanks, at most 40 characters."""
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in text.strip())[:40]
    return name or "node"


class Names:
    """The names that are taken; gives out `wanted`, or the first of `wanted-2`, `wanted-3`, ... that nobody has."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._tried: dict[str, int] = {}  # by wanted name: smaller numbers are taken or given back
        self._given_back: dict[str, set[int]] = {}

    def take(self, wanted: str) -> str:
        """Return a free name, which is taken from now on."""
        name = wanted if wanted not in self._taken else self._numbered(wanted)
        self._taken.add(name)
        return name

    def give_back(self, name: str) -> None:
        """Take note that nobody has a name any more."""
        self._taken.discard(name)
        wanted, _, number = name.rpartition("-")
        if number.isdecimal() and int(number) < self._tried.get(wanted, 0):
            self._given_back.setdefault(wanted, set()).add(int(number))

    def _numbered(self, wanted: str) -> str:
        given_back = self._given_back.get(wanted, set())
        while given_back:
            given_back.remove(number := min(given_back))
            if (name := f"{wanted}-{number}") not in self._taken:
                return name
        number = self._tried.get(wanted, 2)
        while (name := f"{wanted}-{number}") in self._taken:
            number += 1
        self._tried[wanted] = number + 1
        return name


def usable_device(hello: Hello) -> DeviceReport:
    """Return the device with the memory that its owner lends."""
    device = hello.device
    if not 0 < hello.memory_limit_bytes < device.memory_bytes:
        return device
    return DeviceReport(
        kind=device.kind,
        name=device.name,
        memory_bytes=hello.memory_limit_bytes,
        host=device.host,
        threads=device.threads,
        software=device.software,
    )


def data_endpoint(host: str, port: int) -> str:
    """Return the address of a node's data socket, with brackets around an IPv6 literal."""
    return f"tcp://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"tcp://{host}:{port}"
