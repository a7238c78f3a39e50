"""`brigade lab`: a whole fleet on this machine, as a scenario file describes it."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brigade.cli.choices import Quiet

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from brigade.lab.result import Result


class LinksKind(StrEnum):
    """How the hosts of a lab are joined."""

    relay = "relay"
    namespaces = "namespaces"


ScenarioFile = Annotated[
    Path, typer.Argument(metavar="SCENARIO.toml", help="The scenario file; it names the run file.")
]
ResultFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the result here, too; result.json lies in DIR.")
]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Draw what came out as a page (HTML, one file).")
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        min=0,
        max=10**15,
        help="Draw jitter, losses and who is there anew; the job keeps its seed.",
    ),
]
Links = Annotated[
    LinksKind | None,
    typer.Option(
        "--links",
        metavar="relay|namespaces",
        help="How hosts are joined, whatever the scenario says: `namespaces` is real TCP and needs root.",
    ),
]
Simulate = Annotated[
    bool,
    typer.Option("--simulate", help="Predict the result in about ten seconds; nothing is trained, no loss is known."),
]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--output-dir", metavar="DIR", help="Where everything lies; runs/lab-NAME, or the next free name, when absent."
    ),
]


def lab(
    scenario_file: ScenarioFile,
    result_file: ResultFile = None,
    report_file: ReportFile = None,
    seed: Seed = None,
    links: Links = None,
    simulate: Simulate = False,
    directory: Directory = None,
    quiet: Quiet = False,
) -> None:
    """Try a fleet on this machine: links, devices, events of a scenario.

    The coordinator and the nodes are those of `up` and `join`; they only see other addresses. Ctrl-C saves and ends.
    docs/scenario-file.md lists what a scenario may say, lab/README.md the keys of the result.

    Example: brigade lab examples/lab/home4/scenario.toml --report home4.html
    """
    from brigade.cli.lab_progress import LabProgress
    from brigade.cli.output_file import require_writable, write_output
    from brigade.cli.screen import open_console
    from brigade.lab.examine import examine
    from brigade.lab.experiment_files import RESULT_NAME, read_experiment, require_plots, write_report, write_trace
    from brigade.lab.runner import RUN_DIR, run_experiment
    from brigade.lab.scenario import read_scenario
    from brigade.lab.simulated import simulate_experiment

    console = open_console(quiet=quiet)
    if report_file is not None:
        require_plots()
    scenario = read_scenario(scenario_file, seed)
    if links is not None:
        scenario = scenario.over(links.value)
    require_writable(result_file, "--json")
    require_writable(report_file, "--report")
    place = new_directory(directory, scenario.spec.name)
    if simulate:
        result = simulate_experiment(scenario, place, seed)
    else:
        console.print(
            f"{scenario.spec.name}: {len(scenario.hosts)} hosts start on this machine; everything lies in {place}."
        )
        with LabProgress(console, scenario.run.spec.training.max_steps) as progress:
            observed = run_experiment(scenario, place, progress, seed)
        result = examine(scenario, place / RUN_DIR, observed)
    for path in filter(None, (place / RESULT_NAME, result_file)):
        write_output(path, result.to_json())
    experiment = read_experiment(place)
    write_trace(experiment)
    show(result, console)
    said = "Costs and timelines as predicted" if simulate else "What each process said"
    console.print(f"{said}, result.json, and trace.json for ui.perfetto.dev lie in {place}.")
    if report_file is not None:
        write_report([experiment], report_file)
        console.print(f"The report is {report_file}.")
    if result.exit_code != 0:
        typer.echo(f"brigade: the run did not finish: {result.reason or 'see its output'}", err=True)
        raise typer.Exit(1 if result.exit_code is None or result.exit_code < 0 else result.exit_code)


def new_directory(wanted: Path | None, name: str) -> Path:
    """Make and return the directory of the experiment: the wanted one, which must be new or empty, or the next free."""
    from itertools import count

    from brigade.wire.errors import ConfigError

    try:
        if wanted is not None:
            wanted.mkdir(parents=True, exist_ok=True)
            if any(wanted.iterdir()):
                raise ConfigError(f"{wanted} is not empty; an experiment begins in a directory of its own")
            return wanted
        for number in count(1):
            path = Path("runs") / (f"lab-{name}" if number == 1 else f"lab-{name}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise ConfigError(f"the directory of the experiment cannot be made: {error}") from error
    raise AssertionError


def show(result: "Result", console: "Console") -> None:
    """Print what came out."""
    from rich.table import Table

    def number(value: float | None, form: str = ",.0f") -> str:
        return "-" if value is None else format(value, form)

    facts = Table(box=None, show_header=False)
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("steps", f"{result.steps_committed} of {result.max_steps} in {result.seconds:.1f} s")
    facts.add_row("tokens", f"{result.tokens:,}, {result.tokens_per_s:,.0f} a second")
    if result.bound_tokens_per_s is not None and result.efficiency is not None:
        share = f"{result.efficiency:.0%} of what these stages can do at best ({number(result.bound_tokens_per_s)})"
        facts.add_row("efficiency", share)
        best = result.best_bound_tokens_per_s
        if best is not None and best > WORTH_TELLING * result.bound_tokens_per_s:
            facts.add_row(
                "", f"{result.tokens_per_s / best:.0%} of what the best cut of this fleet could do ({number(best)})"
            )
    if result.limited_by:
        facts.add_row("limited by", result.limited_by)
    facts.add_row(
        "loss",
        f"{number(result.loss.first, '.3f')} -> {number(result.loss.last, '.3f')}, held out "
        f"{number(result.loss.validation, '.3f')}",
    )
    facts.add_row(
        "wire",
        f"{number(result.wire.activation_bytes_per_token)} B a token forwards, "
        f"{number(result.wire.gradient_bytes_per_token)} backwards; {result.wire.bytes / 1e6:,.1f} MB in all",
    )
    ledger = result.ledger
    facts.add_row("samples", f"{ledger.committed:,} committed, {ledger.lost} lost, {ledger.repeated} repeated")
    if result.recoveries:
        facts.add_row("recoveries", str(result.recoveries))
    console.print(facts)
    if result.waits:
        console.print(stage_table(result))
    if result.links:
        console.print(link_table(result))


WORTH_TELLING = 1.02  # how much better another cut has to be

SHORT = {  # where the key is too long for a narrow terminal
    "forward_s": "fwd",
    "backward_s": "bwd",
    "optimizer_s": "opt",
    "evaluation_s": "eval",
    "encoding_s": "coding",
    "overhead_s": "own",
    "recovery_s": "recover",
}


def stage_table(result: "Result") -> "Table":
    """Return where the time of each stage went, in percent of it; parts that no stage has are left out."""
    from rich.table import Table

    from brigade.lab.attribution import PARTS

    table = Table(title="Where the time of stages went, in %", title_justify="left", title_style="bold", box=None)
    table.padding = (0, 1, 0, 0)
    table.add_column("stage", justify="right")
    table.add_column("node")
    shown = [part for part in PARTS if any(getattr(stage, part) >= 0.005 * stage.wall_s > 0 for stage in result.waits)]
    for part in shown:
        table.add_column(SHORT.get(part, part.removesuffix("_s")), justify="right")
    table.add_column("seconds", justify="right")
    for stage in result.waits:
        shares = [f"{100 * getattr(stage, part) / stage.wall_s:.0f}" if stage.wall_s else "-" for part in shown]
        table.add_row(str(stage.stage), stage.node, *shares, f"{stage.wall_s:.1f}")
    return table


def link_table(result: "Result") -> "Table":
    """Return what each link carried, how busy its narrowest line was, and how long devices waited for it."""
    from rich.table import Table

    table = Table(title="Links between stages", title_justify="left", title_style="bold", box=None)
    table.add_column("from")
    table.add_column("to")
    for name in ("MB", "line busy", "waited for, s"):
        table.add_column(name, justify="right")
    for link in result.links:
        busy = "-" if link.busy_share is None else f"{link.busy_share:.1%}"
        table.add_row(link.source, link.target, f"{link.bytes / 1e6:,.2f}", busy, f"{link.waiting_s:.2f}")
    return table
