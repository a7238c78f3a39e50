"""The network of a lab as arithmetic: which lines a connection passes, how long it takes, what is cut."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from brigade.lab.propagation import Propagation
from brigade.lab.quantities import parse_rate
from brigade.lab.scenario_spec import COORDINATOR, HostSpec, LinkSpec, PairSpec
from brigade.lab.token_bucket import TokenBucket

QUANTUM_S = 0.002  # how long a piece keeps the slowest line busy: others come between pieces
LEAST_PIECE = 4 * 1024
MOST_PIECE = 256 * 1024
LEAST_WINDOW = 256 * 1024
MOST_WINDOW = 32 * 1024 * 1024
SLACK_S = 0.05  # of the window: a sleepy machine must not starve a line

CutState = Literal["whole", "silent", "reset"]


@dataclass(slots=True)
class Uplink:
    """The line out of a host, and how much of its time may be waiting before it."""

    bucket: TokenBucket
    queue_s: float


@dataclass(slots=True)
class Route:
    """The way from one host to another, which all their connections share; times are seconds."""

    source: str
    target: str
    uplink: Uplink
    later: tuple[TokenBucket, ...]  # lines behind the propagation, the target's downlink last
    delay_s: float
    jitter_s: float
    loss: float
    cut: CutState = "whole"
    accepted_bytes: int = 0
    delivered_bytes: int = 0
    corrupt_next: int = 0  # so many of the next pieces get one wrong byte

    def propagation(self, random: Random) -> Propagation:
        """Return the way of a new connection."""
        return Propagation(self.delay_s, self.jitter_s, self.loss, random)

    @property
    def slowest_rate(self) -> float | None:
        """Bytes a second of the slowest line; None when none is limited."""
        lines = (self.uplink.bucket, *self.later)
        return min((line.rate for line in lines if line.rate is not None), default=None)

    @property
    def piece_bytes(self) -> int:
        """How much is read at once."""
        rate = self.slowest_rate
        return MOST_PIECE if rate is None else min(MOST_PIECE, max(LEAST_PIECE, int(rate * QUANTUM_S)))

    @property
    def window_bytes(self) -> int:
        """How much of one connection may be on its way: enough for the line, and no more."""
        rate = self.slowest_rate
        if rate is None:
            return MOST_WINDOW
        wanted = rate * (self.delay_s + self.jitter_s + self.uplink.queue_s + SLACK_S)
        return min(MOST_WINDOW, max(LEAST_WINDOW, int(wanted)))


@dataclass(slots=True)
class Fabric:
    """All lines of a scenario. `route` makes a way when it is first asked for."""

    links: dict[str, LinkSpec]
    sites: dict[str, str]  # of a host; the empty text when it has none
    pairs: tuple[PairSpec, ...]
    uplinks: dict[str, Uplink] = field(default_factory=dict)
    downlinks: dict[str, TokenBucket] = field(default_factory=dict)
    routes: dict[tuple[str, str], Route] = field(default_factory=dict)
    _trunks: dict[tuple[int, bool], TokenBucket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, link in self.links.items():
            up = TokenBucket(parse_rate(link.up))
            self.uplinks[name] = Uplink(up, link.queue_ms / 1000)
            self.downlinks[name] = up if link.pipe == "shared" else TokenBucket(parse_rate(link.down))

    def route(self, source: str, target: str) -> Route:
        """Return the way between two hosts."""
        known = self.routes.get((source, target))
        if known is not None:
            return known
        here, there = self.links[source], self.links[target]
        latency_ms, later = here.latency_ms + there.latency_ms, []
        for index, pair in enumerate(self.pairs):
            if (forth := self._crosses(pair, source, target)) is None:
                continue
            latency_ms = latency_ms if pair.latency_ms is None else pair.latency_ms
            if (rate := parse_rate(pair.rate)) is not None:
                later.append(self._trunks.setdefault((index, forth), TokenBucket(rate)))
        route = self.routes[source, target] = Route(
            source=source,
            target=target,
            uplink=self.uplinks[source],
            later=(*later, self.downlinks[target]),
            delay_s=latency_ms / 1000,
            jitter_s=(here.jitter_ms + there.jitter_ms) / 1000,
            loss=1.0 - (1.0 - here.loss) * (1.0 - there.loss),
        )
        return route

    def between(self, host: str, other: str = "") -> Iterable[Route]:
        """Return the ways from a host to another one, or to all others."""
        others = [other] if other else [name for name in self.links if name != host]
        return [self.route(host, name) for name in others]

    def cut(self, host: str, other: str, state: CutState, *, both: bool) -> list[Route]:
        """Cut or heal the ways from a host, and with `both` those to it; return them."""
        routes = list(self.between(host, other))
        if both:
            routes += [self.route(route.target, route.source) for route in tuple(routes)]
        for route in routes:
            route.cut = state
        return routes

    def change_rate(self, host: str, up: str | None, down: str | None, now: float) -> None:
        """Give a host another rate up or down."""
        if up is not None:
            self.uplinks[host].bucket.change_rate(parse_rate(up), now)
        if down is not None:
            self.downlinks[host].change_rate(parse_rate(down), now)

    def _crosses(self, pair: PairSpec, source: str, target: str) -> bool | None:
        """Tell whether a pair lies between two hosts: True forwards, False backwards, None not at all."""
        for forth, (a, b) in ((True, pair.between), (False, tuple(reversed(pair.between)))):
            if a in (source, self.sites.get(source)) and b in (target, self.sites.get(target)):
                return forth
        return None


def make_fabric(hosts: Sequence[HostSpec], coordinator: LinkSpec, pairs: Sequence[PairSpec]) -> Fabric:
    """Return the network of a scenario."""
    links: dict[str, LinkSpec] = {host.name: host for host in hosts}
    links[COORDINATOR] = coordinator
    return Fabric(links, {host.name: host.site for host in hosts}, tuple(pairs))
