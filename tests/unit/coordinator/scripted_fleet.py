"""A coordinator's world in one thread: scripted nodes, a disk that survives, virtual time, seeded order of arrival.

The model is a hash: every stage folds the samples of each step into one number, which is its weights, its loss and its
checkpoint. A run that loses or repeats a sample, or resumes from the wrong state, shows another curve.
"""

import hashlib
import random
from dataclasses import dataclass, field, replace

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
from brigade.wire.costs import BlockCost, ChainReport, DeviceReport, LinkReport
from brigade.wire.invite import prove
from brigade.wire.keys import node_id
from brigade.wire.message_parts import FileSpec, StageStatistics
from brigade.wire.plan import Boundary, LeafSpec, Plan, StagePlan
from brigade.wire.run_spec import GptSpec, PipelineSpec, RunSpec, TextData, TrainingSpec

SECRET = "0123456789abcdef0123456789abcdef"
OWNER_KEY = "C" * 40
BLOCKS = 4
TRAIN_SAMPLES = 20
INPUTS = Boundary(structure=0, leaves=(LeafSpec(dtype="int64", fixed=(0, 8), per_sample=(1, 0)),))


def make_spec(*, nodes=2, gather_timeout_s=60.0, **training):
    settings = {"max_steps": 8, "batch_size": 8, "microbatches": 2, "save_steps": 3, "eval_steps": 4} | training
    return RunSpec(
        name="toy",
        model=GptSpec(),
        data=TextData(path="x.txt"),
        training=TrainingSpec(**settings),
        pipeline=PipelineSpec(nodes=nodes, gather_timeout_s=gather_timeout_s, silence_limit_s=15.0),
    )


def key_of(name):
    return (name.replace("-", "") * 40)[:40]


def make_device(host):
    return DeviceReport(kind="cpu", name="test", memory_bytes=1 << 30, host=host, threads=1, software="test")


def make_chain(fingerprint="f" * 16):
    cost = BlockCost(
        forward_s=1.0, backward_s=2.0, optimizer_s=0.1, parameter_bytes=4, gradient_bytes=4, optimizer_bytes=8,
        saved_bytes=4, output_bytes=4,
    )  # fmt: skip
    return ChainReport(fingerprint=fingerprint, blocks=(cost,) * BLOCKS, boundaries=(INPUTS,) * (BLOCKS - 1), tied=())


def even_plan(order, run_id="run-1"):
    contacts = sorted(order.contacts, key=lambda c: c.name)
    count = len(contacts)
    cuts = [BLOCKS * i // count for i in range(count + 1)]
    return Plan(
        run_id=run_id,
        generation=order.generation,
        stages=tuple(StagePlan(contact=c, first_block=cuts[i], end_block=cuts[i + 1]) for i, c in enumerate(contacts)),
        schedule="1f1b",
        microbatches=2,
        train_samples=order.train_samples,
        validation_samples=order.validation_samples,
        boundaries=(INPUTS,) * (count - 1),
    )


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


class ScriptedNode:
    """A node that obeys at once; its stage is a number."""

    def __init__(self, world, name, *, host="", incarnation="1"):
        self.world, self.name, self.incarnation = world, name, incarnation
        self.key = key_of(name)
        self.id = node_id(self.key)
        self.host = host or f"host-{name}"
        self.control = self.pulse = 0
        self.plan = None
        self.stage = -1
        self.state = ""
        self.ended = None
        self.silent = False
        self.refused = None
        self.fingerprint = "f" * 16
        self.link_errors = {}
        self.orders = []

    def hello(self, **changes):
        told = m.Hello(
            run_id="run-1",
            name=self.name,
            incarnation=self.incarnation,
            proof=prove(SECRET, OWNER_KEY, self.key),
            device=make_device(self.host),
            data_port=5000,
        )
        return replace(told, **changes)

    def join(self, **changes):
        self.control = self.world.open(self, "control")
        self.say(self.hello(**changes))

    def say(self, message):
        self.world.post(self.control, MessageArrived(connection=self.control, message=message))

    def take(self, message):
        self.orders.append(message)
        handler = getattr(self, f"on_{type(message).__name__}", None)
        if handler is not None and not self.silent:
            handler(message)

    def on_Welcome(self, message):
        self.pulse = self.world.open(self, "pulse")

    def on_Refused(self, message):
        self.refused = message

    def on_ProfileBlocks(self, message):
        self.say(m.Profiled(chain=make_chain(self.fingerprint)))

    def on_MeasureLinks(self, message):
        links = tuple(
            LinkReport(to=c.node_id, rtt_s=0.01, bytes_per_s=1e6, error=self.link_errors.get(c.name, ""))
            for c in message.to
        )
        self.say(m.LinksMeasured(links=links))

    def on_LoadStage(self, message):
        self.plan, self.stage = message.plan, message.stage
        states = {file.sha256 for file in message.checkpoint}
        assert len(states) <= 1, f"a checkpoint stitched from different steps: {message.checkpoint}"
        self.state = states.pop() if states else "initial"
        self.say(m.StageLoaded(generation=self.plan.generation, stage=self.stage, parameter_count=10))

    def on_BeginTraining(self, message):
        self.train(message.step)

    def train(self, step):
        last = self.stage == len(self.plan.stages) - 1
        samples = tuple(int(i) for i in self.world.batching.sample_ids(step)) if last else ()
        self.say(
            m.GradientsReady(
                generation=self.plan.generation,
                step=step,
                stage=self.stage,
                squared_norm=4.0,
                finite=self.world.finite(step),
                loss_sum=loss_of(self.state) * len(samples),
                target_count=len(samples),
                samples=samples,
            )
        )

    def on_ApplyStep(self, order):
        generation, step = order.generation, order.step
        if not order.skip:
            self.state = fold(self.state, self.world.batching.sample_ids(step), order.learning_rate)
        self.say(
            m.StepApplied(
                generation=generation, step=step, stage=self.stage, statistics=StageStatistics(wait_s=1.0, wall_s=4.0)
            )
        )
        if order.evaluate and self.stage == len(self.plan.stages) - 1:
            loss = loss_of(self.state)
            self.say(m.Evaluated(generation=generation, step=step, loss_sum=loss * 5, target_count=5))
        if order.save:
            self.save(order)
        if not order.last:
            self.train(step + 1)

    def save(self, order):
        held = self.plan.stages[self.stage]
        files = tuple(
            FileSpec(name=f"checkpoint/{order.step + 1}/block-{b:03}.safetensors", size=1, sha256=self.state)
            for b in range(held.first_block, held.end_block)
        )
        self.say(m.StateSaved(generation=order.generation, step=order.step, stage=self.stage, files=files))

    def on_RunEnded(self, message):
        self.ended = message


def fold(state, samples, learning_rate):
    text = f"{state}/{','.join(str(int(i)) for i in samples)}/{learning_rate!r}"
    return hashlib.sha256(text.encode()).hexdigest()


def loss_of(state):
    return int(hashlib.sha256(state.encode()).hexdigest()[:6], 16) / 1e6


class World:
    """One life of a coordinator with its nodes; `Killed` is raised where a test wants it to die."""

    def __init__(self, spec=None, disk=None, *, seed=0, kill_at=None):
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
