"""`brigade revoke`: take a node's admission back."""

from typing import Annotated

import typer

from brigade.cli.choices import RunDirectory
from brigade.cli.owner import tell_coordinator

Node = Annotated[str, typer.Argument(metavar="NODE", help="The node's name as `brigade status` shows it, or its id.")]


def revoke(node: Node, run_dir: RunDirectory = None) -> None:
    """Take the admission of a node back.

    Its key is not let in again. A node that holds a stage sees the step under way through: the run saves and ends.
    """
    from brigade.wire.messages import RevokeWanted

    typer.echo(tell_coordinator(run_dir, RevokeWanted(node=node)))
