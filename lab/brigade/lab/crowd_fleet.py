"""A crowd of nodes in virtual time, for the real core of the coordinator: when who says what. A core.

Nodes come and go as drawn from the statistics of volunteers, send heartbeats at the interval that they are told, and
obey orders at once but for the time that the work takes. What the disk would do, happens at once.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from brigade.coordinator import run_events as e
from brigade.lab.availability import Period
from brigade.lab.crowd_spec import CrowdSpec
from brigade.wire import messages as m
from brigade.wire.costs import BlockCost, ChainReport, DeviceReport, LinkReport
from brigade.wire.invite import prove
from brigade.wire.keys import node_id
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import Boundary, LeafSpec, Plan

RUN_ID = "crowd"
SECRET = "0123456789abcdef0123456789abcdef"  # noqa: S105 - it guards nothing
OWNER_KEY = "C" * 40
INPUTS = Boundary(structure=0, leaves=(LeafSpec(dtype="int64", fixed=(0, 8), per_sample=(1, 0)),))
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # of keys: a part of Z85
PROFILE_S, LINK_S, LOAD_S = 5.0, 1.0, 5.0
REJOIN_S = 10.0  # within which all come back to a coordinator that was started again
POLITE = 0.5  # the share of nodes that say that they go
SILENT = 0.25  # the share whose connections stay open when they go


@dataclass(slots=True)
class CrowdNode:
    """What a simulated node remembers."""

    name: str
    key: str
    node_id: str
    speed: float
    there: bool = False
    life: int = 0  # counts its comings: what an earlier life had in mind does not happen
    control: int = 0
    pulse: int = 0
    stage: int = -1
    generation: int = -1


class CrowdFleet:
    """Says what happens next, and takes what the coordinator tells its nodes."""

    def __init__(self, spec: CrowdSpec, periods: list[Period]) -> None:
        self._spec = spec
        self._chance = Random(spec.seed)  # noqa: S311 - nothing secret is drawn
        self.nodes = {name: self._make(name) for name in dict.fromkeys(period.node for period in periods)}
        self._connections: dict[int, CrowdNode] = {}
        self._numbers = count(1)
        self._ties = count()  # what is due at one moment happens in the order in which it was planned
        self._agenda: list[tuple[float, int, Any]] = []
        self.now = 0.0
        self.plan: Plan | None = None
        for period in periods:
            node = self.nodes[period.node]
            # Not all at the very first moment, as nobody is that punctual.
            start_s = period.start_s or self._chance.uniform(0.0, REJOIN_S)
            self._at(start_s, lambda node=node: self._come(node))
            if math.isfinite(period.end_s):
                self._at(max(period.end_s, start_s), lambda node=node: self._go(node))

    def _make(self, name: str) -> CrowdNode:
        key = "".join(self._chance.choices(LETTERS, k=40))
        return CrowdNode(name, key, node_id(key), speed=self._chance.lognormvariate(0.0, 0.5))

    # --- time -----------------------------------------------------------------------------------------------------

    def _at(self, moment: float, act: Any) -> None:
        heapq.heappush(self._agenda, (moment, next(self._ties), act))

    def _after(self, node: CrowdNode, seconds: float, act: Any) -> None:
        """Let a node do something later, if it is still the same life of it."""
        life = node.life
        self._at(self.now + seconds, lambda: act() if node.life == life and node.there else iter(()))

    def next_at(self) -> float:
        """Return when something happens next; inf for never."""
        return self._agenda[0][0] if self._agenda else math.inf

    def step(self) -> Iterator[e.RunEvent]:
        """Let the next thing happen and return what the coordinator hears of it."""
        self.now, _, act = heapq.heappop(self._agenda)
        return act()  # type: ignore[no-any-return]

    def restart(self) -> None:
        """The coordinator has been started again: who is there connects anew, within some seconds."""
        self.plan = None
        self._connections.clear()
        for node in self.nodes.values():
            if node.there:
                node.there = False
                wait_s = self._chance.uniform(0.0, REJOIN_S)
                node.life += 1
                life = node.life
                self._at(
                    self.now + wait_s,
                    lambda node=node, life=life: self._come(node) if node.life == life else iter(()),
                )

    # --- coming and going -----------------------------------------------------------------------------------------

    def _come(self, node: CrowdNode) -> Iterator[e.RunEvent]:
        if node.there:
            return
        node.there, node.stage, node.pulse = True, -1, 0
        node.life += 1
        yield self._open(node, "control")
        hello = m.Hello(
            run_id=RUN_ID,
            name=node.name,
            incarnation=f"{node.name}/{node.life}",
            proof=prove(SECRET, OWNER_KEY, node.key),
            device=DeviceReport(
                kind="cpu",
                name=f"processor of {node.name}",
                memory_bytes=self._spec.memory_bytes,
                host=f"host of {node.name}",
                threads=8,
                software=f"brigade on {node.name}",
            ),
            data_port=7700,
        )
        yield e.MessageArrived(connection=node.control, message=hello)

    def _open(self, node: CrowdNode, socket: Any) -> e.ConnectionOpened:
        number = next(self._numbers)
        self._connections[number] = node
        setattr(node, socket, number)
        return e.ConnectionOpened(
            connection=number,
            socket=socket,
            node_id=_copied(node.node_id),
            public_key=_copied(node.key),
            host=f"10.0.{number % 250}.1",
        )

    def _go(self, node: CrowdNode) -> Iterator[e.RunEvent]:
        """Leave in good order, break off, or fall silent."""
        node.life += 1
        if not node.there:
            return
        node.there = False
        way = self._chance.random()
        if way < POLITE:
            yield e.MessageArrived(connection=node.control, message=m.Leaving(reason="its owner wants it back"))
        if way < 1 - SILENT:
            for connection in (node.control, node.pulse):
                if self._connections.pop(connection, None) is not None:
                    yield e.ConnectionClosed(connection=connection, reason="gone")

    def _beat(self, node: CrowdNode, interval_s: float) -> Iterator[e.RunEvent]:
        self._after(node, interval_s, lambda: self._beat(node, interval_s))
        doing = "forward" if node.stage >= 0 else ""
        pulse = m.Pulse(number=0, incarnation=f"{node.name}/{node.life}", doing=doing)
        yield e.MessageArrived(connection=node.pulse, message=pulse)

    # --- orders ---------------------------------------------------------------------------------------------------

    def told(self, connection: int, message: object) -> Iterator[e.RunEvent]:
        """Take a message of the coordinator; return what it hears at once."""
        node = self._connections.get(connection)
        if node is None or not node.there:
            return
        match message:
            case m.Welcome(pulse_interval_s=interval_s):
                yield self._open(node, "pulse")
                self._after(node, self._chance.uniform(0.0, interval_s), lambda: self._beat(node, interval_s))
            case m.ProfileBlocks():
                self._say(node, PROFILE_S * node.speed, m.Profiled(chain=self._chain(node)))
            case m.MeasureLinks(to=to):
                links = tuple(self._link(contact.node_id) for contact in to)
                self._say(node, LINK_S * len(to), m.LinksMeasured(links=links))
            case m.LoadStage(plan=plan, stage=stage):
                self.plan, node.stage, node.generation = plan, stage, plan.generation
                self._say(node, LOAD_S, m.StageLoaded(generation=plan.generation, stage=stage, parameter_count=10**7))
            case m.BeginTraining(step=step):
                self._train(node, step)
            case m.ApplyStep(step=step):
                statistics = StageStatistics(wait_s=0.5, wall_s=1.0, forward_s=0.2, backward_s=0.3)
                applied = m.StepApplied(generation=node.generation, step=step, stage=node.stage, statistics=statistics)
                self._say(node, 0.05, applied)
                self._train(node, step + 1)

    def hung_up(self, connection: int) -> None:
        """The coordinator has closed a connection: its node tries again, if it is still there."""
        node = self._connections.pop(connection, None)
        if node is None or not node.there or node.control != connection:
            return
        node.there = False
        node.life += 1
        life = node.life
        self._at(self.now + 1.0, lambda: self._come(node) if node.life == life else iter(()))

    def _say(self, node: CrowdNode, seconds: float, message: Any) -> None:
        def arrive() -> Iterator[e.RunEvent]:
            yield e.MessageArrived(connection=node.control, message=message)

        self._after(node, seconds, arrive)

    def _train(self, node: CrowdNode, step: int) -> None:
        assert self.plan is not None
        last = node.stage == len(self.plan.stages) - 1
        samples = tuple(self._spec.sample_ids(step)) if last else ()
        report = m.GradientsReady(
            generation=node.generation,
            step=step,
            stage=node.stage,
            squared_norm=1.0,
            finite=True,
            loss_sum=float(len(samples)),
            target_count=len(samples),
            samples=samples,
        )
        self._say(node, self._spec.step_s * self._chance.uniform(0.95, 1.0), report)

    def _chain(self, node: CrowdNode) -> ChainReport:
        cost = BlockCost(
            forward_s=0.01 * node.speed,
            backward_s=0.02 * node.speed,
            optimizer_s=0.001,
            parameter_bytes=50_000_000,
            gradient_bytes=50_000_000,
            optimizer_bytes=100_000_000,
            saved_bytes=5_000_000,
            output_bytes=500_000,
        )
        blocks = self._spec.blocks
        return ChainReport(fingerprint="f" * 64, blocks=(cost,) * blocks, boundaries=(INPUTS,) * (blocks - 1), tied=())

    def _link(self, to: str) -> LinkReport:
        return LinkReport(
            to=to, rtt_s=self._chance.uniform(0.01, 0.2), bytes_per_s=self._chance.choice((1.25e6, 5e6, 1.25e7))
        )


def _copied(text: str) -> str:
    """Return the text as another object: what comes off a socket shares no memory with what came before."""
    return text[:1] + text[1:]
