"""A line of stages on paper: what one microbatch costs at every stage, on every link and at every network port.

Closed forms and the simulator both read it, and both name what is busy by the same `Server`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from brigade.wire.errors import PlanError


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds that one microbatch takes at a stage.

    `weights_s` is the part of the backward that can follow after the gradient of the input has left, `optimizer_s` is
    spent once an update, `encode_s` and `decode_s` once a value sent or received, on a thread beside the computing one.
    """

    forward_s: float
    backward_s: float
    weights_s: float = 0.0
    optimizer_s: float = 0.0
    encode_s: float = 0.0
    decode_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """Forward and backward of one microbatch."""
        return self.forward_s + self.backward_s

    @property
    def reply_s(self) -> float:
        """Forward, and backward until the gradient of the input leaves."""
        return self.forward_s + self.backward_s - self.weights_s


@dataclass(frozen=True, slots=True)
class HopTime:
    """Seconds that one microbatch takes between a stage and the next: on the line, then on the way.

    Each direction carries one value at a time. Gradients travel for `back_way_s`, as long as activations if None.
    """

    activation_s: float
    gradient_s: float
    one_way_s: float
    back_way_s: float | None = None

    @property
    def round_trip_s(self) -> float:
        """Both ways, without the time on the line."""
        return self.one_way_s + (self.one_way_s if self.back_way_s is None else self.back_way_s)


@dataclass(frozen=True, slots=True)
class PortTime:
    """Seconds for which one microbatch occupies the network port of a stage: going out, then coming in.

    With `half_duplex` (Wi-Fi, some radio links) one pipe carries both directions.
    """

    activation_out_s: float = 0.0
    gradient_out_s: float = 0.0
    activation_in_s: float = 0.0
    gradient_in_s: float = 0.0
    half_duplex: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """What a host can send and receive."""

    up_bytes_per_s: float = math.inf
    down_bytes_per_s: float = math.inf
    half_duplex: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Server:
    """Something that serves one thing at a time.

    `compute` and `codec` of a stage, `activations` and `gradients` of a hop, `trunk` that several hops share, `uplink`,
    `downlink` or `pipe` (both in one) of a host.
    """

    kind: str
    index: int

    def __str__(self) -> str:
        if self.kind == "trunk":
            return f"trunk {self.index}"
        place = {"activations": "hop", "gradients": "hop", "compute": "stage", "codec": "stage"}.get(self.kind, "host")
        return f"{self.kind} of {place} {self.index}"


