"""Predicted experiments against sums by hand: steps, evaluations, and what events do to them."""

from itertools import pairwise

import msgspec
import pytest
from tests.unit.partition.planning_cases import boundary

from brigade.coordinator.costs import Costs, LinkCosts, NodeCosts
from brigade.coordinator.run_closing import STOPPED
from brigade.lab.examine import examine_prediction
from brigade.lab.predict import predict
from brigade.lab.predicted_events import RESTART_S
from brigade.lab.scenario import read_scenario
from brigade.partition.prediction import MESSAGE_BYTES, Handling
from brigade.wire.costs import BlockCost

RUN = """
name = "toy"
[model]
kind = "gpt"
num_hidden_layers = 2
[data]
kind = "text"
path = "text.txt"
sequence_length = 8
validation_fraction = 0.1
[training]
max_steps = 6
batch_size = 8
microbatches = 4
eval_steps = 3
eval_batches = 2
save_steps = 2
[pipeline]
nodes = {nodes}
silence_limit_s = {silence}
"""
HOSTS = """
name = "toy"
limit_s = {limit_s}
{host}
[coordinator]
latency_ms = 5
"""
HOST = """
[[host]]
name = "{name}"
up = "8 Mbit/s"
down = "8 Mbit/s"
latency_ms = 10
"""
FORWARD_S, BACKWARD_S, K = 0.1, 0.2, 4
BLOCKS = 4  # embedding, two layers, head
BYTES = 1000  # of a boundary
SILENCE_S = 5.0
ROUND_S = 2 * 0.015  # to the coordinator and back


class Given:
    """Equal blocks on all hosts; a slower host computes slower."""

    def __init__(self, *names):
        self.names = names

    def costs(self, slowed, rates):
        def block(times, output_bytes):
            return BlockCost(
                forward_s=FORWARD_S * times,
                backward_s=BACKWARD_S * times,
                optimizer_s=0.0,
                parameter_bytes=1,
                gradient_bytes=1,
                optimizer_bytes=1,
                saved_bytes=1,
                output_bytes=output_bytes,
            )

        def node(name):
            times = slowed.get(name, 1.0)
            blocks = (block(times, BYTES), block(times, BYTES), block(times, BYTES), block(times, 0))
            return NodeCosts(blocks=blocks, memory_bytes=10**9, coordinator_way_s=0.015)

        return Costs(
            fingerprint="f",
            microbatch_samples=2,
            boundaries=tuple(boundary(b) for b in range(BLOCKS - 1)),
            nodes={name: node(name) for name in self.names},
            links=tuple(
                LinkCosts(source=a, target=b, rtt_s=0.04, bytes_per_s=1e6)
                for a in self.names
                for b in self.names
                if a != b
            ),
        )


@pytest.fixture
def toy(tmp_path):
    def make(*names, nodes=None, events="", handling=None, seed=None, limit_s=600.0):
        (tmp_path / "text.txt").write_bytes(bytes(range(256)) * 20)
        (tmp_path / "run.toml").write_text(RUN.format(nodes=nodes or len(names), silence=SILENCE_S))
        hosts = "".join(HOST.format(name=name) for name in names)
        (tmp_path / "scenario.toml").write_text(HOSTS.format(host=hosts, limit_s=limit_s) + events)
        scenario = read_scenario(tmp_path / "scenario.toml")
        given = Given(*names)
        made = predict(scenario, scenario.run.data, given, handling or Handling(optimizer_s=0.01), seed)
        return examine_prediction(scenario, made, given.costs({}, {}))

    return make


def steps_of(result):
    at = [0.0, *(point.at_s for point in result.loss.curve)]
    return [b - a for a, b in pairwise(at)]


def event(kind, **keys):
    return f'[[event]]\nkind = "{kind}"\n' + "".join(f"{key} = {value}\n" for key, value in keys.items())


ALONE_S = K * BLOCKS * (FORWARD_S + BACKWARD_S) + ROUND_S + 0.01
EVALUATION_S = 2 * BLOCKS * FORWARD_S


