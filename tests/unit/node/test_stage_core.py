"""The stage core: whole pipelines of cores in one thread, every delivery order, repetitions, and its table."""

import random
from collections import Counter, deque
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brigade.node import stage_events as ev
from brigade.node.stage_core import TRANSITIONS, Phase, StageCore
from brigade.partition.batching import Batching
from brigade.partition.schedule import SCHEDULES
from brigade.wire.errors import LocalProtocolError, RemoteProtocolError
from brigade.wire.message_parts import Slot, StageStatistics
from brigade.wire.messages import Evaluated, GradientsReady, StepApplied
from brigade.wire.plan import NodeContact, Plan, StagePlan, TiedParameter


def make_plan(
    stages: int,
    microbatches: int,
    schedule: str,
    tied: bool,
    mode: str = "exact",
    versions: int = 1,
    warm_ups: tuple[int, ...] = (),
) -> Plan:
    return Plan(
        run_id="r",
        generation=1,
        stages=tuple(
            StagePlan(
                contact=NodeContact(node_id=f"n{k}", name=f"n{k}", public_key="", endpoint=""),
                first_block=2 * k,
                end_block=2 * k + 2,
            )
            for k in range(stages)
        ),
        schedule=schedule,
        microbatches=microbatches,
        train_samples=10,
        validation_samples=3,
        boundaries=(),
        tied=(TiedParameter(owner="0.w", followers=(f"{2 * stages - 1}.w",)),) if tied else (),
        mode=mode,
        versions=versions,
        warm_ups=warm_ups,
        slack=1 if warm_ups else 0,
    )


class Line:
    """Several stage cores; everything that is under way lies in one bag and is taken out in a seeded order."""

    def __init__(
        self, plan: Plan, steps: int, seed: int, evaluate_every: int = 2, repeat: float = 0.0, told_end: bool = False
    ) -> None:
        self.random = random.Random(seed)
        self.plan = plan
        self.steps = steps
        self.evaluate_every = evaluate_every
        self.repeat = repeat
        batching = Batching(samples=10, batch_size=4, microbatches=plan.microbatches, seed=3, shuffle=True)
        self.batching = batching
        end_step = steps if told_end else None
        self.cores = [StageCore(plan, k, batching, 2, 0, end_step=end_step) for k in range(len(plan.stages))]
        self.updates = [0] * len(plan.stages)
        self.local: list[deque[ev.StageEvent]] = [deque() for _ in plan.stages]
        self.bag: list[tuple[int, ev.StageEvent]] = []
        self.log: list[list[ev.StageCommand]] = [[] for _ in plan.stages]
        self.ready: dict[int, set[int]] = {}
        self.applied: dict[int, set[int]] = {}
        self.evaluated: list[int] = []

    def post(self, stage: int, event: ev.StageEvent) -> None:
        self.bag.append((stage, event))
        if self.random.random() < self.repeat:
            self.bag.append((stage, event))

    def feed(self, stage: int, event: ev.StageEvent) -> None:
        for command in self.cores[stage].handle(event, 0.0):
            self.log[stage].append(command)
            self.carry_out(stage, command)

    def carry_out(self, stage: int, command: ev.StageCommand) -> None:
        local = self.local[stage]
        match command:
            case ev.RunForward(slot):
                self.check_versions(stage, slot)
                local.append(ev.ForwardDone(slot))
            case ev.RunBackward(slot):
                local.append(ev.BackwardDone(slot))
            case ev.SendActivation(slot):
                self.post(stage + 1, ev.ActivationArrived(slot))
            case ev.SendGradient(slot):
                self.post(stage - 1, ev.GradientArrived(slot))
            case ev.SendTiedGradients(step):
                self.post(0, ev.TiedGradientArrived(step, self.plan.tied[0].followers[0]))
            case ev.SendTiedWeights(step):
                self.post(len(self.cores) - 1, ev.TiedWeightArrived(step, self.plan.tied[0].followers[0]))
            case ev.SumGradients(step):
                local.append(ev.GradientsSummed(step, 1.0, True, 0.0, 0, ()))
            case ev.ApplyUpdate(step, _, _, _):
                assert self.updates[stage] == step
                self.updates[stage] += 1
                local.append(ev.UpdateDone(step, StageStatistics()))
            case ev.SumEvaluation(step):
                local.append(ev.EvaluationSummed(step, 1.0, 1))
            case ev.Tell(GradientsReady(step=step, stage=teller)):
                ready = self.ready.setdefault(step, set())
                assert teller not in ready
                ready.add(teller)
                if len(ready) == len(self.cores) and step < self.steps:
                    self.decide(step)
            case ev.Tell(StepApplied(step=step, stage=teller)):
                assert teller not in self.applied.setdefault(step, set())
                self.applied[step].add(teller)
            case ev.Tell(Evaluated(step=step)):
                self.evaluated.append(step)
            case _:
                pass

    def check_versions(self, stage: int, slot: Slot) -> None:
        """A forward starts when its version is there, and before that version is overwritten."""
        wanted = slot.step + 1 if slot.evaluation else max(0, slot.step - self.plan.versions + 1)
        copies = self.plan.versions if self.plan.mode == "async" else 1
        oldest = self.updates[stage] - copies + 1
        assert max(0, oldest) <= wanted <= self.updates[stage] or (self.plan.mode == "lowmem" and not slot.evaluation)

    def decide(self, step: int) -> None:
        last = step + 1 == self.steps
        evaluate = (step + 1) % self.evaluate_every == 0
        for stage in range(len(self.cores)):
            decision = ev.StepDecided(step, 0.1, 1.0, step == 1, evaluate, step == 0, last)
            self.bag.append((stage, decision))

    def run(self) -> None:
        for stage in range(len(self.cores)):
            self.bag.append((stage, ev.TrainingBegun(0)))
        while True:
            choices: list[int] = [k for k, queue in enumerate(self.local) if queue]
            if self.bag and (not choices or self.random.random() < 0.5):
                self.feed(*self.bag.pop(self.random.randrange(len(self.bag))))
            elif choices:
                stage = self.random.choice(choices)
                self.feed(stage, self.local[stage].popleft())
            else:
                return


