"""What the README tells a person to type, with real processes on this machine and a tiny model."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from brigade.cli.fleet import Fleet
from brigade.partition.chain import plain_model
from brigade.wire.run_spec import GptSpec

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
READY_S = 60.0
RUN_FILE = """
name = "tiny"
output_dir = "{output_dir}"

[model]
kind = "gpt"
hidden_size = 16
num_hidden_layers = 3
num_attention_heads = 2

[data]
kind = "text"
path = "{text}"
sequence_length = 16

[training]
max_steps = {steps}
batch_size = 8
microbatches = 4
learning_rate = 1e-2
max_grad_norm = 1.0
eval_steps = 4
eval_batches = 2
save_steps = 4

[pipeline]
nodes = 3
gather_timeout_s = 120

[compression]
forward = "int8:block=64+zstd"
backward = "bf16"
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def run_file(tmp_path, run_dir):
    def write(steps):
        path = tmp_path / "tiny.toml"
        path.write_text(RUN_FILE.format(output_dir=run_dir, text=ROOT / "examples/shakespeare.txt", steps=steps))
        return path

    return write


def brigade(*arguments, timeout=120):
    command = [sys.executable, "-m", "brigade.cli.app", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def start(fleet, tmp_path, run_file, run_dir, *flags):
    """Start a coordinator and three nodes; return the coordinator."""
    (run_dir / "invite.txt").unlink(missing_ok=True)
    log = tmp_path / "coordinator.txt"
    coordinator = fleet.start("coordinator", "up", run_file, "--listen", "127.0.0.1:0", *flags, output=log)
    fleet.wait_for_file(run_dir / "invite.txt", coordinator, deadline_s=READY_S)
    for name in ("ada", "grace", "linus"):
        state = tmp_path / "nodes" / name
        state.parent.mkdir(exist_ok=True)
        arguments = ("--name", name, "--state", state, "--device", "cpu", "--threads", "1", "--listen", "127.0.0.1:0")
        fleet.start(name, "join", run_dir / "invite.txt", *arguments, output=tmp_path / f"{name}.txt")
    return coordinator


def said(tmp_path):
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(tmp_path.glob("*.txt")))


def test_three_nodes_train_to_the_end_and_the_model_loads(tmp_path, run_dir, run_file):
    with Fleet() as fleet:
        coordinator = start(fleet, tmp_path, run_file(8), run_dir)
        assert fleet.wait(coordinator) == 0, said(tmp_path)
        assert not fleet.settle(deadline_s=20.0), "every node ends with its run"
        assert [member.process.returncode for member in fleet.members] == [0, 0, 0, 0], said(tmp_path)

    spec = GptSpec(hidden_size=16, num_hidden_layers=3, num_attention_heads=2)
    weights = load_file(run_dir / "model.safetensors")
    trained, untrained = plain_model(spec, 0), plain_model(spec, 0)
    trained.load_state_dict(weights, strict=True)
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert any(not torch.equal(a, b) for a, b in zip(trained.parameters(), untrained.parameters(), strict=True))

    status = brigade("status", "--json")
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["state"] == "finished"
    table = brigade("status", run_dir)
    assert table.returncode == 0, table.stderr
    assert "finished" in table.stdout

    exported = brigade("export", run_dir, "--output", tmp_path / "again.safetensors")
    assert exported.returncode == 0, exported.stderr
    again = load_file(tmp_path / "again.safetensors")
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[name], again[name]) for name in weights)

    secret = re.search(r"brigade1-\S{20,}", (run_dir / "invite.txt").read_text())
    assert secret, "the invite file holds the invite"
    assert secret[0] not in (run_dir / "log.jsonl").read_text()
    assert (run_dir / "invite.txt").stat().st_mode & 0o077 == 0


def test_a_run_that_is_stopped_goes_on_where_it_was(tmp_path, run_dir, run_file):
    path = run_file(100_000)
    with Fleet() as fleet:
        coordinator = start(fleet, tmp_path, path, run_dir)
        fleet.wait_for_file(run_dir / "checkpoints" / "step-000004" / "manifest.json", coordinator, deadline_s=READY_S)
        table = brigade("status")
        assert table.returncode == 0, table.stderr
        assert all(name in table.stdout for name in ("ada", "grace", "linus"))
        stopped = brigade("stop")
        assert stopped.returncode == 0, stopped.stderr
        assert fleet.wait(coordinator) == 3, said(tmp_path)
        assert not fleet.settle(deadline_s=20.0)
    done = json.loads(brigade("status", "--json").stdout)["step"]
    assert done > 4

    run_file(done + 5)
    with Fleet() as fleet:
        coordinator = start(fleet, tmp_path, path, run_dir, "--resume")
        assert fleet.wait(coordinator) == 0, said(tmp_path)
    after = json.loads(brigade("status", "--json").stdout)
    assert (after["state"], after["step"]) == ("finished", done + 5)


def test_the_demo_shows_what_came_out(tmp_path):
    done = brigade(
        "demo", "--steps", "8", "--output-dir", tmp_path / "demo", "--json", tmp_path / "demo.json", timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "demo.json").read_text())
    assert facts["steps"] == 8
    assert [step for step, _ in facts["train_loss"]] == list(range(1, 9))
    # What a single process measures on the exported model is what the pipeline measured, codecs aside.
    assert facts["validation_loss"] == pytest.approx(facts["evaluations"][-1][1], rel=0.02)
    assert 2.4 < facts["bigram_loss"] < facts["unigram_loss"] < 3.4
    assert len(facts["links"]) == 2 * (len(facts["stages"]) - 1)
    assert all(link["ratio"] > 3 for link in facts["links"])
    assert facts["sample"].startswith("BRUTUS:\n")
    assert Path(facts["curve"]).read_bytes().startswith(b"\x89PNG")
    for part in ("bigram", "trained", "The model writes", facts["model"]):
        assert part in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["join", "brigade1-AAAA"], "invite"),
        (["join", "no-such-file"], "neither an invite"),
        (["up", "no-such-file.toml"], "no-such-file.toml"),
        (["status", "no-such-run"], "no-such-run"),
        (["stop"], "no run was started"),
        (["join", "brigade1-AAAA", "--memory", "lots"], "amount of memory"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message):
    done = brigade(*arguments, timeout=10)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_wrong_key_in_the_run_file_names_the_right_one(tmp_path, run_file):
    path = run_file(4)
    path.write_text(path.read_text().replace("learning_rate", "learn_rate"))
    done = brigade("up", path, timeout=10)
    assert done.returncode == 2
    assert "learn_rate" in done.stderr
    assert "learning_rate" in done.stderr


def test_nodes_find_no_stranger_behind_a_port_that_is_closed(tmp_path, run_dir, run_file):
    with Fleet() as fleet:
        coordinator = fleet.start(
            "coordinator", "up", run_file(4), "--listen", "127.0.0.1:0", output=tmp_path / "coordinator.txt"
        )
        fleet.wait_for_file(run_dir / "invite.txt", coordinator, deadline_s=READY_S)
    # The coordinator is gone; a node that comes now says so in time and ends.
    done = brigade("join", run_dir / "invite.txt", "--patience", "0", timeout=20)
    assert done.returncode != 0
    assert "127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr
