"""`brigade trace`: draws when the nodes of a fleet are there, into a CSV file that a scenario can name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

Generator = Annotated[str, typer.Argument(metavar="volunteers|spot", help="Whose comings and goings.")]
Output = Annotated[Path, typer.Option("--output", metavar="FILE.csv", help="Where the periods go.")]
Hosts = Annotated[
    list[str], typer.Option("--host", metavar="NAME", help="A host; once for each, or NAME:COUNT for NAME-1 and so on.")
]
Hours = Annotated[
    float, typer.Option("--hours", metavar="H", min=0.01, max=10_000, help="Hours of the fleet's own time.")
]
Compress = Annotated[
    float,
    typer.Option(
        "--compress", metavar="X", min=0.001, max=1_000_000, help="How many times faster; 288: a day in five minutes."
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=10**15, help="Draw another one.")]


def trace(
    generator: Generator, hosts: Hosts, output: Output, hours: Hours = 24.0, compress: Compress = 1.0, seed: Seed = 0
) -> None:
    """Draw when volunteers or preemptible machines are there, as CSV.

    A scenario takes the file as `[trace] file = "FILE.csv"`; with `generator` instead it draws the same by itself.

    Example: brigade trace volunteers --host home:4 --compress 288 --output who.csv
    """
    import msgspec

    from brigade.coordinator.table_errors import explain
    from brigade.lab.availability import draw_periods
    from brigade.lab.availability_file import write_periods
    from brigade.lab.availability_spec import TraceSpec
    from brigade.wire.errors import ConfigError

    if generator not in ("volunteers", "spot"):
        raise ConfigError(f"{generator!r} is no generator; expected volunteers or spot")
    table = {"generator": generator, "hours": hours, "compress": compress}
    try:
        spec = msgspec.convert(table, TraceSpec)  # refuses nan, too
    except msgspec.ValidationError as error:
        raise ConfigError(f"--{explain(TraceSpec, table, str(error))}") from error
    names = host_names(hosts)
    periods = draw_periods(spec, names, seed)
    write_periods(output, periods)
    there = sum(period.start_s == 0.0 for period in periods)
    typer.echo(f"{len(periods)} periods of {len(names)} hosts, {there} there at the beginning, in {output}")


def host_names(texts: Sequence[str]) -> list[str]:
    """Return the names in `NAME` and `NAME:COUNT`, as a scenario gives them; ConfigError for what none would take."""
    import msgspec

    from brigade.coordinator.table_errors import explain
    from brigade.lab.host_list import each_host
    from brigade.lab.scenario_spec import HostSpec
    from brigade.wire.errors import ConfigError

    specs = []
    for text in texts:
        name, colon, count = text.partition(":")
        table = {"name": name, "count": count if colon else 1}
        try:
            specs.append(msgspec.convert(table, HostSpec, strict=False))  # a count is text here
        except msgspec.ValidationError as error:
            raise ConfigError(f"--host {text[:80]!r}: {explain(HostSpec, table, str(error))}") from error
    return [host.name for host in each_host(specs)]
