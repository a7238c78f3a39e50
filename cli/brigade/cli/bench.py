"""`brigade bench`: our training beside a plain loop and torch.distributed.pipelining, by turns on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brigade.cli.choices import Quiet

if TYPE_CHECKING:
    from brigade.coordinator.run_file import RunFile
    from brigade.lab.scenario import Scenario
    from brigade.lab.yardstick import Spread, Yardstick

JobFile = Annotated[
    Path,
    typer.Argument(
        metavar="RUN.toml|SCENARIO.toml",
        help="The run file of the job, or a scenario whose hosts and links shall carry it.",
    ),
]
Stages = Annotated[str, typer.Option("--stages", metavar="N,...", help="Numbers of stages to compare.")]
Rounds = Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Rounds in which everybody has a turn.")]
Steps = Annotated[
    int, typer.Option("--steps", metavar="N", min=2, help="Steps of a turn; it ends earlier after four seconds.")
]
WarmUp = Annotated[int, typer.Option("--warm-up", metavar="N", min=1, help="Steps before those.")]
Who = Annotated[
    str,
    typer.Option(
        "--contenders",
        metavar="NAME,...",
        help="Some of plain, torch-1f1b, torch-gpipe, brigade-1f1b, brigade-gpipe, configured; "
        "all but brigade-gpipe when absent.",
    ),
]
Learning = Annotated[
    int,
    typer.Option(
        "--learning-steps", metavar="N", min=0, help="Also compare the time to a held-out loss, over so many steps."
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(metavar="PACKAGE", help="Let the run file name functions of this package; may be given again."),
]
ResultFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result to a file.")]
Directory = Annotated[
    Path | None, typer.Option("--output-dir", metavar="DIR", help="Where everything lies; runs/bench-NAME when absent.")
]

FEWEST_ROUNDS = 3  # of which a median says something


def bench(
    job_file: JobFile,
    stages: Stages = "2,4",
    repeats: Rounds = 5,
    steps: Steps = 5,
    warm_up: WarmUp = 5,
    contenders: Who = "",
    learning_steps: Learning = 0,
    trust: Trust = None,
    result_file: ResultFile = None,
    directory: Directory = None,
    quiet: Quiet = False,
) -> None:
    """Compare with a plain torch loop and torch.distributed.pipelining.

    They train by turns on this machine: same model, data, batches, cuts and updates, one thread each; ratios are formed
    within a round. With a scenario the links are those of its hosts, in network namespaces (root); its devices are this
    machine's. B/token is payload, both directions and all boundaries together.

    Example: brigade bench examples/lab/bench/run.toml --stages 2,4
    """
    from brigade.cli.lab import new_directory
    from brigade.cli.output_file import require_writable, write_output
    from brigade.cli.screen import open_console
    from brigade.lab.measuring import Wanted, measure

    console = open_console(quiet=quiet)
    run, scenario = read_job(job_file)
    wanted = Wanted(
        run=run,
        scenario=scenario,
        stages=parse_counts(stages),
        contenders=parse_names(contenders),
        rounds=repeats,
        steps=steps,
        warm_up=warm_up,
        learning_steps=learning_steps,
        trusted=tuple(trust or ()),
    )
    require_writable(result_file, "--json")
    place = new_directory(directory, f"bench-{run.spec.name}")
    result = measure(wanted, place, console.print)
    if repeats < FEWEST_ROUNDS:
        console.print(
            f"With fewer than {FEWEST_ROUNDS} repeats ratios mean little: chance is as large as what differs."
        )
    for path in filter(None, (place / "yardstick.json", result_file)):
        write_output(path, result.to_json())
    console.print(table(result))
    console.print(f"What each process said, and yardstick.json, lie in {place}.")


def read_job(path: Path) -> "tuple[RunFile, Scenario | None]":
    """Return the job of a run file, or the job and the scenario of a scenario file; ConfigError when it is neither."""
    import tomllib
    from contextlib import suppress

    from brigade.coordinator.run_file import read_run_file
    from brigade.lab.scenario import read_scenario

    with suppress(OSError, ValueError):  # told by who reads it in earnest
        if "host" in tomllib.loads(path.read_text(encoding="utf-8")):
            scenario = read_scenario(path)
            return scenario.run, scenario
    return read_run_file(path), None


def parse_counts(text: str) -> tuple[int, ...]:
    """Return the numbers in `2,4`; ConfigError when it is something else."""
    from brigade.wire.errors import ConfigError

    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(f"--stages: found {text!r}, expected numbers such as 2,4")
    return tuple(int(word) for word in words)


def parse_names(text: str) -> tuple[str, ...]:
    """Return the contenders in `plain,torch-1f1b`, the usual ones for nothing; ConfigError for an unknown one."""
    from brigade.lab.yardstick import CONTENDERS, STANDARD
    from brigade.wire.errors import ConfigError

    if not text:
        return STANDARD
    names = tuple(word.strip() for word in text.split(","))
    known = [each.name for each in CONTENDERS]
    for name in names:
        if name not in known:
            raise ConfigError(f"--contenders: found {name!r}, expected some of {', '.join(known)}")
    return names


def table(result: "Yardstick") -> object:
    """Return what came out, as a table."""
    from rich.table import Table

    rounds = "one round" if result.rounds == 1 else f"median of {result.rounds} rounds (least-most)"
    ran = {row.contender for row in result.rows}
    pairs = {row.contender: row.rival for row in result.rows if row.rival}
    usual = ["torch-1f1b"] if "torch-1f1b" in pairs.values() else []
    own = ["for brigade-gpipe to torch-gpipe"] if pairs.get("brigade-gpipe") == "torch-gpipe" else []
    ratios = ", ".join([*(f"to {name}" for name in usual), *own])
    notes = [f"{result.machine}."]
    notes += [f"Ratios are {ratios}, within a round."] if ratios else []
    notes += ["configured: ours with the codecs and the schedule of the run file."] if "configured" in ran else []
    shown = Table(
        title=f"{result.run}, {result.links}: {rounds}",
        caption=" ".join(notes),
        title_justify="left",
        caption_justify="left",
        box=None,
    )
    for name in ("stages", "contender", "ms a step", "ratio", "CPU ms", "CPU ratio", "B/token"):
        shown.add_column(name, justify="left" if name == "contender" else "right", no_wrap=True)
    if result.target_loss is not None:
        shown.add_column(f"s to {result.target_loss:.3f}", justify="right", no_wrap=True)
    for row in result.rows:
        cells = [
            str(row.stages),
            row.contender,
            f"{1e3 * row.step_s.median:,.0f}",
            spread_text(row.ratio, 1.0, ".2f"),
            f"{1e3 * row.cpu_s.median:,.0f}",
            spread_text(row.cpu_ratio, 1.0, ".2f"),
            f"{row.forward_bytes_per_token + row.backward_bytes_per_token:,.0f}",
        ]
        if result.target_loss is not None:
            cells.append("-" if row.seconds_to_target is None else f"{row.seconds_to_target:,.1f}")
        shown.add_row(*cells)
    return shown


def spread_text(spread: "Spread | None", scale: float, form: str) -> str:
    """Return `median (least-most)`, a dash for nothing."""
    if spread is None:
        return "-"
    least, middle, most = (format(scale * value, form) for value in (spread.least, spread.median, spread.most))
    return f"{middle} ({least}-{most})"
