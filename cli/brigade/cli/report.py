"""`brigade report`: one page from finished experiments of the lab."""

from pathlib import Path
from typing import Annotated

import typer

from brigade.cli.choices import Quiet

Experiments = Annotated[
    list[Path],
    typer.Argument(metavar="EXPERIMENT...", help="Directories that `brigade lab` made, or their result.json."),
]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page.")]


def report(experiments: Experiments, output: Output = Path("report.html"), quiet: Quiet = False) -> None:
    """Draw finished experiments of the lab as one page, side by side.

    The first is what the others are compared with. The page is one file that needs no network.

    Example: brigade report runs/lab-home4 runs/lab-dsl6 --output both.html
    """
    from brigade.cli.output_file import require_writable
    from brigade.lab.experiment_files import read_experiment, require_plots, write_report

    require_plots()
    require_writable(output, "--output")
    write_report([read_experiment(path) for path in experiments], output)
    if not quiet:
        typer.echo(f"{output}: open it in a browser.")
