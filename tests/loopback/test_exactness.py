"""The whole program, processes and sockets included, against a plain torch loop."""

import pytest
import torch
from safetensors.torch import load_file
from tests.numerics.comparison import assert_same_state
from tests.numerics.delayed_reference import DelayedReference
from tests.numerics.reference import Reference
from tests.numerics.stage_line import same_losses

from brigade.cli.fleet import Fleet
from brigade.coordinator.learning_rate import learning_rate
from brigade.coordinator.run_file import read_run_file
from brigade.coordinator.store import Store
from brigade.partition.samples import open_data
from brigade.partition.schedule import SCHEDULES

RUN_FILE = """
name = "exact"
seed = 11
output_dir = "{output_dir}"

[model]
kind = "gpt"
hidden_size = 16
num_hidden_layers = 3
num_attention_heads = 2
tie_word_embeddings = true
dropout = 0.2

[data]
kind = "text"
path = "text.txt"
sequence_length = 12
validation_fraction = 0.2

[training]
max_steps = 20
batch_size = 7
microbatches = 3
learning_rate = 1e-2
lr_scheduler_type = "cosine"
warmup_steps = 4
weight_decay = 0.1
max_grad_norm = 0.5
eval_steps = 5
eval_batches = 0
gradient_checkpointing = true

[pipeline]
nodes = {nodes}
stages = {nodes}
schedule = "{schedule}"
mode = "{mode}"
"""


@pytest.mark.parametrize(("nodes", "schedule"), [(1, "1f1b"), *((3, name) for name in SCHEDULES)])
def test_a_fleet_trains_what_one_process_trains(tmp_path, monkeypatch, nodes, schedule):
    path, run_dir = train(tmp_path, monkeypatch, nodes, schedule)
    with Store(run_dir / "run.sqlite", readonly=True) as store:
        commits, evaluations = list(store.commits()), store.evaluations()

    spec = read_run_file(path).spec
    source = open_data(spec.data, tmp_path / "text.txt")
    assert source.train_count % spec.training.batch_size, "the last batch of an epoch is smaller"
    assert source.train_count < 20 * spec.training.batch_size, "more than one epoch"
    reference = Reference(spec, source, learning_rate=lambda step: learning_rate(spec.training, step))
    held_out = {evaluation.step: evaluation.loss for evaluation in evaluations}
    assert sorted(held_out) == [4, 9, 14, 19]
    assert [commit.step for commit in commits] == list(range(20))
    for commit in commits:
        loss, norm = reference.step(commit.step)
        assert commit.loss == pytest.approx(loss, rel=1e-5)
        assert commit.gradient_norm == pytest.approx(norm, rel=1e-5)
        assert sorted(commit.samples) == sorted(reference.batching.sample_ids(commit.step).tolist())
        if commit.step in held_out:
            batches = [[i] for i in range(source.validation_count)]
            expected = reference.evaluate([torch.tensor(ids).numpy() for ids in batches])
            assert held_out[commit.step] == pytest.approx(expected, rel=1e-5)
    assert_same_state(load_file(run_dir / "model.safetensors"), reference.state())


def test_a_fleet_whose_steps_overlap_trains_what_a_loop_with_older_weights_trains(tmp_path, monkeypatch):
    path, run_dir = train(tmp_path, monkeypatch, 3, "1f1b", "async")
    with Store(run_dir / "run.sqlite", readonly=True) as store:
        commits, evaluations, plan = list(store.commits()), store.evaluations(), store.latest_plan()
    assert (plan.mode, plan.versions, plan.schedule) == ("async", 2, "ls-1f1b")
    spec = read_run_file(path).spec
    reference = DelayedReference(
        spec,
        open_data(spec.data, tmp_path / "text.txt"),
        [0, *(stage.end_block for stage in plan.stages)],
        versions=2,
        learning_rate=lambda step: learning_rate(spec.training, step),
    )
    same_losses(commits, reference.run(range(20)))
    assert sorted(evaluation.step for evaluation in evaluations) == [4, 9, 14, 19]
    exported, expected = load_file(run_dir / "model.safetensors"), reference.state()
    assert all(torch.equal(exported[key], value) for key, value in expected.items())


def train(tmp_path, monkeypatch, nodes, schedule, mode="exact"):
    """Let processes train; return the run file and the run's directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run_dir, path = tmp_path / "run", tmp_path / "exact.toml"
    (tmp_path / "text.txt").write_bytes(bytes((i * i // 7 + i % 5) % 251 for i in range(650)))
    path.write_text(RUN_FILE.format(output_dir=run_dir, nodes=nodes, schedule=schedule, mode=mode))
    with Fleet() as fleet:
        coordinator = fleet.start(
            "coordinator", "up", path, "--listen", "127.0.0.1:0", output=tmp_path / "coordinator.txt"
        )
        fleet.wait_for_file(run_dir / "invite.txt", coordinator, deadline_s=60.0)
        for number in range(nodes):
            state = ("--state", tmp_path / f"node-{number}", "--device", "cpu", "--listen", "127.0.0.1:0")
            fleet.start(f"n{number}", "join", run_dir / "invite.txt", *state, output=tmp_path / f"n{number}.txt")
        assert fleet.wait(coordinator) == 0, (tmp_path / "coordinator.txt").read_text()
    return path, run_dir
