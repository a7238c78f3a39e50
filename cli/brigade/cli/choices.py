"""The options and arguments that several subcommands share."""

import math
from pathlib import Path
from typing import Annotated

import typer

RunDirectory = Annotated[
    Path | None,
    typer.Argument(metavar="RUN_DIR", help="The run's directory; the run that was started last when absent."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more while working.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings and errors.")]
EndWithStdin = Annotated[bool, typer.Option("--end-with-stdin", hidden=True)]


def finite(value: float) -> float:
    """Return a number that an option was given; typer's error for `nan`, which passes any range."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number.")
    return value


def verbosity_of(verbose: bool, quiet: bool) -> int:
    """Return 1 for verbose, -1 for quiet, 0 otherwise."""
    return int(verbose) - int(quiet)
