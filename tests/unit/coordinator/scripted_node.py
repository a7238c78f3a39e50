"""A node that obeys at once, for worlds without sockets.

The model is a hash: every stage folds the samples of each step into one number, which is its weights, its loss and its
checkpoint. A run that loses or repeats a sample, or resumes from the wrong state, shows another curve.
"""

import hashlib
from dataclasses import replace

from brigade.coordinator.run_events import (
    MessageArrived,
)
from brigade.wire import messages as m
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
