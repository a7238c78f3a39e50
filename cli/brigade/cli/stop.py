"""`brigade stop`: end a run in good order."""

import typer

from brigade.cli.choices import RunDirectory
from brigade.cli.owner import tell_coordinator


def stop(run_dir: RunDirectory = None) -> None:
    """Save after the current step and end the run.

    `brigade up --resume` goes on from there.
    """
    from brigade.wire.messages import StopWanted

    typer.echo(tell_coordinator(run_dir, StopWanted()))
