"""Availability traces as CSV files, and as the events of a scenario."""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from brigade.lab.availability import Period, draw_periods
from brigade.lab.availability_spec import TraceSpec
from brigade.lab.known_names import explain_unknown
from brigade.lab.quantities import MOST_S
from brigade.lab.scenario_spec import EventSpec, Join, Kill, Leave
from brigade.wire.errors import ConfigError

COLUMNS = ("node", "start_s", "end_s")


def trace_events(spec: TraceSpec, directory: Path, hosts: Sequence[str], seed: int) -> tuple[EventSpec, ...]:
    """Return what a trace makes happen to these hosts; a period that begins at 0 is there from the beginning.

    A file's path is relative to `directory`. Raises ConfigError that names file and line.
    """
    if spec.generator:
        periods = draw_periods(spec, hosts, seed if spec.seed is None else spec.seed)
        never = set(hosts) - {period.node for period in periods}
        horizon_s = spec.hours * 3600 / spec.compress  # somebody who never comes comes when all is over
        periods += [Period(node, horizon_s, math.inf) for node in hosts if node in never]
    else:
        periods = read_periods(directory / spec.file, hosts)
    ends = Kill if spec.ends == "kill" else Leave
    events: list[EventSpec] = []
    for period in periods:
        if period.start_s > 0:
            events.append(Join(host=period.node, at_s=period.start_s))
        if math.isfinite(period.end_s):
            events.append(ends(host=period.node, at_s=period.end_s))
    return tuple(events)


def read_periods(path: Path, hosts: Sequence[str]) -> list[Period]:
    """Return the periods of a CSV file; an empty `end_s` means that the node stays."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:  # ValueError: no UTF-8, or a path with a null byte
        raise ConfigError(f"{path} cannot be read: {error}") from error
    periods = []
    last: dict[str, float] = defaultdict(float)  # by node: when its last period ended
    for number, row in enumerate(rows, start=2):
        where = f"{path}, line {number}"
        try:
            period = Period(row["node"], float(row["start_s"]), float(row["end_s"] or "inf"))
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"{where}: expected the columns {', '.join(COLUMNS)}") from None
        if complaint := explain_unknown(period.node, hosts):
            raise ConfigError(f"{where}: node: {complaint}")
        if not 0 <= period.start_s < period.end_s:
            found = f"{period.start_s:g} to {period.end_s:g}"
            raise ConfigError(f"{where}: a period ends after it starts; found {found}")
        if period.start_s > MOST_S or (period.end_s > MOST_S and math.isfinite(period.end_s)):
            raise ConfigError(f"{where}: expected at most {MOST_S} seconds, or no end_s")
        if period.start_s < last[period.node]:
            raise ConfigError(f"{where}: {period.node} is there already; expected its periods one after the other")
        last[period.node] = period.end_s
        periods.append(period)
    return periods


def write_periods(path: Path, periods: Iterable[Period]) -> None:
    """Write a CSV file that `read_periods` reads."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for period in periods:
                end = f"{period.end_s:.3f}" if math.isfinite(period.end_s) else ""
                writer.writerow((period.node, f"{period.start_s:.3f}", end))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
