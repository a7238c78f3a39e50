"""The ledger is judged against the seed, the bound against closed forms, and the result has its documented keys."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from brigade.coordinator.run_events import Commit, Evaluation
from brigade.coordinator.store import Store
from brigade.lab.bound import bound_of
from brigade.lab.examine import examine, judge_ledger
from brigade.lab.observed import Observed, SeenStep
from brigade.lab.relay_orders import Counted, RouteCount
from brigade.lab.result import Result
from brigade.lab.scenario import Scenario
from brigade.lab.scenario_spec import HostSpec, ScenarioSpec
from brigade.node.timeline import Action, StageBegan, to_lines
from brigade.partition.batching import Batching
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import NodeContact, Plan, StagePlan
from brigade.wire.run_spec import GptSpec, PipelineSpec, RunSpec, TextData, TrainingSpec

README = Path(__file__).parents[3] / "lab" / "README.md"
SAMPLES, BATCH = 20, 8
SPEC = RunSpec(
    name="toy",
    seed=3,
    model=GptSpec(),
    data=TextData(path="x"),
    training=TrainingSpec(max_steps=4, batch_size=BATCH, microbatches=4),
    pipeline=PipelineSpec(nodes=2),
)
STATISTICS = (
    StageStatistics(forward_s=0.4, backward_s=0.8, wall_s=2.0, wait_s=0.8, forward_bytes=80_000, tokens=800),
    StageStatistics(forward_s=0.2, backward_s=0.2, wall_s=2.0, wait_s=1.6, backward_bytes=40_000, tokens=800),
)
STAGES = tuple(
    StagePlan(contact=NodeContact(node_id=name, name=name, public_key="", endpoint=""), first_block=i, end_block=i + 1)
    for i, name in enumerate(("ada", "ben"))
)
HOSTS = (HostSpec(name="ada", up="1 Mbit/s"), HostSpec(name="ben", up="800 kbit/s"))


def commits(count=4):
    batching = Batching(samples=SAMPLES, batch_size=BATCH, microbatches=4, seed=3)
    return [
        Commit(
            step=step,
            attempt=1,
            generation=0,
            loss=5.0 - step,
            gradient_norm=1.0,
            learning_rate=0.1,
            gradient_scale=1.0,
            skipped=False,
            tokens=800,
            samples=tuple(int(i) for i in batching.sample_ids(step)),
            nodes=2,
            duration_s=1.0,
            statistics=STATISTICS,
        )
        for step in range(count)
    ]


def test_a_sound_ledger():
    ledger = judge_ledger(commits(), SPEC, SAMPLES)
    assert (ledger.lost, ledger.repeated) == (0, 0)
    assert ledger.committed == 8 + 8 + 4 + 8


def test_a_missing_and_a_doubled_sample_are_found():
    rows = commits()
    first, second = rows[0].samples[0], rows[1].samples[:2]
    rows[0] = replace(rows[0], samples=rows[0].samples[1:])
    rows[1] = replace(rows[1], samples=(*rows[1].samples, *second))
    ledger = judge_ledger(rows, SPEC, SAMPLES)
    assert (ledger.lost, ledger.repeated) == (1, 2)
    swapped = replace(commits()[0], samples=(first, first, *rows[0].samples[1:]))
    ledger = judge_ledger([swapped, *commits()[1:]], SPEC, SAMPLES)
    assert (ledger.lost, ledger.repeated) == (1, 1)


def test_a_missing_step_is_lost_samples():
    rows = commits()
    del rows[1]
    assert judge_ledger(rows, SPEC, SAMPLES).lost == BATCH
    assert judge_ledger([], SPEC, 0).committed == 0


@pytest.mark.parametrize(
    ("up", "period_s", "limited_by"),
    [
        ("1 Mbit/s", 0.3, "the device of ada"),  # (0.4 + 0.8) / 4, the uplink 20 kB / 125 kB/s = 0.16
        ("400 kbit/s", 0.4, "the uplink of ada, 400 kbit/s"),  # 20 kB a microbatch
    ],
)
def test_the_bound_is_the_time_of_the_busiest_device_or_line(up, period_s, limited_by):
    hosts = (HostSpec(name="ada", up=up), HOSTS[1])
    bound = bound_of(STAGES, STATISTICS, 4, hosts)
    assert bound.tokens_per_s == pytest.approx(800 / 4 / period_s)
    assert bound.limited_by == limited_by


def test_a_shared_pipe_carries_both_ways():
    hosts = (HostSpec(name="ada", up="400 kbit/s", pipe="shared"), HOSTS[1])
    bound = bound_of(STAGES, STATISTICS, 4, hosts)
    assert bound.tokens_per_s == pytest.approx(200 / (0.4 + 0.2))  # 20 kB of activations out, 10 kB of gradients in
    assert bound.limited_by == "the pipe of ada, 400 kbit/s"


def test_no_bound_without_steps_or_with_strangers():
    assert bound_of(STAGES, STATISTICS, 0, HOSTS) is None
    assert bound_of(STAGES, (), 4, HOSTS) is None
    assert bound_of(STAGES, STATISTICS, 4, HOSTS[:1]) is None


@pytest.fixture
def result(tmp_path):
    run_file = type("RunFile", (), {"spec": SPEC, "path": tmp_path / "run.toml"})()
    scenario = Scenario(path=tmp_path, spec=ScenarioSpec(name="toy", host=HOSTS), hosts=HOSTS, events=(), run=run_file)
    plan = Plan(
        run_id="r", generation=0, stages=STAGES, schedule="1f1b", microbatches=4, train_samples=SAMPLES,
        validation_samples=2, boundaries=(),
    )  # fmt: skip
    (tmp_path / "run").mkdir()
    with Store(tmp_path / "run" / "run.sqlite") as store:
        store.create_run("r", "i", SPEC)
        store.begin_attempt(1, 0, SPEC)
        store.save_plan(plan, 1)
        for commit in commits():
            store.save_commit(commit)
        store.save_evaluation(Evaluation(step=3, attempt=1, loss=2.5, target_count=9))
    (tmp_path / "nodes").mkdir()
    for stage, node, forward_s in ((0, "ada", 1.5), (1, "ben", 1.0)):
        began = StageBegan(run_id="r", generation=0, stage=stage, node=node, stages=2, at_s=99.0)
        actions = [
            Action("begun", 0, -1, 100.0, 100.0),
            Action("forward", 0, 0, 100.0, 100.0 + forward_s),
            Action("optimizer", 0, -1, 104.0, 105.0),
        ]
        (tmp_path / "nodes" / f"{node}.timeline").write_bytes(to_lines([began, *actions]))
    observed = Observed(7, exit_code=0, recoveries=1)
    observed.steps = [SeenStep(n, float(at), 1.0, 0) for n, at in ((1, 1), (2, 2), (2, 5), (3, 6), (4, 8))]
    observed.traffic = Counted((RouteCount("ada", "ben", 120, 100),), 0.0001, 0.002)
    return examine(scenario, tmp_path / "run", observed)


def test_the_result_of_a_run(result):
    assert (result.steps_committed, result.tokens, result.seconds) == (4, 3200, 8.0)
    assert result.tokens_per_s == 400.0
    assert result.bound_tokens_per_s == pytest.approx(800 / 1.2)
    assert result.efficiency == pytest.approx(0.6)
    assert (result.loss.first, result.loss.last, result.loss.validation) == (5.0, 2.0, 2.5)
    assert [(p.step, p.at_s, p.tokens) for p in result.loss.curve] == [
        (1, 1, 800),
        (2, 5, 1600),
        (3, 6, 2400),
        (4, 8, 3200),
    ]
    assert result.wire.activation_bytes_per_token == 100
    assert result.wire.gradient_bytes_per_token == 50
    assert result.wire.bytes == 100
    assert [stage.forward_s for stage in result.waits] == [1.5, 1.0]
    assert (result.links[0].source, result.links[0].target) == ("ada", "ben")
    assert result.limited_by.startswith(
        "waits that neither devices nor links explain: other programs on the machines, or a slower line: 60% of what"
    )
    assert result.ledger.committed == 28
    assert result.stages == ("ada: 0-0", "ben: 1-1")


def test_the_keys_are_those_that_are_documented(result):
    documented = set()
    for line in README.read_text().partition("## The result")[2].partition("\n## ")[0].splitlines():
        if line.startswith("| `"):
            documented.update(re.findall(r"`(\w+)`", line.split("|")[1]))
    assert set(json.loads(result.to_json())) == documented == set(Result.__struct_fields__)


def test_an_experiment_that_never_began_has_a_result_too(tmp_path):
    run_file = type("RunFile", (), {"spec": SPEC, "path": tmp_path / "run.toml"})()
    scenario = Scenario(path=tmp_path, spec=ScenarioSpec(name="toy", host=HOSTS), hosts=HOSTS, events=(), run=run_file)
    result = examine(scenario, tmp_path, Observed(1))
    assert (result.steps_committed, result.tokens_per_s, result.efficiency) == (0, 0.0, None)