def test_a_single_stage_by_hand(toy) -> None:
    result = toy("ada")
    expected = [ALONE_S] * 6
    expected[3] += EVALUATION_S  # after the third step; that after the last is not waited for
    assert steps_of(result) == pytest.approx(expected)
    assert result.predicted
    assert (result.exit_code, result.recoveries, result.steps_committed) == (0, 0, 6)
    assert result.tokens == 6 * 8 * 8
    assert (result.loss.first, result.loss.validation) == (None, None)
    assert [point.loss for point in result.loss.curve] == [None] * 6
    assert msgspec.to_builtins(result.ledger) == {"committed": 48, "lost": 0, "repeated": 0}
    assert result.tokens_per_s == pytest.approx(result.tokens / sum(expected))


def test_two_stages_by_hand(toy) -> None:
    handling = Handling(encode_s=0.003, decode_s=0.002, message_s=0.001, turn_s=0.004, round_s=0.005, optimizer_s=0.01)
    result = toy("ada", "bob", handling=handling)
    forward, backward = 2 * FORWARD_S + 0.004, 2 * BACKWARD_S + 0.004
    hop = 0.003 + (BYTES + MESSAGE_BYTES) / 1e6 + 0.02 + 0.001 + 0.002
    # 1F1B: forwards 0 and 1 go out at once; then each backward at the last stage lets the first go on after a round trip
    first = [0.0, forward]  # begins of forwards at the first stage
    last_free, first_free, back = 0.0, 2 * forward, []
    for index in range(K):
        last_free = max(last_free, first[index] + forward + hop) + forward + backward
        first_free = max(first_free, last_free + hop) + backward
        back.append(first_free)
        if index + 2 < K:
            first.append(first_free)
            first_free += forward
    step = back[-1] + ROUND_S + 0.005 + 0.01
    assert steps_of(result)[0] == pytest.approx(step)
    assert steps_of(result)[1] == pytest.approx(step)


def test_the_parts_of_waits_add_up(toy) -> None:
    result = toy("ada", "bob", "cyd", handling=Handling(encode_s=0.003, decode_s=0.002, optimizer_s=0.01))
    for stage in result.waits:
        facts = msgspec.structs.asdict(stage)
        parts = [v for k, v in facts.items() if k.endswith("_s") and k not in ("wall_s", "encode_s", "decode_s")]
        assert sum(parts) == pytest.approx(stage.wall_s, rel=0.02)
        assert stage.wall_s == pytest.approx(result.seconds, rel=0.02)
    carried = {(route.source, route.target): route.delivered for route in result.wire.routes}
    (near, far) = (result.waits[0].node, result.waits[1].node)
    assert carried[near, far] >= (BYTES + MESSAGE_BYTES) * K * 6


def test_a_slower_device_is_slower_from_then_on(toy) -> None:
    result = toy("ada", events=event("slow", host='"ada"', factor=2, at_step=1))
    assert steps_of(result)[:3] == pytest.approx([ALONE_S, 2 * ALONE_S - ROUND_S, 2 * ALONE_S - ROUND_S])
    assert result.events[-1] == (pytest.approx(ALONE_S, abs=1e-3), "ada computes 2 times slower")


def test_a_lid_that_is_closed_for_a_moment_stalls(toy) -> None:
    events = event("suspend", host='"ada"', at_s=1.0) + event("resume", host='"ada"', at_s=4.0)
    result = toy("ada", events=events)
    assert steps_of(result)[0] == pytest.approx(ALONE_S + 3)
    assert result.recoveries == 0


def test_a_killed_node_costs_what_no_checkpoint_holds(toy) -> None:
    plain = toy("ada", "bob", nodes=1)
    assert plain.stages == ("ada: 0-3",)
    result = toy("ada", "bob", nodes=1, events=event("kill", host='"ada"', at_s=round(3.5 * ALONE_S, 3)))
    assert result.recoveries == 1
    assert result.stages == ("bob: 0-3",)
    texts = [text for _, text in result.events]
    assert texts[1:3] == ["ada is killed", "the run is taken up again from its last checkpoint (step 2) with bob"]
    away_s = SILENCE_S + RESTART_S
    again = 3.5 * ALONE_S + away_s  # from the checkpoint of two steps
    assert result.loss.curve[1].at_s == pytest.approx(2 * ALONE_S)
    assert result.loss.curve[2].at_s == pytest.approx(again + ALONE_S, rel=1e-3)
    assert msgspec.to_builtins(result.ledger) == {"committed": 48, "lost": 0, "repeated": 0}
    assert sum(stage.recovery_s for stage in result.waits) == pytest.approx(away_s, rel=0.01)


