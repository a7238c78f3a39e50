"""`brigade up`: start the coordinator of a run."""

from pathlib import Path
from typing import Annotated

import typer

from brigade.cli.choices import EndWithStdin, Quiet, Verbose, verbosity_of

RunFile = Annotated[
    Path | None,
    typer.Argument(metavar="RUN.toml", help="The run file; with --resume, that of the last run when absent."),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on from the newest checkpoint of the run, where it listened before."),
]
Listen = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="Where nodes reach the coordinator; 0.0.0.0:7700 for other machines, port 0 picks one;"
        " 127.0.0.1:7700 when absent.",
    ),
]
Advertise = Annotated[
    str, typer.Option(metavar="HOST", help="The address to put into the invite; found out when absent.")
]
OutputDirectory = Annotated[
    Path | None,
    typer.Option("--output-dir", metavar="DIR", help="Where the run goes; as the run file says when absent."),
]
Costs = Annotated[
    Path | None,
    typer.Option(
        "--costs", metavar="FILE", help="Plan with these costs, such as the costs.json of a run, instead of measuring."
    ),
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print progress as JSON, one object a line.")]


def up(
    run_file: RunFile = None,
    resume: Resume = False,
    listen: Listen = "",
    advertise: Advertise = "",
    output_dir: OutputDirectory = None,
    costs: Costs = None,
    json_lines: JsonLines = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    lifeline: EndWithStdin = False,
) -> None:
    """Start a run: gather nodes, train, write the model.

    Prints the line that starts a node. Ctrl-C saves after the current step and ends; a second one ends at once.
    `brigade up --resume` alone goes on with the run that was started last.
    """
    from brigade.cli.last_run import begun_from, remember
    from brigade.cli.lifeline import end_with_stdin
    from brigade.coordinator.daemon import run_coordinator

    if run_file is None and not resume:
        raise typer.BadParameter("name the run file; only --resume can do without", param_hint="RUN.toml")
    if run_file is None:
        run_file, output_dir = begun_from(output_dir)
    if lifeline:
        end_with_stdin()
    raise typer.Exit(
        run_coordinator(
            run_file,
            listen=listen,
            resume=resume,
            output_dir=output_dir,
            advertise=advertise,
            verbosity=verbosity_of(verbose, quiet),
            json_lines=json_lines,
            costs=costs,
            started=remember,
        )
    )
