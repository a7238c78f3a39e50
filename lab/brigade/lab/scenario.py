"""Reads a scenario file (TOML): a mistake names file, key, what was found and what was expected."""

import dataclasses
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from brigade.coordinator.run_file import RunFile, read_run_file
from brigade.coordinator.table_errors import explain
from brigade.lab.availability_file import trace_events
from brigade.lab.devices import DEVICES
from brigade.lab.host_list import each_host
from brigade.lab.known_names import explain_unknown
from brigade.lab.quantities import parse_rate
from brigade.lab.scenario_spec import (
    COORDINATOR,
    CoordinatorKill,
    EventSpec,
    HostSpec,
    Join,
    LinkEvent,
    LinkRate,
    LinksKind,
    ScenarioSpec,
)
from brigade.node.byte_size import parse_byte_size
from brigade.node.emulated_speed import EmulatedSpeed, parse_speed
from brigade.wire.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario file that has been read and found sound, with its job."""

    path: Path
    spec: ScenarioSpec
    hosts: tuple[HostSpec, ...]  # one each, without counts
    events: tuple[EventSpec, ...]  # those of the trace included
    run: RunFile

    def starting(self) -> tuple[str, ...]:
        """Return the hosts that take part from the beginning: those that no event brings in first."""
        first: dict[str, EventSpec] = {}
        for event in sorted(self.events, key=_moment):
            if not isinstance(event, CoordinatorKill | LinkEvent):
                first.setdefault(event.host, event)
        return tuple(host.name for host in self.hosts if not isinstance(first.get(host.name), Join))

    def over(self, links: LinksKind) -> "Scenario":
        """Return the same scenario over links of another kind."""
        return dataclasses.replace(self, spec=replace(self.spec, links=links))


def read_scenario(path: Path, seed: int | None = None) -> Scenario:
    """Return the scenario that a file describes, with another seed if one is given; paths in it are relative to it.

    Raises ConfigError for anything that cannot be carried out, the job's run file included.
    """
    table = _read_toml(path)
    try:
        spec = msgspec.convert(table, ScenarioSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {explain(ScenarioSpec, table, str(error))}") from error
    if seed is not None:
        spec = replace(spec, seed=seed)
    try:
        hosts = each_host(spec.host)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    for complaint in _unsound(spec, hosts):
        raise ConfigError(f"{path}: {complaint}")
    run = read_run_file(path.parent / spec.run)
    events = spec.event
    if spec.trace is not None:
        try:
            events += trace_events(spec.trace, path.parent, [host.name for host in hosts], spec.seed)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
    scenario = Scenario(path=path, spec=spec, hosts=hosts, events=events, run=run)
    needed, there = run.spec.pipeline.nodes, len(scenario.starting())
    if there < needed:
        raise ConfigError(
            f"{path}: {there} hosts take part from the beginning, but {run.path} waits for {needed} nodes"
        )
    return scenario


def speed_of(host: HostSpec) -> EmulatedSpeed | None:
    """Return the speed that a host's node pretends to have; None: that of this machine."""
    if host.device in DEVICES:
        return DEVICES[host.device].speed
    return parse_speed(host.emulate) if host.emulate else None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no scenario file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits, too
        raise ConfigError(f"{path} is not TOML: {error}") from error


def _unsound(spec: ScenarioSpec, hosts: Sequence[HostSpec]) -> Iterator[str]:
    """Yield what is valid by itself and does not fit together."""
    names = [host.name for host in hosts]
    sites = sorted({host.site for host in hosts if host.site})
    for index, host in enumerate(spec.host):
        if host.emulate and host.device:
            yield f"host[{index}]: emulate and device exclude each other"
        if host.device:
            yield from _unknown(f"host[{index}].device", host.device, list(DEVICES))
        try:
            speed_of(host)
        except ConfigError as error:
            yield f"host[{index}].emulate: {error}"
        try:
            parse_byte_size(host.memory or "0")
        except ConfigError as error:
            yield f"host[{index}].memory: {error}"
    for place, text in _rates(spec):
        try:
            parse_rate(text)
        except ConfigError as error:
            yield f"{place}: {error}"
    for index, pair in enumerate(spec.pair):
        for name in pair.between:
            yield from _unknown(f"pair[{index}].between", name, [*names, *sites, COORDINATOR])
        if len(set(pair.between)) == 1 and pair.between[0] not in sites:
            yield f"pair[{index}].between: {pair.between[0]!r} twice"
    for between, count in Counter(frozenset(pair.between) for pair in spec.pair).items():
        if count > 1:
            yield f"pair: {count} of them are between {' and '.join(map(repr, sorted(between)))}; expected one"
    if spec.trace is not None and bool(spec.trace.file) == bool(spec.trace.generator):
        yield "trace: expected one of file (a CSV file) and generator (volunteers or spot)"
    for index, event in enumerate(spec.event):
        yield from _unsound_event(f"event[{index}]", event, names)


def _unsound_event(place: str, event: EventSpec, names: Sequence[str]) -> Iterator[str]:
    if (event.at_s is None) == (event.at_step is None):
        yield f"{place}: expected one of at_s (seconds after training began) and at_step (steps committed)"
    if isinstance(event, CoordinatorKill):
        return
    linked = isinstance(event, LinkEvent)
    yield from _unknown(f"{place}.host", event.host, [*names, COORDINATOR] if linked else names)
    if isinstance(event, LinkRate):
        if event.up is None and event.down is None:
            yield f"{place}: a link_rate says up or down or both"
    elif isinstance(event, LinkEvent) and event.other:
        yield from _unknown(f"{place}.other", event.other, [*names, COORDINATOR])
        if event.other == event.host:
            yield f"{place}.other: {event.other!r} is the host itself"


def _unknown(place: str, name: str, known: Sequence[str]) -> Iterator[str]:
    if complaint := explain_unknown(name, known):
        yield f"{place}: {complaint}"


def _rates(spec: ScenarioSpec) -> Iterator[tuple[str, str]]:
    links = [("coordinator", spec.coordinator), *((f"host[{i}]", host) for i, host in enumerate(spec.host))]
    for place, link in links:
        yield f"{place}.up", link.up
        yield f"{place}.down", link.down
    yield from ((f"pair[{i}].rate", pair.rate) for i, pair in enumerate(spec.pair))
    for i, event in enumerate(spec.event):
        if isinstance(event, LinkRate):
            yield from ((f"event[{i}].{key}", rate) for key in ("up", "down") if (rate := getattr(event, key)))


def _moment(event: EventSpec) -> float:
    """Return a number by which the events of one host, all by time or all by step, come in order."""
    return event.at_s if event.at_s is not None else float(event.at_step or 0)
