"""Where commands print: the terminal as wide as it is, a pipe or file wide enough for every table."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_COLUMNS = 200  # nobody looks at the edge of a pipe


def open_console(*, quiet: bool = False) -> "Console":
    """Return a console for the standard output; COLUMNS goes before everything else."""
    from rich.console import Console

    console = Console(quiet=quiet, highlight=False, soft_wrap=True)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_COLUMNS
    return console
