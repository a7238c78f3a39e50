"""The simulator tells the truth: steps of real processes take as long as `brigade lab --simulate` says.

Whatever else runs on the machine only makes steps longer, so the lower quartile of the measured ones is compared.
"""

import json
import statistics
import subprocess
import sys
from itertools import pairwise

import pytest
from tests.shaped.test_home4_short import DEADLINE_S, EXAMPLES, write_scenario

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LOOPBACK = """
name = "loopback3"
seed = 1
limit_s = 120
[[host]]
name = "here"
count = 3
emulate = "2 s/GFLOP"
"""


def carry_out(scenario, place, *options):
    command = [sys.executable, "-m", "brigade.cli.app", "lab", str(scenario), "--output-dir", str(place), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout.decode()
    result = json.loads((place / "result.json").read_text())
    at = [point["at_s"] for point in result["loss"]["curve"]]
    return result, sorted(b - a for a, b in pairwise(at))  # without the first: it warms up


def compare(scenario, directory):
    """Return by how much of the measured step the prediction differs."""
    predicted, expected = carry_out(scenario, directory / "simulated", "--simulate")
    result, measured = carry_out(scenario, directory / "real")
    assert predicted["predicted"]
    assert not result["predicted"]
    assert predicted["stages"] == result["stages"], "the plan is the same"
    assert predicted["tokens"] == result["tokens"]
    assert predicted["ledger"] == result["ledger"]
    step_s, said_s = statistics.quantiles(measured, n=4)[0], statistics.median(expected)
    print(f"predicted {said_s:.4f} s, measured {step_s:.4f} s a step")
    return said_s / step_s - 1


def test_home4(tmp_path):
    assert abs(compare(write_scenario(tmp_path, 10), tmp_path)) < 0.1


def test_loopback_without_shaping(tmp_path):
    run = write_scenario(tmp_path, 8).with_name("run.toml")
    changes = (("nodes = 4", "nodes = 3"), ("stages = 4", "stages = 3"))
    text = run.read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    run.write_text(text)
    (tmp_path / "scenario.toml").write_text(LOOPBACK)
    assert (EXAMPLES / "shakespeare.txt").exists()
    assert abs(compare(tmp_path / "scenario.toml", tmp_path)) < 0.05