MODES = [*((name, "exact", 1) for name in sorted(SCHEDULES)), *(("ls-1f1b", "async", v) for v in (2, 3, 5))]
MODES.append(("ls-1f1b", "lowmem", 2))


@settings(max_examples=120, deadline=None)
@given(
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 6),
    course=st.sampled_from(MODES),
    tied=st.booleans(),
    seed=st.integers(0, 10**6),
    repeat=st.sampled_from([0.0, 0.4]),
    told_end=st.booleans(),
)
def test_every_delivery_order_ends_and_computes_each_microbatch_once(
    stages: int, microbatches: int, course: tuple[str, str, int], tied: bool, seed: int, repeat: float, told_end: bool
) -> None:
    schedule, mode, versions = course
    chance = random.Random(seed)
    warm_ups = tuple(chance.randint(0, 7) for _ in range(stages)) if schedule == "ls-1f1b" else ()
    if mode == "lowmem":
        warm_ups = tuple(sorted(warm_ups, reverse=True))  # a plan's always are
    plan = make_plan(stages, microbatches, schedule, tied and stages > 1, mode, versions, warm_ups)
    line = Line(plan, steps=5, seed=seed, repeat=repeat, told_end=told_end)
    line.run()
    for stage, core in enumerate(line.cores):
        assert core.phase is Phase.RESTING, core.doing()
        counts = Counter(command for command in line.log[stage] if isinstance(command, ev.RunForward | ev.RunBackward))
        assert set(counts.values()) == {1}
        wanted = {Slot(step=s, index=i) for s in range(5) for i in range(line.batching.microbatch_count(s))}
        held_out = {Slot(step=s, index=i, evaluation=True) for s in (1, 3) for i in range(2)}
        forwards = {c.slot for c in counts if isinstance(c, ev.RunForward)}
        backwards = {c.slot for c in counts if isinstance(c, ev.RunBackward)}
        assert wanted <= backwards <= forwards
        assert wanted | held_out == {slot for slot in forwards if slot.step < 5}
        assert (forwards == wanted | held_out) or (mode != "exact" and not told_end)
        saved = [c for c in line.log[stage] if isinstance(c, ev.SaveState)]
        assert saved == [ev.SaveState(0)]
    assert sorted(line.evaluated) == [1, 3]
    assert line.applied == {s: set(range(stages)) for s in range(5)}


def test_the_device_has_the_next_microbatch_before_the_one_under_way_is_done_and_no_more() -> None:
    plan = make_plan(2, 4, "gpipe", tied=False)
    core = StageCore(plan, 0, Batching(samples=4, batch_size=4, microbatches=4, seed=0, shuffle=False), 0, 0)
    slots = [Slot(step=0, index=index) for index in range(4)]
    assert core.handle(ev.TrainingBegun(0), 0.0) == [ev.RunForward(slots[0]), ev.RunForward(slots[1])]
    assert core.doing() == "forward of microbatch 0 of step 0"
    assert core.handle(ev.ForwardDone(slots[0]), 0.0) == [ev.RunForward(slots[2]), ev.SendActivation(slots[0])]
    assert core.doing() == "forward of microbatch 1 of step 0"
    with pytest.raises(LocalProtocolError):
        core.handle(ev.ForwardDone(slots[2]), 0.0)  # not yet: one is done after the other


