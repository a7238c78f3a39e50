"""A coordinator's world in one thread: scripted nodes, a disk that survives, virtual time, seeded order of arrival."""

import random
from dataclasses import dataclass, field

from tests.unit.coordinator.scripted_node import (
    INPUTS,
    OWNER_KEY,
    SECRET,
    TRAIN_SAMPLES,
    ScriptedNode,
    even_plan,
    make_spec,
)

from brigade.coordinator.run_core import RunCore
from brigade.coordinator.run_events import (
    CheckpointSealed,
    CollectParts,
    CommitStored,
    ConnectionClosed,
    ConnectionOpened,
    DropCheckpoint,
    EndRun,
    ExportModel,
    HangUp,
    MakePlan,
    MessageArrived,
    ModelExported,
    Note,
    OfferFiles,
    OpenCheckpoint,
    PartsStored,
    PlanMade,
    RunBegun,
    SealCheckpoint,
    StoreCommit,
    StoreEvaluation,
    StoreNode,
    StorePlan,
    StoreRevocation,
    Tell,
    TimePassed,
)
from brigade.coordinator.run_membership import Door, Membership
from brigade.coordinator.run_state import Beginning
from brigade.partition.batching import Batching
from brigade.wire import messages as m
from brigade.wire.admission import Admission
from brigade.wire.message_parts import FileSpec


@dataclass
class Disk:
    """What a killed coordinator leaves."""

    commits: dict = field(default_factory=dict)  # (step, attempt) -> Commit
    evaluations: dict = field(default_factory=dict)
    checkpoints: dict = field(default_factory=dict)  # steps done -> Manifest
    attempt: int = 0
    generation: int = -1
    exports: list = field(default_factory=list)

    def curve(self):
        """For each step the row with the highest attempt."""
        newest = {}
        for step, attempt in sorted(self.commits):
            newest[step] = self.commits[step, attempt]
        return newest


