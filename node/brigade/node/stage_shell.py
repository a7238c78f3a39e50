"""Carries out what a stage's core asks for: the compute thread, the codec pool, the links.

A shell without decisions: each command becomes work, each result an event.
"""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Protocol

from torch import Tensor

from brigade.compression.codec import Codec, build_codec
from brigade.node import stage_events as ev
from brigade.node.autograd_stage import Gradients
from brigade.node.microbatches import Microbatches
from brigade.node.parcels import (
    Outgoing,
    Parcel,
    is_light,
    pack_activation,
    pack_gradient,
    pack_tied,
    packs_lightly,
    unpack_activation,
    unpack_gradient,
    unpack_tied,
)
from brigade.node.stage_compute import StageCompute, StepSums
from brigade.node.stage_core import StageCore
from brigade.node.stage_error import StageError
from brigade.node.stage_work import StageWork
from brigade.node.state_files import StateFile
from brigade.node.tied import tied_roles
from brigade.node.timeline import Label, label
from brigade.node.timeline_file import Recorder
from brigade.partition.seeds import derive
from brigade.wire.encoding import Message
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.message_parts import Slot
from brigade.wire.messages import Activation, Gradient, TiedGradient, TiedWeight
from brigade.wire.plan import Plan
from brigade.wire.run_spec import RunSpec

log = logging.getLogger(__name__)

GRADIENT_PRIORITY = 1
ACTIVATION_PRIORITY = 2


class Surroundings(Protocol):
    """What a stage needs from its daemon."""

    def tell(self, message: Message) -> None:
        """Send a message to the coordinator."""

    def pass_on(self, stage: int, outgoing: Outgoing, priority: int) -> None:
        """Send an encoded message to the node of another stage."""

    def save(self, step: int, snapshot: Mapping[str, StateFile]) -> None:
        """Write a snapshot to files in the background, announce and send them."""

    def fail(self, error: StageError) -> None:
        """Report that the stage cannot go on."""


