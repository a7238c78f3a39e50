"""`brigade demo`: the whole line on this machine, from a text to a trained model and a report about it."""

from pathlib import Path
from typing import Annotated

import typer

from brigade.cli.choices import Quiet, Verbose

NODE_NAMES = ("ada", "grace", "linus")
NODES = "nodes"  # folder of what the nodes keep and say
READY_S = 30.0  # for the coordinator to write its invite
END_S = 15.0  # for the nodes to end after their coordinator

Steps = Annotated[int | None, typer.Option(metavar="N", min=1, help="Train so many steps instead of 400.")]
ReportFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write everything that is shown to a file as well.")
]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--output-dir", metavar="DIR", help="Where the run goes; runs/demo, or the next free name, when absent."
    ),
]


def demo(
    steps: Steps = None,
    report_file: ReportFile = None,
    directory: Directory = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train a small language model over three nodes on this machine.

    At the end it shows what came out: the loss, what the links carried, and a generated sample.
    """
    from rich.console import Console

    console = Console(quiet=quiet)
    run_dir = new_directory(directory)
    run_file = write_run_file(run_dir, steps)
    flag = ["--verbose"] if verbose else ["--quiet"] if quiet else []
    console.print(
        f"A coordinator and three nodes ({', '.join(NODE_NAMES)}) start on this machine; the run lies in {run_dir}.",
        highlight=False,
        soft_wrap=True,
    )
    code = train(run_dir, run_file, flag)
    if code != 0:
        if code == 1:
            typer.echo(f"What each node said lies in {run_dir / NODES}.", err=True)
        raise typer.Exit(code)
    from brigade.cli.demo_report import show, write_json
    from brigade.cli.examine import examine  # now, because torch takes memory and seconds
    from brigade.cli.example import example_file

    report = examine(run_dir, f"brigade up {shown_path(example_file('quickstart/run.toml'))}")
    if report_file:
        write_json(report, report_file)
    show(report, console)


def new_directory(wanted: Path | None) -> Path:
    """Make and return the run's directory: the wanted one, or the first free of runs/demo, runs/demo-2, ..."""
    from itertools import count

    from brigade.wire.errors import ConfigError

    try:
        if wanted is not None:
            wanted.mkdir(parents=True, exist_ok=True)
            return wanted
        for number in count(1):
            path = Path("runs") / ("demo" if number == 1 else f"demo-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise ConfigError(f"the directory of the run cannot be made: {error}") from error
    raise AssertionError


def write_run_file(run_dir: Path, steps: int | None) -> Path:
    """Write the run file of the quickstart, changed for this directory and this many steps."""
    import tomllib

    from brigade.cli.example import example_file

    tables = tomllib.loads(example_file("quickstart/run.toml").read_text(encoding="utf-8"))
    tables |= {"name": "demo", "output_dir": str(run_dir.resolve())}
    tables["data"]["path"] = str(example_file("shakespeare.txt"))
    if steps is not None:
        training = tables["training"]
        training["max_steps"] = steps
        training["warmup_steps"] = min(training["warmup_steps"], steps // 4)
    path = run_dir / "demo.toml"
    path.write_text(toml_text(tables), encoding="utf-8")
    return path


def shown_path(path: Path) -> Path:
    """Return a path as a person here would write it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def toml_text(tables: dict[str, object]) -> str:
    """Return TOML of scalars and of tables of scalars; JSON's scalars are TOML's."""
    import json

    lines = [f"{key} = {json.dumps(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def train(run_dir: Path, run_file: Path, flags: list[str]) -> int:
    """Run a coordinator and its nodes to their end; return the coordinator's exit code."""
    from brigade.cli.fleet import Fleet

    logs = run_dir / NODES
    logs.mkdir(exist_ok=True)
    with Fleet() as fleet:
        coordinator = fleet.start("the coordinator", "up", run_file, "--listen", "127.0.0.1:0", *flags)
        invite = run_dir / "invite.txt"
        fleet.wait_for_file(invite, coordinator, deadline_s=READY_S)
        for name in NODE_NAMES:
            arguments = ("--name", name, "--state", logs / name, "--device", "cpu", "--threads", "1")
            fleet.start(name, "join", invite, *arguments, "--listen", "127.0.0.1:0", output=logs / f"{name}.txt")
        code = fleet.wait(coordinator)
        fleet.settle(deadline_s=END_S)
    return code
