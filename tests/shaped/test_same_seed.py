"""The same seed gives the same plans and, with lossless codecs, the same losses to the last digit."""

import json
import re
import subprocess
import sys

import pytest
from tests.shaped.test_home4_short import DEADLINE_S, write_scenario

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STEPS = 3
HOSTS = """
name = "twice"
seed = 5
limit_s = 120
[[host]]
name = "fast"
count = 2
emulate = "0.5 s/GFLOP"
up = "80 Mbit/s"
latency_ms = 2
jitter_ms = 1
[[host]]
name = "slow"
emulate = "1 s/GFLOP"
up = "20 Mbit/s"
latency_ms = 5
"""


def carry_out(scenario, place, *options):
    command = [sys.executable, "-m", "brigade.cli.app", "lab", str(scenario), "--output-dir", str(place), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout.decode()
    lines = [json.loads(line) for line in (place / "coordinator.jsonl").read_text().splitlines()] if not options else []
    plans = [line["text"] for line in lines if line.get("kind") == "planned"]
    costs = (place / "run" / "costs.json").read_bytes() if not options else b""
    return json.loads((place / "result.json").read_text()), plans, costs


def test_two_experiments_with_one_seed(tmp_path):
    write_scenario(tmp_path, STEPS)
    run = (tmp_path / "run.toml").read_text()
    run, codecs = re.subn(r"^(forward|backward) = .*$", r'\1 = "raw+zstd"', run, flags=re.MULTILINE)
    run, counts = re.subn(r"^(nodes|stages) = 4$", r"\1 = 3", run, flags=re.MULTILINE)
    assert (codecs, counts) == (2, 2)
    (tmp_path / "run.toml").write_text(run)
    (tmp_path / "scenario.toml").write_text(HOSTS)
    (first, plans, costs), (second, *again) = (
        carry_out(tmp_path / "scenario.toml", tmp_path / name) for name in ("one", "two")
    )
    assert len(plans) == 1
    assert [plans, costs] == again, "equal to the last digit of every prediction"
    assert first["stages"] == second["stages"]
    losses = [[point["loss"] for point in result["loss"]["curve"]] for result in (first, second)]
    assert len(losses[0]) == STEPS
    assert losses[0] == losses[1]
    assert first["loss"]["held_out"] == second["loss"]["held_out"]
    simulated, *_ = carry_out(tmp_path / "scenario.toml", tmp_path / "three", "--simulate", "--seed", "7")
    assert simulated["stages"] == first["stages"], "the seed of jitter is none of the plan's"
