"""Experiments that never were: results and timelines of any size, with values that a test can foretell."""

from brigade.lab.relay_orders import RouteCount
from brigade.lab.report.reported import Reported
from brigade.lab.result import RESULT_VERSION, Ledger, LinkUse, Losses, Point, Result, StageWaits, Wire
from brigade.node.timeline import Action, StageBegan, StageLife

FORWARD_S, BACKWARD_S, WAY_S, STEP_S = 0.010, 0.020, 0.005, 0.5
BEGAN_AT_S = 1_700_000_000.0
TOKENS = 1000  # of a step


def made_up_result(nodes=4, *, steps=10, spares=0, name="made-up", events=(), step_s=1.0, **changes):
    """Return the result of a run whose step s (from 1) is committed at s * step_s with a loss of 5 / s."""
    names = [f"node-{i}" for i in range(nodes)]
    everybody = [*names, *(f"spare-{i}" for i in range(spares)), "coordinator"]
    routes = [RouteCount(a, b, 1000, 1000) for a in everybody for b in everybody if a != b and "coordinator" in (a, b)]
    for i in range(nodes - 1):
        routes += [
            RouteCount(names[i], names[i + 1], 4_000_000, 4_000_000),
            RouteCount(names[i + 1], names[i], 1_000_000, 1_000_000),
        ]
    curve = tuple(Point(s, s * step_s, s * TOKENS, 5 / s) for s in range(1, steps + 1))
    facts = {
        "version": RESULT_VERSION, "scenario": name, "seed": 7, "exit_code": 0, "reason": "",
        "steps_committed": steps, "max_steps": steps, "tokens": steps * TOKENS, "seconds": steps * step_s,
        "tokens_per_s": TOKENS / step_s, "bound_tokens_per_s": 2 * TOKENS / step_s, "efficiency": 0.5,
        "limited_by": "the uplink of node-0, 10 Mbit/s: 50% of what these stages can do",
        "loss": Losses(
            first=5.0, last=5 / steps, validation=5 / steps, curve=curve, held_out=((5, 1.1), (steps, 0.6)),
        ),
        "wire": Wire(activation_bytes_per_token=130.0, gradient_bytes_per_token=120.0, bytes=12_345_678, routes=tuple(routes)),
        "waits": tuple(made_up_waits(i, names[i]) for i in range(nodes)),
        "links": tuple(made_up_links(names)), "stages": tuple(f"{name}: {i}-{i}" for i, name in enumerate(names)), "recoveries": 0, "moves": 0,
        "ledger": Ledger(committed=8 * steps, lost=0, repeated=0),
        "events": ((-3.0, "plan 0: the way it is (because)"), (0.0, "training begins at step 0"), *events),
        "relay_late_mean_s": 0.0003, "relay_late_most_s": 0.02,
    }  # fmt: skip
    return Result(**(facts | changes))


def made_up_links(names):
    """Yield links that are busy for 0, 10, 20, ... 100 % of the time, and one of which nothing is known."""
    pairs = [pair for i in range(len(names) - 1) for pair in ((names[i], names[i + 1]), (names[i + 1], names[i]))]
    for number, (source, target) in enumerate(pairs):
        busy = number % 12 / 10 if number % 12 < 11 else None
        yield LinkUse(source=source, target=target, bytes=900_000, busy_share=busy, sending_s=2.0, waiting_s=1.0)


def made_up_waits(stage, node, wall_s=10.0):
    """Return what a stage did: 20 % forwards, 40 % backwards, 5 % optimizer; the rest it waited."""
    shares = {"forward_s": 0.2, "backward_s": 0.4, "optimizer_s": 0.05, "starved_s": 0.25, "sending_s": 0.1}
    facts = {key: share * wall_s for key, share in (shares | {"encode_s": 0.03, "decode_s": 0.02}).items()}
    return StageWaits(stage=stage, node=node, wall_s=wall_s, **facts)


def made_up_lives(nodes=4, *, steps=3, microbatches=4, generation=0, began_at_s=BEGAN_AT_S):
    """Return the timelines of a GPipe pipeline with equal stages: all forwards, then all backwards, one update."""
    lives = []
    for stage in range(nodes):
        began = StageBegan(
            run_id="r", generation=generation, stage=stage, node=f"node-{stage}", stages=nodes, at_s=began_at_s
        )
        actions = [Action("begun", 0, -1, began_at_s, began_at_s)]
        for step in range(steps):
            actions += _step(step, stage, nodes, microbatches, began_at_s + step * step_length(nodes, microbatches))
        lives.append(StageLife(began, actions))
    return lives


def step_length(nodes, microbatches):
    """Return the seconds of a step: fill, drain, and the update."""
    way = (nodes - 1) * WAY_S
    return (nodes - 1 + microbatches) * (FORWARD_S + BACKWARD_S) + 2 * way + STEP_S


def _step(step, stage, nodes, microbatches, begin_s):
    turn_s = begin_s + (nodes - 1 + microbatches) * FORWARD_S + (nodes - 1) * WAY_S
    back = nodes - 1 - stage
    actions = []
    for index in range(microbatches):
        at_s = begin_s + (stage + index) * FORWARD_S + stage * WAY_S
        done_s = at_s + FORWARD_S
        if stage > 0:
            actions.append(Action("arrived_activation", step, index, at_s, at_s, other=stage - 1, bytes=500))
        actions.append(Action("forward", step, index, at_s, done_s))
        if stage < nodes - 1:
            actions.append(Action("encode_activation", step, index, done_s, done_s + 0.001))
            actions.append(Action("sent_activation", step, index, done_s, done_s + 0.001, other=stage + 1, bytes=500))
    for index in range(microbatches):
        at_s = turn_s + (back + index) * BACKWARD_S + back * WAY_S
        done_s = at_s + BACKWARD_S
        if stage < nodes - 1:
            actions.append(Action("arrived_gradient", step, index, at_s, at_s, other=stage + 1, bytes=400))
        actions.append(Action("backward", step, index, at_s, done_s))
        if stage > 0:
            actions.append(Action("sent_gradient", step, index, done_s, done_s + 0.001, other=stage - 1, bytes=400))
    end_s = begin_s + step_length(nodes, microbatches)
    return [*actions, Action("optimizer", step, -1, end_s - STEP_S, end_s - STEP_S + 0.05)]


def made_up(nodes=4, *, title="made-up", timelines=True, **facts):
    """Return an experiment as the page takes it."""
    lives = tuple(made_up_lives(nodes)) if timelines else ()
    return Reported(title=title, result=made_up_result(nodes, name=title, **facts), lives=lives, place="runs/made-up")
