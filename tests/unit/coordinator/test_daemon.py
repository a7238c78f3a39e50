"""The coordinator as a process: real sockets, a real disk, scripted nodes in the same loop."""

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.unit.coordinator.wire_node import WireNode

from brigade.coordinator.ask import ask
from brigade.coordinator.daemon import run_coordinator
from brigade.coordinator.mouthpiece import Mouthpiece
from brigade.coordinator.record import recorded_status
from brigade.coordinator.run_directory import read_address, write_address
from brigade.coordinator.store import Store
from brigade.wire import messages as m
from brigade.wire.errors import ConfigError, LocalProtocolError
from brigade.wire.invite import Invite
from brigade.wire.network import Network
from brigade.wire.private_file import read_private

TEXT = b"bucket brigade " * 60
RUN = """
name = "toy"
[model]
kind = "gpt"
[data]
kind = "text"
path = "text.txt"
sequence_length = 16
[training]
max_steps = 6
batch_size = 8
microbatches = 2
save_steps = 2
eval_steps = 3
[pipeline]
nodes = 2
stages = 2
"""


@pytest.fixture
def run_file(tmp_path):
    (tmp_path / "text.txt").write_bytes(TEXT)
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


class Fleet:
    """Starts scripted nodes inside the coordinator's loop, and whatever else a test wants to happen there."""

    def __init__(self, run_file, names=("ada", "bob"), *, act=None, paused_at=None):
        self.run_file, self.names, self.act, self.paused_at = run_file, names, act, paused_at
        self.nodes, self.task = [], None

    def start(self, directory):
        self.directory = directory
        self.task = asyncio.ensure_future(self._live())

    async def _live(self):
        network = Network()
        try:
            self.nodes = [WireNode(name, self.directory, network, self.run_file) for name in self.names]
            for node in self.nodes:
                node.paused_at = self.paused_at
            if self.act is not None:
                await self.act(self)
            await asyncio.gather(*(node.ended for node in self.nodes))
        finally:
            await network.close()


def up(run_file, fleet, **options):
    directory = run_file.parent / "out"
    options = {"listen": "127.0.0.1:0", "output_dir": directory, "verbosity": -1} | options
    exit_code = run_coordinator(run_file, started=fleet.start, **options)
    if not fleet.task.cancelled():
        fleet.task.result()  # what the test asserted inside the loop
    return exit_code


def test_a_run_over_real_sockets(run_file):
    fleet = Fleet(run_file)
    assert up(run_file, fleet) == 0
    directory = run_file.parent / "out"
    assert all(node.ended.result().success for node in fleet.nodes)
    assert TEXT in [node.data for node in fleet.nodes]
    model = load_file(directory / "model.safetensors")
    assert {name: tensor.tolist() for name, tensor in model.items()} == {f"{b}.w": [21.0] for b in range(4)}
    kept = sorted(p.name for p in (directory / "checkpoints").iterdir())
    assert kept[-1] == "step-000006"  # an earlier one is skipped while its forerunner is on its way
    assert set(kept) <= {"step-000002", "step-000004", "step-000006"}
    with Store(directory / "run.sqlite", readonly=True) as store:
        assert [commit.step for commit in store.commits()] == list(range(6))
        assert [evaluation.step for evaluation in store.evaluations()] == [2, 5]
    assert recorded_status(directory)["state"] == "finished"
    assert [path.name for path in directory.glob("run.sqlite*")] == ["run.sqlite"]
    assert read_address(directory).asked.run_file == str(run_file)
    for name in ("coordinator.key", "invite.secret", "invite.txt"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600, name
    secret = read_private(directory / "invite.secret").strip()
    invite = (directory / "invite.txt").read_text().strip()
    log = (directory / "log.jsonl").read_text()
    assert secret not in log
    assert invite not in log
    assert all(json.loads(line) for line in log.splitlines())


def test_the_owner_asks_stops_and_resumes(run_file):
    told = {}

    async def act(fleet):
        for node in fleet.nodes:
            await node.reached.wait()
        told["status"] = (await asyncio.to_thread(ask, fleet.directory, m.StatusWanted())).status
        told["stop"] = await asyncio.to_thread(ask, fleet.directory, m.StopWanted())
        for node in fleet.nodes:
            node.paused_at = None
            node.train(3)

    assert up(run_file, Fleet(run_file, act=act, paused_at=3)) == 3
    directory = run_file.parent / "out"
    assert told["status"]["state"] == "training"
    assert told["status"]["step"] in (2, 3)  # the third may be on its way to the disk
    assert told["stop"].ok
    first = read_address(directory)
    with pytest.raises(ConfigError, match=r"no coordinator runs in .*: nothing can be reached"):
        ask(directory, m.StatusWanted(), deadline_s=0.5)  # this process lives, but listens no more
    write_address(directory, replace(first, pid=2**22 + 1))
    with pytest.raises(ConfigError, match="process 4194305 has ended"):
        ask(directory, m.StatusWanted())
    with pytest.raises(ConfigError, match="--resume"):
        up(run_file, Fleet(run_file))
    assert up(run_file, Fleet(run_file), resume=True) == 0
    assert read_address(directory).endpoint == first.endpoint, "the port of an invite stays"
    np.testing.assert_array_equal(load_file(directory / "model.safetensors")["3.w"], [21.0])
    with Store(directory / "run.sqlite", readonly=True) as store:
        assert [(c.step, c.attempt) for c in store.commits()] == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]