def test_a_follower_waits_for_its_owners_weight_before_it_goes_on() -> None:
    plan = make_plan(2, 1, "1f1b", tied=True)
    batching = Batching(samples=4, batch_size=4, microbatches=1, seed=0, shuffle=False)
    core = StageCore(plan, 1, batching, 0, 0)
    slot = Slot(step=0, index=0)
    core.handle(ev.TrainingBegun(0), 0.0)
    commands = core.handle(ev.ActivationArrived(slot), 0.0)
    assert commands == [ev.RunForward(slot), ev.RunBackward(slot), ev.SendTiedGradients(0), ev.SumGradients(0)]
    assert core.handle(ev.ForwardDone(slot), 0.0) == []
    assert core.handle(ev.BackwardDone(slot), 0.0) == [ev.SendGradient(slot)]
    core.handle(ev.GradientsSummed(0, 1.0, True, 0.0, 4, ()), 0.0)
    core.handle(ev.StepDecided(0, 0.1, 1.0, False, False, False, False), 0.0)
    assert core.handle(ev.UpdateDone(0, StageStatistics()), 0.0) == []
    assert core.doing() == "waiting for tied weights (step 0)"
    commands = core.handle(ev.TiedWeightArrived(0, "3.w"), 0.0)
    assert commands[0] == ev.SetTiedWeight(0, "3.w")
    assert core.step == 1


@pytest.mark.parametrize(
    "event",
    [
        ev.ActivationArrived(Slot(step=2, index=0)),
        ev.ActivationArrived(Slot(step=0, index=4)),
        ev.ActivationArrived(Slot(step=0, index=-1)),
        ev.GradientArrived(Slot(step=0, index=0, evaluation=True)),
        ev.ActivationArrived(Slot(step=0, index=2, evaluation=True)),
        ev.TiedGradientArrived(0, "5.w"),
    ],
)
def test_what_a_neighbour_may_not_send_is_its_fault(event: ev.StageEvent) -> None:
    plan = make_plan(3, 4, "1f1b", tied=True)
    batching = Batching(samples=16, batch_size=4, microbatches=4, seed=0, shuffle=False)
    core = StageCore(plan, 1, batching, 2, 0)
    core.handle(ev.TrainingBegun(0), 0.0)
    with pytest.raises(RemoteProtocolError):
        core.handle(event, 0.0)


def test_repeated_and_stale_arrivals_are_counted_and_dropped() -> None:
    plan = make_plan(2, 2, "gpipe", tied=False)
    batching = Batching(samples=4, batch_size=2, microbatches=2, seed=0, shuffle=False)
    core = StageCore(plan, 1, batching, 0, 0)
    core.handle(ev.TrainingBegun(0), 0.0)
    arrival = ev.ActivationArrived(Slot(step=0, index=0))
    assert core.handle(arrival, 0.0) == [ev.RunForward(Slot(step=0, index=0))]
    assert core.handle(arrival, 0.0) == []
    core.handle(ev.ForwardDone(Slot(step=0, index=0)), 0.0)
    assert core.handle(arrival, 0.0) == []
    assert core.dropped.total() == 2


def test_with_two_versions_a_stage_runs_on_while_a_step_is_decided() -> None:
    plan = make_plan(1, 2, "ls-1f1b", False, "async", 2, (1,))
    batching = Batching(samples=8, batch_size=2, microbatches=2, seed=0, shuffle=False)
    core = StageCore(plan, 0, batching, 0, 0)
    ordered = deque(core.handle(ev.TrainingBegun(0), 0.0))
    done = []
    while ordered:
        command = ordered.popleft()
        if isinstance(command, ev.RunForward | ev.RunBackward):
            done.append(f"{type(command).__name__[3]}{command.slot.step}.{command.slot.index}")
            event = ev.ForwardDone if isinstance(command, ev.RunForward) else ev.BackwardDone
            ordered += core.handle(event(command.slot), 0.0)
        else:
            done.append(type(command).__name__)
    together = " ".join(done)
    assert together == "F0.0 F0.1 B0.0 F1.0 B0.1 SumGradients F1.1 B1.0 B1.1 SumGradients"
    assert core.doing() == "summing gradients (step 0)"
    core.handle(ev.GradientsSummed(0, 1.0, True, 0.0, 0, ()), 0.0)
    core.handle(ev.GradientsSummed(1, 1.0, True, 0.0, 0, ()), 0.0)
    update = core.handle(ev.StepDecided(0, 0.1, 1.0, False, False, False, False, warm_up=0), 0.0)
    assert update == [ev.ApplyUpdate(0, 0.1, 1.0, False)]
    commands = core.handle(ev.UpdateDone(0, StageStatistics()), 0.0)
    slot = Slot(step=2, index=0)
    assert commands[-2:] == [ev.RunForward(slot), ev.RunBackward(slot)], "the new warm-up holds"


def test_the_table_covers_every_phase_and_event() -> None:
    assert set(TRANSITIONS) == {(phase, event) for phase in Phase for event in get_args(ev.StageEvent)}


def test_an_impossible_event_is_our_own_bug() -> None:
    plan = make_plan(1, 1, "1f1b", tied=False)
    core = StageCore(plan, 0, Batching(samples=4, batch_size=2, microbatches=1, seed=0, shuffle=False), 0, 0)
    with pytest.raises(LocalProtocolError, match="while waiting for the other stages"):
        core.handle(ev.GradientsSummed(0, 1.0, True, 0.0, 0, ()), 0.0)