class World:
    """One life of a coordinator with its nodes; `Killed` is raised where a test wants it to die."""

    def __init__(self, spec=None, disk=None, *, seed=0, kill_at=None, costs=None):
        self.spec = spec or make_spec()
        self.disk = disk if disk is not None else Disk()
        self.random = random.Random(seed)
        self.kill_at = kill_at
        self.commands = 0
        self.now = 100.0
        self.transcript = []
        self.notes = []
        self.end = None
        self.nodes = {}  # by name
        self.batching = Batching(TRAIN_SAMPLES, self.spec.training.batch_size, self.spec.training.microbatches, 0)
        self.finite = lambda step: True
        self.refuse = {}  # command type -> event maker, instead of the usual answer
        self._queues = {}  # source -> events in order
        self._owners = {}  # connection -> node
        self._next = 1
        self.disk.attempt += 1
        newest = max(self.disk.checkpoints, default=None)
        self.beginning = Beginning(
            run_id="run-1",
            spec=self.spec,
            identity="same",
            attempt=self.disk.attempt,
            generation=self.disk.generation,
            checkpoint=None if newest is None else self.disk.checkpoints[newest],
            data=FileSpec(name="data/x.txt", size=1, sha256="d"),
            inputs=INPUTS,
            train_samples=TRAIN_SAMPLES,
            validation_samples=5,
            costs=costs,
        )
        door = Door(run_id="run-1", coordinator_key=OWNER_KEY, pulse_port=7701, bulk_port=7702)
        self.membership = Membership(door, Admission(SECRET, OWNER_KEY), self.spec)
        self.core = RunCore(self.beginning, self.membership)
        self.handle(RunBegun())

    # --- what tests do ------------------------------------------------------------------------------------------

    def node(self, name, **options):
        self.nodes[name] = ScriptedNode(self, name, **options)
        return self.nodes[name]

    def join(self, *names, **options):
        for name in names:
            self.node(name, **options).join()
        return [self.nodes[name] for name in names]

    def run(self, until=lambda world: world.end is not None, limit_s=10_000.0):
        """Deliver everything, then let time pass, until the condition holds."""
        begun = self.now
        while not until(self):
            if self._queues:
                self.deliver()
                continue
            self.tick()
            assert self.now < begun + limit_s, "\n".join(["nothing happens any more:", *self.transcript[-20:]])
        return self.end

    def settle(self):
        """Deliver everything that is on its way; time stands still."""
        while self._queues and self.end is None:
            self.deliver()

    def deliver(self):
        source = self.random.choice(sorted(self._queues, key=str))
        event = self._queues[source].pop(0)
        if not self._queues[source]:
            del self._queues[source]
        self.handle(event)

    def tick(self, seconds=1.0):
        """Let time pass: live nodes send heartbeats, then deadlines come."""
        self.now += seconds
        for node in self.nodes.values():
            if node.pulse and not node.silent:
                pulse = m.Pulse(number=1, incarnation=node.incarnation, doing="forward")
                self.handle(MessageArrived(connection=node.pulse, message=pulse))
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= self.now:
            self.handle(TimePassed())

    def kill_node(self, name):
        """The node is gone: nothing more comes from it, its connections break."""
        node = self.nodes[name]
        node.silent = True
        self._queues.pop(node.control, None)
        for connection in (node.control, node.pulse):
            self.handle(ConnectionClosed(connection=connection, reason="gone"))

    def open(self, node, socket):
        number, self._next = self._next, self._next + 1
        self._owners[number] = node
        self.handle(
            ConnectionOpened(connection=number, socket=socket, node_id=node.id, public_key=node.key, host="10.0.0.1")
        )
        return number

    def post(self, source, event):
        self._queues.setdefault(source, []).append(event)

    # --- the shell ----------------------------------------------------------------------------------------------

    def handle(self, event):
        if self.end is not None:
            return
        for command in self.core.handle(event, self.now):
            if self.kill_at is not None and self.commands >= self.kill_at:
                raise Killed
            self.commands += 1
            self.carry_out(command)

    def carry_out(self, command):
        if type(command) in self.refuse and (event := self.refuse[type(command)](command)) is not None:
            self.post("disk", event)
            return
        disk = self.disk
        match command:
            case Tell(connection=connection, message=message):
                self.tell(self._owners[connection], message)
            case HangUp(connection=connection, reason=reason):
                self.say(f"{self._owners[connection].name:<5} xx {reason}")
            case MakePlan():
                self.post("planner", PlanMade(plan=even_plan(command)))
            case StorePlan(plan=plan):
                disk.generation = plan.generation
            case StoreCommit(commit=commit):
                assert (commit.step, commit.attempt) not in disk.commits
                disk.commits[commit.step, commit.attempt] = commit
                self.post("disk", CommitStored(step=commit.step))
            case StoreEvaluation(evaluation=evaluation):
                disk.evaluations[evaluation.step, evaluation.attempt] = evaluation
            case CollectParts(steps_done=steps_done, stage=stage):
                self.post("files", PartsStored(steps_done=steps_done, stage=stage))
            case SealCheckpoint(manifest=manifest, keep=keep):
                disk.checkpoints[manifest.steps_done] = manifest
                for old in sorted(disk.checkpoints)[:-keep]:
                    del disk.checkpoints[old]
                self.post("files", CheckpointSealed(steps_done=manifest.steps_done, size=1))
            case ExportModel(steps_done=steps_done):
                disk.exports.append(steps_done)
                self.post("files", ModelExported(path="model.safetensors"))
            case Note(text=text):
                self.notes.append(text)
                self.say(f"      -- {text}")
            case EndRun():
                self.end = command
            case OfferFiles() | OpenCheckpoint() | DropCheckpoint() | StoreNode() | StoreRevocation():
                pass
            case _:
                raise AssertionError(command)

    def tell(self, node, message):
        shown = type(message).__name__
        match message:
            case m.ApplyStep():
                flags = [f for f in ("skip", "evaluate", "save", "last") if getattr(message, f)]
                shown = " ".join([f"ApplyStep {message.step}", *flags])
            case m.BeginTraining() | m.LoadStage():
                shown += f" {getattr(message, 'step', message.stage if hasattr(message, 'stage') else '')}"
            case m.PulseEcho():
                return
        self.say(f"{node.name:<5} <- {shown}")
        node.take(message)

    def say(self, line):
        self.transcript.append(line)


class Killed(Exception):  # noqa: N818 - it is no error
    """The coordinator was killed here."""


def uninterrupted(spec=None):
    """The disk of a run that nothing happened to."""
    world = World(spec)
    world.join(*[f"n{i}" for i in range(world.spec.pipeline.nodes)])
    assert world.run().exit_code == 0, world.transcript[-5:]
    return world.disk


def check_ledger(disk, spec, steps=None):
    """Every committed step once, with the samples that belong to it, and the curve of an uninterrupted run."""
    reference, curve = uninterrupted(spec).curve(), disk.curve()
    assert sorted(curve) == list(range(spec.training.max_steps if steps is None else steps))
    for step, commit in curve.items():
        assert commit.samples == reference[step].samples
        assert commit.loss == reference[step].loss
        assert commit.learning_rate == reference[step].learning_rate
