"""`brigade trace`: draws when the nodes of a fleet are there, into a CSV file that a scenario can name."""

from pathlib import Path
from typing import Annotated

import typer

Generator = Annotated[str, typer.Argument(metavar="volunteers|spot", help="Whose comings and goings.")]
Output = Annotated[Path, typer.Option("--output", metavar="FILE.csv", help="Where the periods go.")]
Hosts = Annotated[
    list[str], typer.Option("--host", metavar="NAME", help="A host; once for each, or NAME:COUNT for NAME-1 and so on.")
]
Hours = Annotated[float, typer.Option("--hours", metavar="H", min=0.01, help="Hours of the fleet's own time.")]
Compress = Annotated[
    float, typer.Option("--compress", metavar="X", min=0.001, help="How many times faster; 288: a day in five minutes.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Draw another one.")]


def trace(
    generator: Generator, hosts: Hosts, output: Output, hours: Hours = 24.0, compress: Compress = 1.0, seed: Seed = 0
) -> None:
    """Draw when volunteers or preemptible machines are there, as CSV.

    A scenario takes the file as `[trace] file = "FILE.csv"`; with `generator` instead it draws the same by itself.

    Example: brigade trace volunteers --host home:4 --compress 288 --output who.csv
    """
    import msgspec

    from brigade.lab.availability import draw_periods
    from brigade.lab.availability_file import write_periods
    from brigade.lab.availability_spec import TraceSpec
    from brigade.wire.errors import ConfigError

    if generator not in ("volunteers", "spot"):
        raise ConfigError(f"{generator!r} is no generator; expected volunteers or spot")
    spec = msgspec.convert({"generator": generator, "hours": hours, "compress": compress}, TraceSpec)
    names = [name for text in hosts for name in _names(text)]
    periods = draw_periods(spec, names, seed)
    write_periods(output, periods)
    there = sum(period.start_s == 0.0 for period in periods)
    typer.echo(f"{len(periods)} periods of {len(names)} hosts, {there} there at the beginning, in {output}")


def _names(text: str) -> list[str]:
    """Return one name, or those that a scenario gives to a host with a count."""
    name, colon, count = text.partition(":")
    if not colon:
        return [text]
    return [f"{name}-{number + 1}" for number in range(int(count))] if count.isdecimal() else [text]
