"""The `brigade` command: its subcommands, its version, and the one place that tells a person what went wrong.

Every subcommand imports what it needs when it runs, so that `brigade --help` answers at once.
"""

import logging
import sys
from typing import Annotated

import typer

from brigade.cli.availability import trace
from brigade.cli.bench import bench
from brigade.cli.crowd import crowd
from brigade.cli.demo import demo
from brigade.cli.export import export
from brigade.cli.join import join
from brigade.cli.lab import lab
from brigade.cli.report import report
from brigade.cli.revoke import revoke
from brigade.cli.status import status
from brigade.cli.stop import stop
from brigade.cli.up import up
from brigade.wire.errors import BrigadeError, ConfigError
from brigade.wire.harmless import harmless

EXIT_CODES = """\
Exit codes: 0 done; 1 the run failed; 2 bad usage, bad configuration, or refused; 3 stopped before the end, resume with
`brigade up --resume`; 130 interrupted twice."""

app = typer.Typer(
    name="brigade",
    help="Train one neural network over the machines and networks that people already have.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,  # rich would cost a third of the start-up time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        from importlib.metadata import version

        typer.echo(f"brigade {version('bucket-brigade')}")
        raise typer.Exit


@app.callback()
def brigade(
    _version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Hold what is common to all subcommands: nothing but the version."""


for command in (demo, up, join, status, stop, export, revoke, lab, report, bench, crowd, trace):
    app.command()(command)


def exit_code_of(error: BrigadeError) -> int:
    """Return 2 for what a person wrote wrongly, 1 for what went wrong."""
    return 2 if isinstance(error, ConfigError) else 1


def main() -> None:
    """Run the command line and end the process with the documented exit code."""
    try:
        app(prog_name="brigade")
    except BrigadeError as error:
        typer.echo(f"brigade: {harmless(str(error))}", err=True)
        sys.exit(exit_code_of(error))
    except Exception as error:
        log = logging.getLogger("brigade")
        if not log.handlers:  # nothing has begun: a bug, best seen whole
            raise
        log.exception("unforeseen: %s: %s (log.jsonl in the state directory holds more)", type(error).__name__, error)  # noqa: TRY401 - the screen shows no traceback
        sys.exit(1)


if __name__ == "__main__":
    main()
