"""`brigade demo`: the whole line on this machine, from text to a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from brigade.cli.choices import Quiet, Verbose

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
    raise typer.Exit(1)
