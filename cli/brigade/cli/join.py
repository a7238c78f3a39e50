"""`brigade join`: start a node daemon."""

from pathlib import Path
from typing import Annotated

import typer

from brigade.cli.choices import EndWithStdin, Quiet, Verbose, verbosity_of
from brigade.wire.errors import ConfigError

Invite = Annotated[
    str,
    typer.Argument(
        metavar="INVITE",
        envvar="BRIGADE_INVITE",
        show_envvar=True,
        help="The text that `brigade up` printed, or a file that holds it.",
    ),
]
Name = Annotated[str | None, typer.Option(envvar="BRIGADE_NAME", metavar="NAME", help="What others see this node as.")]
State = Annotated[
    Path | None,
    typer.Option(
        envvar="BRIGADE_STATE",
        metavar="DIR",
        help="Directory for the node's key and cache; below $XDG_STATE_HOME/brigade/nodes when absent.",
    ),
]
Device = Annotated[str, typer.Option(envvar="BRIGADE_DEVICE", metavar="auto|cpu|cuda:N|mps", help="What to train on.")]
Listen = Annotated[
    str,
    typer.Option(
        envvar="BRIGADE_LISTEN", metavar="HOST:PORT", help="Where neighbours reach this node; port 0 picks one."
    ),
]
Advertise = Annotated[
    str,
    typer.Option(
        envvar="BRIGADE_ADVERTISE",
        metavar="HOST",
        help="The address to tell neighbours; what the coordinator sees when absent.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        envvar="BRIGADE_THREADS", metavar="N", min=1, help="Threads for computing; the cores that are free when absent."
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        envvar="BRIGADE_MEMORY",
        metavar="BYTES",
        help="Use at most so much memory, like 4GiB; what is free when absent.",
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE",
        help="Let the run file name functions of this package (model, data, loss); may be given again.",
    ),
]
Patience = Annotated[
    float,
    typer.Option(
        envvar="BRIGADE_PATIENCE", metavar="SECONDS", min=0.0, help="How long to look for a coordinator that has gone."
    ),
]
Timeline = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write what this node does when to a file, as JSON lines; at most 64 MiB are kept."
    ),
]
Emulate = Annotated[
    str,
    typer.Option(
        metavar="SPEED", hidden=True, help="Pretend to be as fast as '2x', '0.05 s/GFLOP' or what @FILE says."
    ),
]


def join(
    *,
    invite: Invite,
    name: Name = None,
    state: State = None,
    device: Device = "auto",
    listen: Listen = "0.0.0.0:0",
    advertise: Advertise = "",
    threads: Threads = None,
    memory: Memory = "",
    trust: Trust = None,
    patience: Patience = 600.0,
    timeline: Timeline = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    emulate: Emulate = "",
    lifeline: EndWithStdin = False,
) -> None:
    """Take part in a run with this machine.

    Ctrl-C or SIGTERM leaves in good order.
    """
    from brigade.cli.lifeline import end_with_stdin
    from brigade.node.byte_size import parse_byte_size
    from brigade.node.options import NodeOptions

    options = NodeOptions(
        invite=read_invite(invite),
        name=name,
        state_dir=state,
        device=device,
        listen=listen,
        advertise=advertise,
        threads=threads,
        memory_limit_bytes=parse_byte_size(memory, "--memory") if memory else 0,
        trusted=tuple(trust or ()),
        patience_s=patience,
        timeline=timeline,
        emulate=emulate,
        verbosity=verbosity_of(verbose, quiet),
    )
    if lifeline:
        end_with_stdin()

    from brigade.node.daemon import run_node

    raise typer.Exit(run_node(options))


def read_invite(text: str) -> str:
    """Return the invite; a file keeps it out of the list of processes."""
    if text.strip().startswith("brigade"):  # every invite does
        return text.strip()
    try:
        return Path(text).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        raise ConfigError(f"{text!r} is neither an invite (brigade1-...) nor a file that holds one") from None
