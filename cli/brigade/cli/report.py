"""`brigade report`: one page from finished experiments of the lab."""

from pathlib import Path
from typing import Annotated

import typer

from brigade.cli.choices import Quiet

Experiments = Annotated[
    list[Path], typer.Argument(metavar="EXPERIMENT...", help="Directories of experiments, or their result.json.")
]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page.")]


def report(experiments: Experiments, output: Output = Path("report.html"), quiet: Quiet = False) -> None:
    """Draw one page from finished experiments: several are compared with the first.

    The page is one file that needs no network. Timelines and result lie in the directory that `brigade lab` made.
    """
    from brigade.lab.experiment_files import read_experiment, require_plots, write_report

    require_plots()
    write_report([read_experiment(path) for path in experiments], output)
    if not quiet:
        typer.echo(f"{output}: open it in a browser.")
