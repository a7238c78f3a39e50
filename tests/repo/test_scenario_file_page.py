"""docs/scenario-file.md and the code say the same: tables, kinds of events and devices of a scenario file."""

import re
import tomllib
from typing import get_args

import msgspec
import pytest
from msgspec.structs import fields
from tests.reference_page import DOCS, TABLE, cells, expected_rows, section, table_under, toml_examples

from brigade.lab.availability_spec import Spot, TraceSpec, Volunteers
from brigade.lab.devices import DEVICES
from brigade.lab.scenario import read_scenario
from brigade.lab.scenario_spec import MOST_HOSTS, EventSpec, HostSpec, LinkSpec, Moment, PairSpec, ScenarioSpec

TEXT = (DOCS / "scenario-file.md").read_text(encoding="utf-8")
JOB = DOCS.parent / "examples" / "lab" / "home4" / "run.toml"
KINDS = get_args(EventSpec)
OF_A_LINE = {field.name for field in fields(LinkSpec)}
OF_A_MOMENT = {field.name for field in fields(Moment)}


def own_fields(kind):
    return [field for field in fields(kind) if field.name not in OF_A_MOMENT]


def event_fields():
    """Return the keys of events, each once: one that several kinds have is the same in all."""
    found = {field.name: field for field in fields(Moment)}
    for kind in KINDS:
        for field in own_fields(kind):
            known = found.setdefault(field.name, field)
            assert expected_rows([known]) == expected_rows([field])
    return list(found.values())


SECTIONS = {
    "Top level": fields(ScenarioSpec),
    "host": [field for field in fields(HostSpec) if field.name not in OF_A_LINE],
    "line": fields(LinkSpec),
    "pair": fields(PairSpec),
    "event": event_fields(),
    "trace": fields(TraceSpec),
    "trace, volunteers": fields(Volunteers),
    "trace, spot": fields(Spot),
}


def rows_behind(heading, *columns):
    """Return the rows of the table with these columns in a section."""
    (rows,) = re.findall(
        rf"^\| {re.escape(' | '.join(columns))} \|\n\|[ \-|]+\n((?:\|.*\n)+)", section(TEXT, heading), re.MULTILINE
    )
    return cells(rows)


def test_every_table_of_keys_belongs_to_a_structure():
    assert len(TABLE.findall(TEXT)) == len(SECTIONS)


@pytest.mark.parametrize("heading", SECTIONS)
def test_keys_types_and_defaults_are_those_of_the_code(heading):
    rows = table_under(TEXT, heading)
    assert [row[:3] for row in rows] == expected_rows(SECTIONS[heading])
    assert all(meaning for *_, meaning in rows)


def test_kinds_of_events_have_the_keys_that_they_are_said_to_have():
    rows = rows_behind("event", "kind", "its keys", "what happens")
    expected = [
        [f"`{kind.__struct_config__.tag}`", ", ".join(f"`{field.name}`" for field in own_fields(kind))]
        for kind in KINDS
    ]
    assert [row[:2] for row in rows] == expected
    assert all(meaning for *_, meaning in rows)


def test_devices_have_the_speeds_and_sources_of_the_code():
    rows = rows_behind("Devices", "device", "peak, GFLOP/s", "s/GFLOP", "units and clock")
    assert rows == [
        [f"`{name}`", f"{device.peak_gflops:,}", f"{device.speed.s_per_gflop:.3g}", device.source]
        for name, device in DEVICES.items()
    ]


def test_it_names_the_most_hosts():
    assert f"at most {MOST_HOSTS} in all" in TEXT


def test_its_examples_are_scenarios(tmp_path):
    whole, *parts = [tomllib.loads(example) for example in toml_examples(TEXT)]
    assert parts
    for part in parts:
        msgspec.convert(whole | part, ScenarioSpec)
    path = tmp_path / "scenario.toml"
    first, *_ = toml_examples(TEXT)
    path.write_text(first.replace('"run.toml"', f'"{JOB}"'), encoding="utf-8")
    assert [host.name for host in read_scenario(path).hosts] == ["home-1", "home-2", "home-3", "board"]
