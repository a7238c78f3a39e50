"""`brigade status`: how a run is."""

import typer

from brigade.cli.choices import AsJson, RunDirectory


def status(run_dir: RunDirectory = None, as_json: AsJson = False) -> None:
    """Show the state of a run, its stages, nodes and links.

    Without a running coordinator it shows what the run's files tell.
    """
    from brigade.cli.owner import read_status

    facts = read_status(run_dir)
    if as_json:
        import json

        typer.echo(json.dumps(facts, indent=2))
        return
    from brigade.cli.screen import open_console
    from brigade.cli.status_page import show_status

    show_status(facts, open_console())