def test_a_node_that_leaves_ends_its_step_first(toy) -> None:
    result = toy("ada", "bob", nodes=1, events=event("leave", host='"ada"', at_s=1.0))
    assert result.loss.curve[0].at_s == pytest.approx(ALONE_S)
    assert result.loss.curve[1].at_s == pytest.approx(2 * ALONE_S + RESTART_S, rel=1e-3)


def test_too_few_nodes_end_the_run(toy) -> None:
    result = toy("ada", "bob", events=event("kill", host='"ada"', at_step=2))
    assert (result.exit_code, result.steps_committed) == (1, 2)
    assert "only 1 of 2 nodes are left" in result.reason


def test_the_limit_ends_a_prediction_as_it_ends_a_run(toy) -> None:
    result = toy("ada", limit_s=round(2.5 * ALONE_S, 3))
    assert result.steps_committed == 3  # the step that is under way is done and saved
    assert result.exit_code == STOPPED
    assert result.reason == f"the limit of {2.5 * ALONE_S:g} s is reached"
    assert result.events[-1] == (pytest.approx(2.5 * ALONE_S), result.reason)
    whole = toy("ada", limit_s=7 * ALONE_S + EVALUATION_S)
    assert (whole.steps_committed, whole.exit_code, whole.reason) == (6, 0, "")


def test_nothing_happens_after_the_limit(toy) -> None:
    kill = event("kill", host='"ada"', at_s=round(3.5 * ALONE_S, 3))
    result = toy("ada", "bob", nodes=1, events=kill, limit_s=round(3.2 * ALONE_S, 3))
    assert (result.steps_committed, result.recoveries) == (4, 0)
    assert all(text != "ada is killed" for _, text in result.events)


def test_a_limit_during_a_recovery_leaves_what_the_checkpoint_holds(toy) -> None:
    kill = event("kill", host='"ada"', at_s=round(3.5 * ALONE_S, 3))
    result = toy("ada", "bob", nodes=1, events=kill, limit_s=round(3.5 * ALONE_S + 1.0, 3))
    assert (result.steps_committed, result.exit_code) == (2, STOPPED)


def test_a_plan_that_ends_before_its_first_microbatch_is_back_is_no_mistake(toy) -> None:
    kill = event("kill", host='"ada"', at_s=0.05)
    result = toy("ada", "bob", nodes=1, events=kill, limit_s=1.0)
    assert result.exit_code == STOPPED


def test_whoever_comes_is_waited_for(toy) -> None:
    events = event("kill", host='"ada"', at_step=2) + event("join", host='"ada"', at_s=60.0)
    result = toy("ada", "bob", events=events)
    assert (result.exit_code, result.recoveries) == (0, 1)
    assert result.loss.curve[2].at_s > 60 + RESTART_S


def test_an_uplink_that_gets_slow_sets_the_pace(toy) -> None:
    result = toy("ada", "bob", events=event("link_rate", host='"ada"', up='"2 kbit/s"', at_step=1))
    assert steps_of(result)[2] > K * (BYTES + MESSAGE_BYTES) / 250 > 3 * steps_of(result)[0]


def test_a_link_that_is_cut_for_a_while_holds_values_up(toy) -> None:
    events = event("link_down", host='"ada"', other='"bob"', at_step=1) + event("link_up", host='"ada"', at_s=6.0)
    plain, cut = toy("ada", "bob"), toy("ada", "bob", events=events)
    assert cut.recoveries == 0
    assert steps_of(plain)[1] + 1 < steps_of(cut)[1] < steps_of(plain)[1] + 6
    assert steps_of(cut)[2] == pytest.approx(steps_of(plain)[2])


def test_equal_arguments_give_equal_predictions(toy) -> None:
    events = event("kill", host='"ada"', at_step=2) + event("join", host='"ada"', at_s=60.0)
    assert toy("ada", "bob", events=events, seed=3).to_json() == toy("ada", "bob", events=events, seed=3).to_json()
