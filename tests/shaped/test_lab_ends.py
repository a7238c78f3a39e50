"""How an experiment ends that goes wrong: soon, and with its reason."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TEXT = Path(__file__).parents[2] / "examples" / "shakespeare.txt"
RUN = f"""
name = "ends"
[model]
kind = "gpt"
vocab_size = 256
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 16
[data]
kind = "text"
path = "{TEXT}"
sequence_length = 16
[training]
max_steps = 60
batch_size = 4
microbatches = 2
save_steps = 2
[pipeline]
nodes = 2
stages = 2
silence_limit_s = 3
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.fixture
def start(tmp_path):
    """A function (what a scenario says) that starts a lab in `tmp_path / "out"`."""
    started = []

    def begin(scenario):
        (tmp_path / "run.toml").write_text(RUN)
        (tmp_path / "scenario.toml").write_text(scenario)
        command = [sys.executable, "-m", "brigade.cli.app", "lab", tmp_path / "scenario.toml"]
        started.append(
            subprocess.Popen(
                [*command, "--output-dir", tmp_path / "out"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return started[-1]

    yield begin
    for lab in started:
        lab.kill()
        lab.wait()
        lab.stdout.close()


def test_what_can_only_fail_again_is_not_tried_again_and_again(start, tmp_path):
    lab = start('name = "ends"\nlimit_s = 150\n[[host]]\nname = "h"\ncount = 2\nmemory = "1 KiB"\n')
    output, _ = lab.communicate(timeout=120)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert lab.returncode == 1, output
    assert result["recoveries"] <= 1
    assert "1.0 KiB" in result["reason"]


def test_an_interrupt_is_heard_while_nodes_that_were_cut_off_are_awaited(start):
    lab = start(
        'name = "ends"\nlimit_s = 150\n[[host]]\nname = "h"\ncount = 3\nemulate = "50 s/GFLOP"\n'
        '[[event]]\nkind = "link_down"\nhost = "h-1"\nat_step = 4\n'
    )
    for line in lab.stdout:
        if "taken up again" in line:
            break
    else:
        pytest.fail("the run was not taken up again")
    lab.send_signal(signal.SIGINT)
    began = time.monotonic()
    lab.communicate(timeout=60)
    assert lab.returncode != 0
    assert time.monotonic() - began < 15.0  # the nodes that are cut off would go on looking for 20 s
