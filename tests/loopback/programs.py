"""Real `brigade` processes whose screens can be awaited, and the run files and model code that they work with."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.forked import ForkedProcess

from brigade.wire.invite import Invite

DEADLINE_S = 60.0  # for what takes a few seconds on an idle machine
VERDICT_S = 10.0  # within which a refusal has to be told
START_S = 20.0  # for importing torch on a busy machine

# Model code as a person would install it on every node. What it does can be changed while a run goes on: a block looks
# for files in the directory `gate`.
MODELS = '''
import os
import time

from torch import nn


class Gated(nn.Module):
    """Passes its input through a layer; waits or fails as the files in a directory say."""

    def __init__(self, gate, size=4):
        super().__init__()
        self.gate = gate
        self.layer = nn.Linear(size, size)

    def forward(self, value):
        if os.path.exists(f"{self.gate}/slow"):
            time.sleep(0.5)
        if os.path.exists(f"{self.gate}/forward-fails"):
            raise ArithmeticError("the block is out of order\\x1b[31m\\x07\\nerror: forged")
        out = self.layer(value)
        if out.requires_grad and os.path.exists(f"{self.gate}/backward-fails"):
            out.register_hook(fail)
        return out


def fail(gradient):
    raise ArithmeticError("no gradient today")


def build(gate, size=4):
    return [nn.Linear(3, size), Gated(gate, size), nn.Linear(size, 2)]


def build_wrongly(gate):
    raise LookupError("no such architecture")


def loss_behind_a_gate(output, target):
    if os.path.exists(os.environ["GATE"] + "/loss-fails"):
        raise ArithmeticError("the loss is out of order")
    return nn.functional.cross_entropy(output, target)


class Data:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        import torch

        if not 0 <= index < 64:
            raise IndexError(index)
        return torch.full((3,), index / 64.0), torch.tensor(index % 2)


def data():
    return Data(), Data()
'''


class Program:
    """One `brigade` process; what it prints on either stream is its screen."""

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], prefix: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.process = _start_anew(prefix, arguments, environment) if prefix else ForkedProcess(arguments, environment)
        self.screen = ""
        self._ended = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.screen += line.decode()
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def expect(self, pattern: str, deadline_s: float = DEADLINE_S, *, after: int = 0) -> "re.Match[str]":
        """Return the first match of `pattern` on the screen after so many characters; wait for it."""
        end = time.monotonic() + deadline_s
        with self._news:
            while (found := re.compile(pattern, re.MULTILINE).search(self.screen, after)) is None:
                left_s = end - time.monotonic()
                assert not self._ended, f"{self.name} ended without {pattern!r}:\n{self.story}"
                assert left_s > 0, f"{self.name} did not say {pattern!r} within {deadline_s:g} s:\n{self.story}"
                self._news.wait(left_s)
            return found

    def expect_end(self, deadline_s: float = START_S + VERDICT_S) -> int:
        """Return the exit code; the whole screen is there then."""
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {deadline_s:g} s:\n{self.screen}") from None
        self._reader.join(5.0)
        return code

    @property
    def story(self) -> str:
        """The screen without the steps."""
        return "\n".join(line for line in self.screen.splitlines() if not line.startswith("step "))

    @property
    def errors(self) -> list[str]:
        """The lines for whoever has to put something right."""
        return [line for line in self.screen.splitlines() if re.match(r"(brigade|error|warning): ", line)]

    @property
    def ports(self) -> list[int]:
        """The TCP ports on which it listens."""
        import psutil

        connections = psutil.Process(self.process.pid).net_connections(kind="tcp")
        return sorted(c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN)


def _start_anew(
    prefix: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a process under another program, which forking cannot do."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "brigade.cli.app", *arguments],
        env=dict(environment),
        stdin=subprocess.PIPE,  # its end tells the child that we are gone
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


class Programs:
    """Starts processes that share a directory, and ends them all when the `with` block is left."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.run_dir = home / "run"
        self.gate = home / "gate"
        self.started: list[Program] = []
        code = home / "code"
        for folder in (self.gate, code):
            folder.mkdir(parents=True)
        (code / "gated.py").write_text(MODELS)
        self.environment = os.environ | {
            "XDG_STATE_HOME": str(home / "state"),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "COLUMNS": "400",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for program in self.started:
            program.process.kill()  # does nothing to one that has ended
            program.process.wait()
            program._reader.join(5.0)
            for stream in (program.process.stdin, program.process.stdout):
                with contextlib.suppress(OSError):
                    if stream:
                        stream.close()

    def start(
        self, name: str, *arguments: object, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> Program:
        program = Program(name, list(map(str, arguments)), self.environment | (environment or {}), prefix)
        self.started.append(program)
        return program

    def up(self, run_file: Path, *flags: object, **how: Any) -> Program:
        """Start a coordinator."""
        listen = () if "--listen" in flags else ("--listen", "127.0.0.1:0")
        return self.start("coordinator", "up", run_file, *listen, "--end-with-stdin", *flags, **how)

    def join(self, name: str, *flags: object, invite: object = None, **how: Any) -> Program:
        """Start a node that trusts the model code; by default with the invite of `run_dir`."""
        listen = () if "--listen" in flags else ("--listen", "127.0.0.1:0")
        trust = () if "--no-trust" in flags else ("--trust", "gated")
        state = () if "--state" in flags else ("--name", name)
        rest = [flag for flag in flags if flag != "--no-trust"]
        invite = self.run_dir / "invite.txt" if invite is None else invite
        common = ("--device", "cpu", "--patience", "0", "--end-with-stdin")
        return self.start(name, "join", invite, *common, *listen, *trust, *state, *rest, **how)

    def ready(self, run_file: Path, *flags: object, **how: Any) -> Program:
        """Start a coordinator and wait until nodes may join."""
        coordinator = self.up(run_file, *flags, **how)
        coordinator.expect(r"waiting for nodes")
        return coordinator

    @property
    def invite(self) -> Invite:
        return Invite.parse((self.run_dir / "invite.txt").read_text())

    def write_run(self, **changes: Any) -> Path:
        """Write a run file; `changes` are keys, or tables with keys, that replace or (None) remove others."""
        tables: dict[str, Any] = {
            "name": "bench",
            "output_dir": str(self.run_dir),
            "model": {"kind": "factory", "factory": "gated:build", "arguments": {"gate": str(self.gate)}},
            "data": {"kind": "factory", "factory": "gated:data"},
            "training": {"max_steps": 3, "batch_size": 4, "microbatches": 2, "logging_steps": 1, "eval_batches": 1},
            "pipeline": {"nodes": 2, "stages": 2},
        }
        for key, value in changes.items():
            if isinstance(value, dict):
                tables[key] = {k: v for k, v in (tables.get(key, {}) | value).items() if v is not None}
            else:
                tables[key] = value
        path = self.home / "bench.toml"
        path.write_text(to_toml({key: value for key, value in tables.items() if value is not None}))
        return path

    def assert_clean(self, secrets: Iterable[str] = ()) -> None:
        """No screen and no log shows a traceback, a control character or a secret."""
        hidden = {*secrets, *secrets_below(self.home)}
        texts = {program.name: program.screen for program in self.started}
        for program, screen in texts.items():
            assert "Traceback" not in screen, f"{program}:\n{screen}"
            assert not re.search(r"[^\n\x20-\x7e\u00a0-\U0010ffff]", screen), f"{program}:\n{screen!r}"
        logs = {str(path): path.read_text() for path in self.home.rglob("log.jsonl*")}
        for place, text in logs.items():
            assert not re.search(r"brigade1-\w{20}", text), f"an invite is shown by {place}"
        texts |= logs
        for place, text in texts.items():
            for secret in hidden:
                assert secret not in text, f"a secret is shown by {place}"


def secrets_below(home: Path) -> set[str]:
    """Return the secret halves of all keys and all join secrets in files below a directory."""
    found = set()
    for path in (*home.rglob("node.key"), *home.rglob("coordinator.key")):
        found |= set(re.findall(r"^secret (\S+)$", path.read_text(), re.MULTILINE))
    return found | {path.read_text().strip() for path in home.rglob("invite.secret")}


def to_toml(tables: Mapping[str, Any]) -> str:
    """Return a run file."""
    lines = [f"{key} = {to_toml_value(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for key, table in tables.items():
        if isinstance(table, dict):
            lines += ["", f"[{key}]", *(f"{name} = {to_toml_value(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def to_toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {to_toml_value(item)}" for name, item in value.items()) + " }"
    return repr(value) if isinstance(value, float) else json.dumps(value)
