"""The yardstick's other side does the same job: its losses and norms are those of the plain loop of the numerics tests."""

import subprocess
import sys

import numpy as np
import pytest
from msgspec import json
from tests.numerics.reference import Reference

from brigade.coordinator.learning_rate import learning_rate
from brigade.coordinator.run_file import read_run_file
from brigade.lab.rival_job import Job
from brigade.partition.samples import open_data

STEPS = 6
RUN_FILE = """
name = "rivals"
seed = 5

[model]
kind = "gpt"
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2

[data]
kind = "text"
path = "text.txt"
sequence_length = 12
validation_fraction = 0.2

[training]
max_steps = 6
batch_size = 8
microbatches = 4
learning_rate = 1e-2
warmup_steps = 2
weight_decay = 0.1
max_grad_norm = 0.5
eval_batches = 0
"""


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    place = tmp_path_factory.mktemp("rivals")
    (place / "text.txt").write_bytes(bytes((i * i // 7 + i % 5) % 251 for i in range(1500)))
    (place / "run.toml").write_text(RUN_FILE)
    return place / "run.toml"


@pytest.fixture(scope="module")
def expected(run_file):
    spec = read_run_file(run_file).spec
    source = open_data(spec.data, run_file.parent / "text.txt")
    reference = Reference(spec, source, learning_rate=lambda step: learning_rate(spec.training, step))
    rows = reference.run(range(STEPS))
    return rows, reference.evaluate([np.array([i]) for i in range(source.validation_count)])


def said_by(program, jobs, place, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    processes = []
    for job in jobs:
        path = place / f"{program.rpartition('.')[2]}-{job.schedule}-{job.stage}.json"
        path.write_bytes(json.encode(job))
        processes.append(
            subprocess.Popen([sys.executable, "-m", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
    try:
        lines = processes[-1].stdout.read().splitlines()
        assert [process.wait(30) for process in processes] == [0] * len(jobs)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return [json.decode(line) for line in lines if line.startswith(b"{")]


def assert_same_course(said, expected):
    steps = [each for each in said if each["event"] == "step"]
    assert [each["step"] for each in steps] == list(range(1, STEPS + 1))
    for each, (loss, norm) in zip(steps, expected[0], strict=True):
        assert (each["loss"], each["gradient_norm"]) == pytest.approx((loss, norm), rel=1e-5)


def test_the_plain_loop(run_file, expected, monkeypatch):
    said = said_by("brigade.lab.rival_plain", [Job(run_file=str(run_file))], run_file.parent, monkeypatch)
    assert_same_course(said, expected)
    assert said[-1] == {"event": "evaluation", "step": STEPS, "loss": pytest.approx(expected[1], rel=1e-5)}


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("gpipe", marks=pytest.mark.slow)])
def test_torch_distributed_pipelining(run_file, expected, schedule, monkeypatch):
    meeting = run_file.parent / f"meeting-{schedule}"
    jobs = [
        Job(run_file=str(run_file), first_blocks=(0, 2), stage=stage, schedule=schedule, rendezvous=str(meeting))
        for stage in range(2)
    ]
    assert_same_course(said_by("brigade.lab.rival_pipelining", jobs, run_file.parent, monkeypatch), expected)
