"""A network of namespaces as lines for iproute2: which devices there are, how they are joined, shaped and cut. No I/O.

Every host has a namespace with one device, `eth0`. The other end of it is a port in the hub, which hands each packet on
by its addresses and routes nothing: through the delay line where the way is long, through the trunks that it passes, to
the port of its target. Packets wait before `eth0` (the uplink) or before the port (the downlink); where both are one
pipe, before a device that both directions are led through.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from brigade.lab.fabric import Fabric, Route
from brigade.lab.hosts import Place
from brigade.lab.namespace_packets import Way
from brigade.lab.relay_orders import ChangeRate, Cut, Heal
from brigade.lab.token_bucket import TokenBucket

Tool = Literal["ip", "tc"]

UP = "eth0"  # the device of a host
PIPE = "pipe"  # that which both directions of a shared pipe pass
FAR = "far"  # that of the delay line
HARDWARE_ADDRESS = "02:00:00:00:00:01"  # of all hosts: a frame is then for whoever gets it, and nobody asks who has it
CONGESTION = "cubic"  # control: the one that most machines have

FRAME_BYTES = 1514  # a full one, as the kernel counts it,
PAYLOAD_BYTES = 1448  # and what it carries for TCP with time stamps
BURST_S = 0.001  # what may pass at once after a pause
LEAST_BURST = 2 * FRAME_BYTES
LEAST_QUEUE = 20 * FRAME_BYTES
TRUNK_QUEUE_S = 0.05  # before what joins two sites
FAR_QUEUE = 10_000  # frames that the delay line need not have read yet
MOST_SEGMENTS = 40  # packets that TCP hands over as one


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines for one program of iproute2 in one namespace; without a name in that of the lab."""

    tool: Tool
    namespace: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A device that packets of a limited rate wait before."""

    bucket: TokenBucket
    namespace: str
    device: str
    queue_s: float

    def shape(self) -> str:
        """Return the line for `tc` that gives it its rate."""
        if self.bucket.rate is None:
            return f"qdisc del dev {self.device} root"
        return f"qdisc replace dev {self.device} root {shaping(self.bucket.rate, self.queue_s)}"


@dataclass(frozen=True, slots=True, order=True)
class Bar:
    """What keeps packets of a host from another: the hub drops them silently, or the host itself refuses to send."""

    kind: Literal["drop", "refuse"]
    source: str
    target: str


class NamespaceNetwork:
    """The namespaces of a lab, and what has been done to them."""

    def __init__(self, fabric: Fabric, places: Mapping[str, Place], prefix: str) -> None:
        self.hub = prefix
        self._fabric = fabric
        self._places = places
        self._routes = [fabric.route(a, b) for a in places for b in places if a != b]
        self._trunks = list({id(line): line for route in self._routes for line in route.later[:-1]}.values())
        self._lines = list(self._all_lines())
        self._bars: set[Bar] = set()

    # --- names --------------------------------------------------------------------------------------------------------

    @property
    def namespaces(self) -> list[str]:
        """All namespaces by name, the hub first."""
        return [self.hub, *map(self.namespace_of, self._places)]

    def namespace_of(self, host: str) -> str:
        """Return the namespace of a host."""
        return f"{self.hub}-{host}"

    def ways(self) -> tuple[Way, ...]:
        """Return what the delay line has to do."""
        return tuple(
            Way(self._address(r.source), self._address(r.target), r.delay_s, r.jitter_s, r.loss)
            for r in self._routes
            if _is_far(r)
        )

    def _address(self, host: str) -> str:
        return self._places[host].outer_host

    def _port(self, host: str) -> str:
        return f"p{self._places[host].number}"

    def _all_lines(self) -> Iterator[Line]:
        for host, link in self._fabric.links.items():
            namespace, queue_s = self.namespace_of(host), link.queue_ms / 1000
            if link.pipe == "shared":
                yield Line(self._fabric.downlinks[host], namespace, PIPE, queue_s)
            else:
                yield Line(self._fabric.uplinks[host].bucket, namespace, UP, queue_s)
                yield Line(self._fabric.downlinks[host], self.hub, self._port(host), queue_s)
        for index, bucket in enumerate(self._trunks):
            yield Line(bucket, self.hub, _entrance(index), TRUNK_QUEUE_S)

    # --- building -----------------------------------------------------------------------------------------------------

    def build(self) -> Iterator[Batch]:
        """Yield what makes the network, in order."""
        yield Batch("ip", "", tuple(f"netns add {name}" for name in self.namespaces))
        yield Batch("ip", "", tuple(map(self._join, self._places)))
        yield Batch("ip", self.hub, tuple(self._hub_devices()))
        for host in self._places:
            yield Batch("ip", self.namespace_of(host), tuple(self._host_devices(host)))
            if self._fabric.links[host].pipe == "shared":
                yield Batch("tc", self.namespace_of(host), tuple(_lead_both_ways_through_the_pipe()))
        limited = [line for line in self._lines if line.bucket.rate is not None]
        yield from (Batch("tc", line.namespace, (line.shape(),)) for line in limited)
        yield Batch("tc", self.hub, tuple(self._hand_on()))

    def _join(self, host: str) -> str:
        here = f"link add {UP} address {HARDWARE_ADDRESS} netns {self.namespace_of(host)}"
        return f"{here} type veth peer name {self._port(host)} netns {self.hub}"

    def _hub_devices(self) -> Iterator[str]:
        devices = [self._port(host) for host in self._places]
        for index in range(len(self._trunks)):
            yield f"link add {_entrance(index)} type veth peer name {_exit(index)}"
            devices += [_entrance(index), _exit(index)]
        if self.ways():
            yield f"tuntap add dev {FAR} mode tap vnet_hdr"
            yield f"link set {FAR} txqueuelen {FAR_QUEUE}"
            devices.append(FAR)
        yield from (f"link set {device} up" for device in devices)

    def _host_devices(self, host: str) -> Iterator[str]:
        address = self._address(host)
        network = f"{address.rpartition('.')[0]}.0/24"
        yield "link set lo up"
        yield self._segments(host)
        yield f"link set {UP} arp off up"
        yield f"addr add {address}/24 dev {UP}"
        yield f"route replace {network} dev {UP} src {address} proto kernel scope link congctl {CONGESTION}"
        if self._fabric.links[host].pipe == "shared":
            yield f"link add {PIPE} type ifb"
            yield f"link set {PIPE} up"

    def _segments(self, host: str) -> str:
        """Have TCP hand over as much at once as passes at once, and single packets where packets get lost."""
        rate = self._fabric.uplinks[host].bucket.rate
        lossy = any(route.loss for route in self._routes if route.source == host)
        fit = MOST_SEGMENTS if rate is None else burst_bytes(rate) // FRAME_BYTES
        return f"link set {UP} gso_max_segs {1 if lossy else min(fit, MOST_SEGMENTS)}"

    def _hand_on(self) -> Iterator[str]:
        """Yield the lines that say, for each device that packets come in by, where they go on."""
        incoming = [self._port(host) for host in self._places] + [_exit(i) for i in range(len(self._trunks))]
        if self.ways():
            incoming.append(FAR)
        yield from (f"qdisc add dev {device} clsact" for device in incoming)
        last_hops: set[tuple[str, str]] = set()
        for route in self._routes:
            source, target = self._address(route.source), self._address(route.target)
            hops = list(self._hops(route))
            yield _filter(hops[0][0], self._order(route), f"match ip dst {target}", hops[0][1])
            for device, onward in hops[1:-1]:
                yield _filter(device, 1, f"match ip src {source} match ip dst {target}", onward)
            if len(hops) > 1 and (hops[-1][0], target) not in last_hops:
                last_hops.add((hops[-1][0], target))
                yield _filter(hops[-1][0], 2, f"match ip dst {target}", hops[-1][1])

    def _hops(self, route: Route) -> Iterator[tuple[str, str]]:
        """Yield the device that packets of a route come in by and the one that they leave by, hop by hop."""
        device = self._port(route.source)
        if _is_far(route):
            yield device, FAR
            device = FAR
        for trunk in route.later[:-1]:
            index = next(i for i, each in enumerate(self._trunks) if each is trunk)
            yield device, _entrance(index)
            device = _exit(index)
        yield device, self._port(route.target)

    def _order(self, route: Route) -> int:
        """Return the place of a route among the filters of its source's port; those that cut come before."""
        return 1000 + self._places[route.target].number

    # --- orders -------------------------------------------------------------------------------------------------------

    def cut(self, order: Cut) -> list[Batch]:
        """Return what cuts ways between hosts."""
        self._fabric.cut(order.host, order.other, order.state, both=order.both)
        return list(self._change_bars())

    def heal(self, order: Heal) -> list[Batch]:
        """Return what makes ways whole again."""
        self._fabric.cut(order.host, order.other, "whole", both=True)
        return list(self._change_bars())

    def refused(self) -> set[tuple[str, str]]:
        """Return the pairs of hosts, both ways, that may have no connection at present."""
        return {(bar.source, bar.target) for bar in self._bars if bar.kind == "refuse"}

    def _change_bars(self) -> Iterator[Batch]:
        wanted = set(self._wanted_bars())
        for bar in sorted(wanted ^ self._bars):
            yield self._bar(bar, add=bar in wanted)
        self._bars = wanted

    def _wanted_bars(self) -> Iterator[Bar]:
        for route in self._routes:
            if route.cut == "silent":
                yield Bar("drop", route.source, route.target)
            elif route.cut == "reset":
                yield Bar("refuse", route.source, route.target)
                yield Bar("refuse", route.target, route.source)

    def _bar(self, bar: Bar, *, add: bool) -> Batch:
        target = self._places[bar.target]
        if bar.kind == "refuse":
            line = f"route {'add' if add else 'del'} unreachable {target.outer_host}/32"
            return Batch("ip", self.namespace_of(bar.source), (line,))
        where = f"dev {self._port(bar.source)} ingress protocol ip pref {target.number}"
        # A filter without an action lets the packet go up to the hub's own stack, which has no use for it.
        line = f"filter add {where} u32 match ip dst {target.outer_host}/32 flowid :1" if add else f"filter del {where}"
        return Batch("tc", self.hub, (line,))

    def change_rate(self, order: ChangeRate) -> list[Batch]:
        """Return what gives a host another uplink or downlink."""
        before = [line.bucket.rate for line in self._lines]
        self._fabric.change_rate(order.host, order.up, order.down, 0.0)
        changed = [line for line, rate in zip(self._lines, before, strict=True) if line.bucket.rate != rate]
        batches = [Batch("tc", line.namespace, (line.shape(),)) for line in changed]
        if batches:
            batches.append(Batch("ip", self.namespace_of(order.host), (self._segments(order.host),)))
        return batches

    # --- counting -----------------------------------------------------------------------------------------------------

    def counting(self) -> Batch:
        """Return what shows the filters of all ports, one JSON array a line."""
        return Batch("tc", self.hub, tuple(f"filter show dev {self._port(host)} ingress" for host in self._places))

    def read_counts(self, shown: Iterable[Iterable[Mapping[str, Any]]]) -> dict[tuple[str, str], int]:
        """Return bytes by source and target from what `counting` showed, parsed."""
        by_order = {(route.source, self._order(route)): route.target for route in self._routes}
        counts: dict[tuple[str, str], int] = {}
        for host, filters in zip(self._places, shown, strict=True):
            for each in filters:
                target = by_order.get((host, each["pref"]))
                if target is not None and (passed := _bytes_of(each)) is not None:
                    counts[host, target] = passed
        return counts