@dataclass(frozen=True, slots=True)
class Line:
    """Stages in order and what lies between them: `hops[k]` is between stages k and k+1.

    Without `ports`, nothing but the hops limits sending. Stages with equal `hosts` share one port; without `hosts`,
    every stage has its own. `trunks` has for each hop the numbers of the lines that its activations and its gradients
    take, which are shared by whatever has the same number; -1 is a line of the hop's own.
    """

    stages: tuple[StageTime, ...]
    hops: tuple[HopTime, ...] = ()
    ports: tuple[PortTime, ...] = ()
    hosts: tuple[int, ...] = ()
    trunks: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        count = len(self.stages)
        if count < 1 or len(self.hops) != count - 1:
            raise PlanError(f"a line of {count} stages needs {max(count - 1, 0)} hops, not {len(self.hops)}")
        if len(self.ports) not in {0, count} or len(self.hosts) not in {0, count}:
            raise PlanError(f"a line of {count} stages has as many ports and hosts, or none")
        if len(self.trunks) not in {0, count - 1}:
            raise PlanError(f"a line of {count} stages has trunks for {count - 1} hops, or none")
        duplex: dict[int, bool] = {}
        for stage, port in enumerate(self.ports):
            if duplex.setdefault(self.host(stage), port.half_duplex) != port.half_duplex:
                raise PlanError(f"host {self.host(stage)} is half duplex for one stage and not for another")

    def host(self, stage: int) -> int:
        """Return the number of the host on which a stage runs."""
        return self.hosts[stage] if self.hosts else stage

    def port(self, stage: int) -> PortTime:
        """Return what one microbatch costs at the port of a stage."""
        return self.ports[stage] if self.ports else PortTime()

    def hop_line(self, hop: int, *, gradients: bool) -> Server:
        """Return the line that a hop's values take between the ports."""
        trunk = self.trunks[hop][gradients] if self.trunks else -1
        return Server("trunk", trunk) if trunk >= 0 else Server("gradients" if gradients else "activations", hop)

    def activation_line_s(self, hop: int) -> float:
        """Seconds on the line for one activation: those of the narrowest place, all places being passed at once."""
        return max(self.hops[hop].activation_s, self.port(hop).activation_out_s, self.port(hop + 1).activation_in_s)

    def gradient_line_s(self, hop: int) -> float:
        """Seconds on the line for one gradient."""
        return max(self.hops[hop].gradient_s, self.port(hop + 1).gradient_out_s, self.port(hop).gradient_in_s)

    def hop_round_trip_s(self, hop: int) -> float:
        """Seconds from the end of a forward to when the next stage has its activation, and of a gradient back (C)."""
        near, far = self.stages[hop], self.stages[hop + 1]
        codec_s = near.encode_s + near.decode_s + far.encode_s + far.decode_s
        return self.activation_line_s(hop) + self.gradient_line_s(hop) + self.hops[hop].round_trip_s + codec_s

    def loads(self) -> dict[Server, float]:
        """Return for how many seconds one microbatch keeps each server busy; idle servers are absent."""
        loads: dict[Server, float] = {}

        def add(kind: str, index: int, seconds: float) -> None:
            if seconds > 0:
                loads[Server(kind, index)] = loads.get(Server(kind, index), 0.0) + seconds

        last = len(self.stages) - 1
        for k, stage in enumerate(self.stages):
            add("compute", k, stage.compute_s)
            add("codec", k, (stage.encode_s + stage.decode_s) * ((k > 0) + (k < last)))
            port, host = self.port(k), self.host(k)
            add("pipe" if port.half_duplex else "uplink", host, port.activation_out_s + port.gradient_out_s)
            add("pipe" if port.half_duplex else "downlink", host, port.activation_in_s + port.gradient_in_s)
        for k, hop in enumerate(self.hops):
            for gradients, seconds in ((False, hop.activation_s), (True, hop.gradient_s)):
                server = self.hop_line(k, gradients=gradients)
                add(server.kind, server.index, seconds)
        return loads


def connect(
    stages: Sequence[StageTime],
    accesses: Sequence[Access],
    activation_bytes: Sequence[float],
    gradient_bytes: Sequence[float],
    one_way_s: Sequence[float],
    hosts: Sequence[int] | None = None,
) -> Line:
    """Return the line of stages whose hosts share their uplink and their downlink among all that they send and receive.

    `accesses` is by stage; bytes and ways are by hop. Stages on one host hand over to each other at no cost.
    """
    host = tuple(range(len(stages))) if hosts is None else tuple(hosts)
    local = [near == far for near, far in pairwise(host)]
    activations = [0.0 if local[k] else float(size) for k, size in enumerate(activation_bytes)]
    gradients = [0.0 if local[k] else float(size) for k, size in enumerate(gradient_bytes)]
    ports = tuple(
        PortTime(
            activation_out_s=(activations[k] if k < len(local) else 0.0) / access.up_bytes_per_s,
            gradient_out_s=(gradients[k - 1] if k > 0 else 0.0) / access.up_bytes_per_s,
            activation_in_s=(activations[k - 1] if k > 0 else 0.0) / access.down_bytes_per_s,
            gradient_in_s=(gradients[k] if k < len(local) else 0.0) / access.down_bytes_per_s,
            half_duplex=access.half_duplex,
        )
        for k, access in enumerate(accesses)
    )
    hops = tuple(HopTime(0.0, 0.0, 0.0 if local[k] else float(way)) for k, way in enumerate(one_way_s))
    return Line(tuple(stages), hops, ports, host)
