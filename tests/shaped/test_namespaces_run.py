"""A whole short run through namespaces is the run that the relay carries: same command, same losses, and nothing stays."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.shaped.namespace_lab import namespaces, unsupported

TEXT = Path(__file__).parents[2] / "examples/shakespeare.txt"
REASON = unsupported()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.skipif(bool(REASON), reason=REASON)]

RUN = """
name = "tiny"
seed = 3

[model]
kind = "gpt"
vocab_size = 256
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 16

[data]
kind = "text"
path = "TEXT"
sequence_length = 16

[training]
max_steps = 4
batch_size = 16
microbatches = 4
learning_rate = 1e-2

[pipeline]
nodes = 2
stages = 2
"""

SCENARIO = """
name = "tiny"
seed = 1
limit_s = 120

[[host]]
name = "home"
count = 2
up = "40 Mbit/s"
down = "80 Mbit/s"
latency_ms = 2

[[event]]
kind = "link_rate"
host = "home-1"
up = "20 Mbit/s"
at_step = 2
"""


def carry_out(directory, links):
    command = [sys.executable, "-m", "brigade.cli.app", "lab", str(directory / "scenario.toml"), "--links", links]
    place = directory / links
    done = subprocess.run(
        [*command, "--output-dir", str(place)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((place / "result.json").read_text())


def test_a_run_through_namespaces_has_the_losses_of_the_run_over_the_relay(tmp_path):
    (tmp_path / "run.toml").write_text(RUN.replace("TEXT", str(TEXT)))
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    before = namespaces()
    through, over = carry_out(tmp_path, "namespaces"), carry_out(tmp_path, "relay")
    assert not [name for name in namespaces() - before if name.endswith(("-home-1", "-home-2"))]
    for result in (through, over):
        assert result["steps_committed"] == 4
        assert result["ledger"] == {"committed": 4 * 16, "lost": 0, "repeated": 0}
        assert [text for _, text in result["events"] if "20 Mbit/s" in text]
    assert [point["loss"] for point in through["loss"]["curve"]] == pytest.approx(
        [point["loss"] for point in over["loss"]["curve"]], rel=1e-5
    )
    carried = {(route["source"], route["target"]): route["delivered"] for route in through["wire"]["routes"]}
    assert min(carried["home-1", "home-2"], carried["home-2", "home-1"]) > 1000
    assert carried["home-1", "coordinator"] > 1000
