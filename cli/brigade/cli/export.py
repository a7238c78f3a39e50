"""`brigade export`: merge a checkpoint into one file."""

from pathlib import Path
from typing import Annotated

import typer

from brigade.cli.choices import RunDirectory

Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Where to write; model.safetensors in the run's directory when absent."
    ),
]
Step = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="The checkpoint after N steps; the newest when absent.")
]


def export(run_dir: RunDirectory = None, output: Output = None, step: Step = None) -> None:
    """Write the weights of a checkpoint as one safetensors file.

    The names are `<block>.<parameter>`: they load into the plain torch model.
    """
    from brigade.cli.last_run import find_run
    from brigade.coordinator.export import export_model

    typer.echo(export_model(find_run(run_dir), output=output, step=step))