def test_a_command_that_cannot_be_carried_out_ends_the_run_with_its_reason(run_file, monkeypatch):
    tell = Mouthpiece.tell

    def broken(self, command):
        if isinstance(command.message, m.BeginTraining):
            raise LocalProtocolError("cannot send BeginTraining: it is too long")
        tell(self, command)

    monkeypatch.setattr(Mouthpiece, "tell", broken)
    assert up(run_file, Fleet(run_file)) == 1
    reason = recorded_status(run_file.parent / "out")["reason"]
    assert reason == "Tell cannot be carried out: LocalProtocolError: cannot send BeginTraining: it is too long"


def test_ctrl_c_once_saves_and_twice_does_not_wait(run_file):
    async def once(fleet):
        for node in fleet.nodes:
            await node.reached.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)
        for node in fleet.nodes:
            node.paused_at = None
            node.train(3)

    async def twice(fleet):
        for node in fleet.nodes:
            await node.reached.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)

    assert up(run_file, Fleet(run_file, act=twice, paused_at=3)) == 130
    assert up(run_file, Fleet(run_file, act=once, paused_at=3), resume=True) in (0, 3)


def test_a_wrong_invite_is_refused_with_its_reason(run_file):
    async def act(fleet):
        await fleet.nodes[0].refused
        os.kill(os.getpid(), signal.SIGTERM)

    class Wrong(Fleet):
        async def _live(self):
            text = (self.directory / "invite.txt").read_text()
            secret = read_private(self.directory / "invite.secret").strip()
            invite = Invite.parse(text)
            assert invite.secret == secret
            wrong = Invite(
                addresses=invite.addresses,
                coordinator_key=invite.coordinator_key,
                secret="0" * 32,
                run_id=invite.run_id,
            )
            (self.directory / "invite.txt").write_text(wrong.text())
            await super()._live()

    fleet = Wrong(run_file, names=("eve",), act=act)
    assert up(run_file, fleet) == 3
    assert fleet.nodes[0].refused.result().code == "bad_proof"


def test_a_port_in_use_costs_one_message_and_nothing_else(run_file):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            up(run_file, Fleet(run_file), listen=f"127.0.0.1:{port}")
    # nothing was trained: no --resume is needed, and the run file may still change
    run_file.write_text(RUN.replace("batch_size = 8", "batch_size = 4"))
    assert up(run_file, Fleet(run_file)) == 0


def test_a_changed_run_file_is_not_resumed(run_file):
    assert up(run_file, Fleet(run_file)) == 0
    run_file.write_text(RUN.replace("batch_size = 8", "batch_size = 4"))
    with pytest.raises(ConfigError, match=r"training\.batch_size was 8, is 4"):
        up(run_file, Fleet(run_file), resume=True)
    run_file.write_text(RUN)
    (run_file.parent / "text.txt").write_bytes(TEXT[:-1] + b"!")
    with pytest.raises(ConfigError, match=r"data\.path: the content"):
        up(run_file, Fleet(run_file), resume=True)


def test_more_steps_may_be_asked_for_afterwards(run_file):
    assert up(run_file, Fleet(run_file)) == 0
    run_file.write_text(RUN.replace("max_steps = 6", "max_steps = 8"))
    assert up(run_file, Fleet(run_file), resume=True) == 0
    np.testing.assert_array_equal(load_file(run_file.parent / "out" / "model.safetensors")["0.w"], [36.0])


def test_there_is_nothing_to_resume_in_an_empty_directory(run_file):
    with pytest.raises(ConfigError, match="there is no run to resume"):
        up(run_file, Fleet(run_file), resume=True)


def test_a_second_coordinator_on_one_directory_names_the_first(run_file):
    async def act(fleet):
        script = (
            "import sys; from pathlib import Path; from brigade.coordinator.daemon import run_coordinator\n"
            "run_coordinator(Path(sys.argv[1]), output_dir=Path(sys.argv[2]), resume=True)"
        )
        for node in fleet.nodes:
            await node.reached.wait()
        command = [sys.executable, "-c", script, str(fleet.run_file), str(fleet.directory)]
        second = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert second.returncode != 0
        assert f"process {os.getpid()}" in second.stderr
        for node in fleet.nodes:
            node.paused_at = None
            node.train(3)

    fleet = Fleet(run_file, act=act, paused_at=3)
    assert up(run_file, fleet) == 0
    assert not fleet.task.cancelled()


def test_nothing_of_it_imports_torch():
    script = (
        "import pkgutil, importlib, sys, brigade.coordinator as c\n"
        "[importlib.import_module(f'brigade.coordinator.{x.name}') for x in pkgutil.iter_modules(c.__path__)]\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