def burst_bytes(rate: float) -> int:
    """Return what may pass a line of so many payload bytes a second at once."""
    return max(LEAST_BURST, int(wire_rate(rate) * BURST_S))


def wire_rate(rate: float) -> float:
    """Return the bytes a second, headers included, at which full packets carry so much payload."""
    return rate * FRAME_BYTES / PAYLOAD_BYTES


def shaping(rate: float, queue_s: float) -> str:
    """Return the words for `tc` that give a device a payload rate, in bytes a second, and a buffer."""
    wire = wire_rate(rate)
    queue = max(LEAST_QUEUE, int(wire * queue_s))
    return f"tbf rate {max(8, round(8 * wire))}bit burst {burst_bytes(rate)}b limit {queue}b"


def _is_far(route: Route) -> bool:
    return bool(route.delay_s or route.loss)  # jitter is at most the delay


def _entrance(trunk: int) -> str:
    return f"t{trunk}"


def _exit(trunk: int) -> str:
    return f"x{trunk}"


def _filter(device: str, order: int, match: str, onward: str) -> str:
    where = f"filter add dev {device} ingress protocol ip pref {order}"
    return f"{where} u32 {match} action mirred egress redirect dev {onward}"


def _lead_both_ways_through_the_pipe() -> Iterator[str]:
    yield f"qdisc add dev {UP} clsact"
    for direction in ("egress", "ingress"):
        where = f"filter add dev {UP} {direction} protocol ip pref 1"
        yield f"{where} u32 match u32 0 0 action mirred egress redirect dev {PIPE}"


def _bytes_of(shown: Mapping[str, Any]) -> int | None:
    """Return the bytes that the action of one filter has counted."""
    match shown.get("options"):
        case {"actions": [{"stats": {"bytes": int(passed)}}]}:
            return passed
        case _:
            return None
