"""The surface of the command line: names, options and how fast it answers.

After an intended change: `pytest --regenerate-golden tests/repo/test_commands.py`, then review the diff.
"""

import json
import os
import subprocess
import sys
import time

import pytest
from typer.main import get_command

from brigade.cli.app import app

HEAVY = {
    "torch",
    "zmq",
    "numpy",
    "msgspec",
    "rich",
    "matplotlib",
    "safetensors",
    "sqlite3",
    "asyncio",
    "brigade.coordinator",
    "brigade.node",
}
HELP_LIMIT_S = 1.0  # about 0.2 s on an idle machine; the rest is for a busy one


def describe(parameter):
    names = " ".join([*parameter.opts, *parameter.secondary_opts])
    kind = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar}"
    notes = [
        "required" if parameter.required else "",
        f"default {parameter.default}" if parameter.default not in (None, False, "") else "",
        f"${parameter.envvar}" if parameter.envvar else "",
        "hidden" if getattr(parameter, "hidden", False) else "",
    ]
    note = ", ".join(filter(None, notes))
    return f"  {names}{kind}" + (f"  ({note})" if note else "")


def surface():
    group = get_command(app)
    lines = ["brigade", *(describe(parameter) for parameter in group.params)]
    for name in sorted(group.commands):
        lines += ["", f"brigade {name}", *(describe(parameter) for parameter in group.commands[name].params)]
    return "\n".join(lines) + "\n"


def test_the_surface_is_what_was_agreed(golden):
    golden("commands.txt", surface())


@pytest.mark.parametrize("command", sorted(get_command(app).commands))
def test_every_subcommand_explains_itself(command):
    done = subprocess.run(
        [sys.executable, "-m", "brigade.cli.app", command, "--help"], capture_output=True, text=True, check=True
    )
    usage, _, rest = done.stdout.partition("\n\n")
    assert usage.split()[:3] == ["Usage:", "brigade", command]
    assert len(rest.splitlines()[0].strip()) > 20, "a line that says what it does"


def test_help_answers_at_once_and_loads_nothing_heavy():
    program = (
        "import sys, json, atexit\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        "sys.argv = ['brigade', '--help']\n"
        "from brigade.cli.app import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {
        ".".join(name.split(".")[:2]) if name.startswith("brigade.") else name.split(".")[0]
        for name in json.loads(done.stderr)
    }
    assert "Exit codes" in done.stdout
    assert not HEAVY & loaded

    def once():
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "brigade.cli.app", "--help"], capture_output=True, check=True)
        return time.perf_counter() - start

    fastest = min(once() for _ in range(3))
    print(f"brigade --help answers in {fastest:.3f} s")
    assert fastest < HELP_LIMIT_S


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "brigade.cli.app", *arguments], capture_output=True, text=True, check=False
    )


def test_the_version_is_that_of_the_distribution():
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("brigade 0.")


@pytest.mark.parametrize(
    "arguments", [["juggle"], ["up"], ["join", "--no-such-option"], ["join", "x", "--threads", "many"]]
)
def test_bad_usage_is_exit_code_2_and_says_what_is_wrong(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "Error" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_shell_can_complete_subcommands():
    environment = os.environ | {"_BRIGADE_COMPLETE": "complete_bash", "COMP_WORDS": "brigade st", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from brigade.cli.app import main; main()"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["status", "stop"]