class StageShell:
    """One stage of one plan, alive: arrivals go in, commands of the core are carried out."""

    def __init__(
        self,
        *,
        plan: Plan,
        stage: int,
        first_step: int,
        spec: RunSpec,
        compute: StageCompute,
        microbatches: Microbatches,
        compute_pool: ThreadPoolExecutor,
        codec_pool: ThreadPoolExecutor,
        surroundings: Surroundings,
        timeline: Recorder,
    ) -> None:
        self.plan = plan
        self.stage = stage
        self.core = StageCore(
            plan,
            stage,
            microbatches.batching,
            microbatches.evaluation_count,
            first_step,
            oldest_version=compute.oldest_version,
            end_step=spec.training.max_steps,
        )
        self._spec = spec
        self._compute = compute
        self._microbatches = microbatches
        self._work = StageWork(compute_pool, codec_pool, timeline, self._failed)
        self._around = surroundings
        own = plan.stages[stage]
        self._forward_codec: Codec = build_codec(own.forward_codec)
        self._backward_codec: Codec = build_codec(own.backward_codec)
        self._tied = tied_roles(plan, stage)
        self._parcels: dict[Slot, Parcel] = {}  # arrived, or made here, until the forward
        self._gradients: dict[Slot, list[Tensor | None]] = {}  # arrived, until the backward
        self._outputs: dict[Slot, Parcel] = {}  # computed, until sent
        self._input_gradients: dict[Slot, list[Tensor | None]] = {}
        self._tied_arrived: dict[tuple[str, int, str], Tensor] = {}
        self._closed = False

    # --- in -------------------------------------------------------------------------------------------------------

    def handle(self, event: ev.StageEvent) -> None:
        """Feed the core and carry out what it asks for."""
        if self._closed:
            return
        before = self.core.step
        for command in self.core.handle(event, time.monotonic()):
            self._carry_out(command)
        if self.core.step != before:
            self._forget_before(self.core.step)

    def arrived(self, from_node: str, message: Message, frames: list[memoryview]) -> None:
        """Take a message of another stage; raises RemoteProtocolError when it does not fit the plan.

        Messages of another run or generation are counted and dropped.
        """
        if not isinstance(message, Activation | Gradient | TiedGradient | TiedWeight):
            raise RemoteProtocolError(f"{type(message).__name__} does not travel between stages")
        if message.run_id != self.plan.run_id or message.generation != self.plan.generation:
            self.core.dropped["other generation"] += 1
            return
        if self.plan.stages[self._sender_of(message)].contact.node_id != from_node:
            raise RemoteProtocolError(f"{type(message).__name__} came from a node that does not hold that stage")
        match message:
            case Activation(slot=slot):
                self._work.passed(label("arrived_activation", slot, self.stage - 1), frames)
                self._take_activation(message, frames)
            case Gradient(slot=slot):
                self._work.passed(label("arrived_gradient", slot, self.stage + 1), frames)
                self._take_gradient(message, frames)
            case TiedGradient(step=step) | TiedWeight(step=step):
                self._work.passed(Label("arrived_tied", step, other=self._sender_of(message)), frames)
                self._take_tied(message, frames)

    def close(self) -> None:
        """Stop: nothing that is under way will have an effect any more."""
        self._closed = True
        self._work.close()

    def _forget_before(self, step: int) -> None:
        """Drop what arrived twice, or too late, for steps that are over."""
        evaluated = step - self.plan.versions  # no older evaluation can be under way
        self._parcels = {
            s: each for s, each in self._parcels.items() if s.step >= (evaluated if s.evaluation else step)
        }
        self._gradients = {slot: gradients for slot, gradients in self._gradients.items() if slot.step >= step}
        self._tied_arrived = {key: tensor for key, tensor in self._tied_arrived.items() if key[1] >= step}

    def _sender_of(self, message: Activation | Gradient | TiedGradient | TiedWeight) -> int:
        match message:
            case Activation():
                sender = self.stage - 1
            case Gradient():
                sender = self.stage + 1
            case TiedGradient(parameter=parameter):
                sender = self._tied.owned.get(parameter, -1)
            case TiedWeight(parameter=parameter):
                sender = self._tied.followed.get(parameter, -1)
        if not 0 <= sender < len(self.plan.stages):
            raise RemoteProtocolError(f"stage {self.stage} expects no {type(message).__name__}")
        return sender

    def _take_activation(self, message: Activation, frames: list[memoryview]) -> None:
        slot = message.slot
        count = self._microbatches.sample_count(slot)
        boundary = self.plan.boundaries[self.stage - 1]

        def decoded(parcel: Parcel) -> None:
            self._parcels.setdefault(slot, parcel)
            self.handle(ev.ActivationArrived(slot))

        job = partial(unpack_activation, message, frames, boundary, count)
        self._work.decode(
            label("decode_activation", slot, self.stage - 1), job, decoded, here=is_light(message, frames)
        )

    def _take_gradient(self, message: Gradient, frames: list[memoryview]) -> None:
        slot = message.slot
        count = self._microbatches.sample_count(slot)
        boundary = self.plan.boundaries[self.stage]

        def decoded(gradients: Gradients) -> None:
            self._gradients.setdefault(slot, gradients)
            self.handle(ev.GradientArrived(slot))

        job = partial(unpack_gradient, message, frames, boundary, count)
        self._work.decode(label("decode_gradient", slot, self.stage + 1), job, decoded, here=is_light(message, frames))

    def _take_tied(self, message: TiedGradient | TiedWeight, frames: list[memoryview]) -> None:
        like = self._compute.tied_parameter(message.parameter)
        step, parameter, kind = message.step, message.parameter, type(message)

        def decoded(tensor: Tensor) -> None:
            self._tied_arrived.setdefault((kind.__name__, step, parameter), tensor)
            arrived = ev.TiedGradientArrived if kind is TiedGradient else ev.TiedWeightArrived
            self.handle(arrived(step, parameter))

        what = Label("decode_tied", step, other=self._sender_of(message))
        self._work.decode(what, partial(unpack_tied, message.tensor, frames, like), decoded)

    # --- out ------------------------------------------------------------------------------------------------------

    def _carry_out(self, command: ev.StageCommand) -> None:
        match command:
            case ev.RunForward(slot):
                self._run_forward(slot)
            case ev.RunBackward(slot):
                self._run_backward(slot)
            case ev.SendActivation(slot):
                self._send_activation(slot)
            case ev.SendGradient(slot):
                self._send_gradient(slot)
            case ev.SendTiedGradients(step):
                self._send_tied(TiedGradient, step)
            case ev.AddTiedGradient(step, parameter):
                tensor = self._tied_arrived.pop(("TiedGradient", step, parameter))
                job = partial(self._compute.add_tied_gradient, parameter, tensor)
                self._work.compute(Label("sum", step), job, _nothing_more)
            case ev.SumGradients(step):
                self._sum_gradients(step)
            case ev.ApplyUpdate():
                self._apply_update(command)
            case ev.SendTiedWeights(step):
                self._send_tied(TiedWeight, step)
            case ev.SetTiedWeight(step, parameter):
                tensor = self._tied_arrived.pop(("TiedWeight", step, parameter))
                job = partial(self._compute.set_tied_weight, parameter, tensor)
                self._work.compute(Label("optimizer", step), job, _nothing_more)
            case ev.SaveState(step):
                self._save(step)
            case ev.SumEvaluation(step):
                self._sum_evaluation(step)
            case ev.Tell(message):
                self._around.tell(message)

    def _run_forward(self, slot: Slot) -> None:
        def done(output: Parcel | None) -> None:
            if output is not None:
                self._outputs[slot] = output
            self.handle(ev.ForwardDone(slot))

        job = partial(self._forward_job, slot, self._parcels.pop(slot, None))
        self._work.compute(label("evaluate" if slot.evaluation else "forward", slot), job, done)

    def _forward_job(self, slot: Slot, parcel: Parcel | None) -> Parcel | None:
        """Compute one forward; on the first stage the samples are read first. Runs in the compute thread."""
        if parcel is None:
            parcel = self._microbatches.load(slot)
        if slot.evaluation:
            output = self._compute.evaluate(slot, parcel.value, parcel.targets)
        else:
            self._microbatches.count_tokens(slot.step, parcel.targets)
            output = self._compute.forward(
                slot,
                parcel.value,
                parcel.targets,
                step_target_count=parcel.step_target_count,
                samples=parcel.samples,
            )
        is_last = self.stage == len(self.plan.stages) - 1
        return None if is_last else replace(parcel, value=output)

    def _run_backward(self, slot: Slot) -> None:
        def done(gradients: Gradients) -> None:
            if self.stage > 0:
                self._input_gradients[slot] = gradients
            self.handle(ev.BackwardDone(slot))

        job = partial(self._compute.backward, slot, self._gradients.pop(slot, None))
        self._work.compute(label("backward", slot), job, done)

    def _send_activation(self, slot: Slot) -> None:
        parcel, codec = self._outputs.pop(slot), self._forward_codec
        seed = self._codec_seed(codec, "forward", slot)
        job = partial(pack_activation, self.plan, slot, parcel, codec, seed)
        sent = partial(self._pass_on, label("sent_activation", slot, self.stage + 1), ACTIVATION_PRIORITY)
        what = label("encode_activation", slot, self.stage + 1)
        self._work.encode(what, job, sent, here=packs_lightly(codec, parcel.value, parcel.targets))

    def _send_gradient(self, slot: Slot) -> None:
        gradients, codec = self._input_gradients.pop(slot), self._backward_codec
        seed = self._codec_seed(codec, "backward", slot)
        job = partial(pack_gradient, self.plan, slot, gradients, codec, seed)
        sent = partial(self._pass_on, label("sent_gradient", slot, self.stage - 1), GRADIENT_PRIORITY)
        what = label("encode_gradient", slot, self.stage - 1)
        self._work.encode(what, job, sent, here=packs_lightly(codec, gradients))

    def _send_tied(self, kind: type[TiedGradient] | type[TiedWeight], step: int) -> None:
        is_gradient = kind is TiedGradient
        stages = self._tied.followed if is_gradient else self._tied.owned

        def read(tensors: dict[str, Tensor]) -> None:
            for parameter, tensor in tensors.items():
                other = stages[parameter]
                sent = partial(self._pass_on, Label("sent_tied", step, other=other), GRADIENT_PRIORITY)
                job = partial(pack_tied, kind, self.plan, step, parameter, tensor)
                self._work.encode(Label("encode_tied", step, other=other), job, sent)

        job = partial(self._compute.tied_gradients, step) if is_gradient else self._compute.tied_weights
        self._work.compute(Label("sum" if is_gradient else "optimizer", step), job, read)

    def _sum_gradients(self, step: int) -> None:
        def done(total: StepSums) -> None:
            self.handle(
                ev.GradientsSummed(
                    step, total.squared_norm, total.finite, total.loss_sum, total.target_count, total.samples
                )
            )

        self._work.compute(Label("sum", step), partial(self._compute.end_of_step, step), done)

    def _apply_update(self, order: ev.ApplyUpdate) -> None:
        step = order.step

        def done(_: None) -> None:
            statistics = self._work.step_over(self._compute.take_seconds(), self._microbatches.take_tokens(step))
            self.handle(ev.UpdateDone(step, statistics))

        job = partial(self._compute.apply, step, order.learning_rate, order.gradient_scale, order.skip)
        self._work.compute(Label("optimizer", step), job, done)

    def _save(self, step: int) -> None:
        job = partial(self._compute.snapshot, step)
        self._work.compute(Label("snapshot", step), job, partial(self._around.save, step))

    def _sum_evaluation(self, step: int) -> None:
        def done(summed: tuple[float, int]) -> None:
            self.handle(ev.EvaluationSummed(step, *summed))

        self._work.compute(Label("evaluate", step, -1, True), self._compute.end_of_evaluation, done)

    def _codec_seed(self, codec: Codec, way: str, slot: Slot) -> int:
        """Return what drives the rounding of a message; nothing is rounded by a lossless codec."""
        return 0 if codec.lossless else derive(self._spec.seed, "codec", way, self.stage, slot.step, slot.index)

    def _pass_on(self, what: Label, priority: int, outgoing: Outgoing) -> None:
        self._work.sent(what, outgoing)
        self._around.pass_on(what.other, outgoing, priority)

    def _failed(self, error: BaseException) -> None:
        if self._closed:
            return
        self.close()
        log.debug("where stage %d failed stands in the log", self.stage, exc_info=error)
        if not isinstance(error, StageError):
            error = StageError.of(error, stage=self.stage, step=self.core.step, what=self.core.doing())
        self._around.fail(error)


def _nothing_more(_: None) -> None:
    return None
