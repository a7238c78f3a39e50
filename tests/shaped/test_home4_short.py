"""The shipped scenario `home4`, cut short: real processes over the relay, through the command line."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from brigade.lab.attribution import PARTS

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 240.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def write_scenario(directory, steps, **changes):
    """Write home4 with fewer steps into a directory and return its path."""
    run = (EXAMPLES / "lab/home4/run.toml").read_text()
    run = run.replace("../../shakespeare.txt", str(EXAMPLES / "shakespeare.txt"))
    settings = {"max_steps": steps, "warmup_steps": 2, "eval_steps": 0, "eval_batches": 2, "save_steps": 4}
    for key, value in settings.items():
        run, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", run, flags=re.MULTILINE)
        assert count == 1, key
    (directory / "run.toml").write_text(run + "\n")
    scenario = (EXAMPLES / "lab/home4/scenario.toml").read_text()
    (directory / "scenario.toml").write_text(scenario + changes.get("more", ""))
    return directory / "scenario.toml"


def start(scenario, directory):
    command = [sys.executable, "-m", "brigade.cli.app", "lab", str(scenario), "--output-dir", str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def members_of(directory):
    """Return the processes that hold a file below a directory open, as every member of a lab does."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(Path(file.path).is_relative_to(directory) for file in process.open_files()):
                found.append(process)
    return found


def wait_until(condition, what, deadline_s=DEADLINE_S):
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)
    return found


def test_a_short_run_over_the_relay_ends_well_and_its_ledger_is_exact(tmp_path):
    place = tmp_path / "out"
    lab = start(write_scenario(tmp_path, 8), place)
    output, _ = lab.communicate(timeout=DEADLINE_S)
    assert lab.returncode == 0, output
    result = json.loads((place / "result.json").read_text())
    assert result["steps_committed"] == result["max_steps"] == 8
    assert result["ledger"] == {"committed": 8 * 16, "lost": 0, "repeated": 0}
    assert result["loss"]["last"] < result["loss"]["first"]
    assert len(result["loss"]["curve"]) == 8
    assert [stage["stage"] for stage in result["waits"]] == [0, 1, 2, 3]
    assert "8 of 8" in output
    assert not members_of(tmp_path)
    # six hops of 25 ms there and back, and nothing is faster than its distance
    steps = [point["at_s"] for point in result["loss"]["curve"]]
    assert min(b - a for a, b in pairwise(steps)) > 6 * 0.025
    carried = {(route["source"], route["target"]): route["delivered"] for route in result["wire"]["routes"]}
    order = [stage["node"] for stage in result["waits"]]
    for near, far in pairwise(order):
        assert carried[near, far] > result["tokens"] * result["wire"]["activation_bytes_per_token"] / 4
    # the time of every stage is divided, all of it, and the latency of its links is a good part
    check_parts(result)
    latency_s = 8 * 8 * 0.025  # of the activations of all microbatches, and as much of the gradients
    assert [link["sending_s"] > latency_s for link in result["links"]] == [True] * 6
    assert f"limited by  {result['limited_by'].partition(' ')[0]}" in output


def check_parts(result):
    """The parts of every stage add up to its wall time, and that is the time of the run, within 2 %."""
    for stage in result["waits"]:
        parts = sum(stage[part] for part in PARTS)
        assert parts == pytest.approx(stage["wall_s"], rel=0.02)
        assert stage["wall_s"] == pytest.approx(stage["covered"] * result["seconds"], rel=0.02)


def test_a_killed_node_comes_back_and_no_sample_is_lost(tmp_path):
    events = '\n[[event]]\nkind = "kill"\nhost = "home-3"\nat_step = 5\n'
    events += '\n[[event]]\nkind = "join"\nhost = "home-3"\nat_step = 5\n'
    place = tmp_path / "out"
    lab = start(write_scenario(tmp_path, 8, more=events), place)
    output, _ = lab.communicate(timeout=DEADLINE_S)
    assert lab.returncode == 0, output
    result = json.loads((place / "result.json").read_text())
    assert (result["recoveries"], result["reason"]) == (1, "")
    assert result["ledger"] == {"committed": 8 * 16, "lost": 0, "repeated": 0}
    assert [text for _, text in result["events"] if "killed" in text] == ["home-3 is killed"]
    check_parts(result)
    assert min(stage["recovery_s"] for stage in result["waits"]) > 15.0  # the silence after which a node counts as lost
    assert result["limited_by"].startswith("recoveries")


def test_everything_ends_with_a_lab_that_is_killed_also_what_stands_still(tmp_path):
    events = '\n[[event]]\nkind = "suspend"\nhost = "home-2"\nat_step = 1\n'
    lab = start(write_scenario(tmp_path, 1000, more=events), tmp_path / "out")
    try:
        stopped = psutil.STATUS_STOPPED
        wait_until(lambda: any(p.status() == stopped for p in members_of(tmp_path)), "a node that stands still")
        assert len(members_of(tmp_path)) == 8, "the lab, its relay and its nursery, a coordinator and four nodes"
        os.kill(lab.pid, signal.SIGKILL)
        wait_until(lambda: not members_of(tmp_path), "the end of all", 30.0)
    finally:
        lab.kill()
        lab.communicate()
        for process in members_of(tmp_path):
            process.kill()
