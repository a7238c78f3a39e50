"""`brigade status`: how a run is."""

import typer

from brigade.cli.choices import AsJson, RunDirectory


def status(run_dir: RunDirectory = None, as_json: AsJson = False) -> None:
    """Show the state of a run, its stages, nodes and links."""
    raise typer.Exit(1)
