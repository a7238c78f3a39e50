"""PROTOCOL.md and the code say the same: messages, parts of messages, and limits, field by field."""

import dataclasses
import re
import typing
from pathlib import Path

from brigade.wire.limits import Limits
from brigade.wire.messages import MESSAGES

TEXT = (Path(__file__).resolve().parents[2] / "PROTOCOL.md").read_text(encoding="utf-8")
SOCKETS = {"control", "pulse", "bulk", "data"}


def rows_of(first_heading):
    """Return the cells of the one table whose first column is headed like this, by the first cell."""
    (table,) = re.findall(rf"^\| {first_heading} \|.*\n\|[ \-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in table.splitlines()]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1:] for row in rows}


def documented(cell):
    return re.findall(r"`([^`]+)`", cell)


def fields_of(kind):
    """Return the field names, with a question mark after those that have a default."""
    missing = dataclasses.MISSING
    return [
        field.name + ("?" if field.default is not missing or field.default_factory is not missing else "")
        for field in dataclasses.fields(kind)
    ]


def parts_of(kind, found):
    """Collect the dataclasses inside a type's annotations."""
    for annotation in typing.get_type_hints(kind).values():
        pending = [annotation]
        while pending:
            inner = pending.pop()
            pending.extend(typing.get_args(inner))
            if isinstance(inner, type) and dataclasses.is_dataclass(inner) and inner.__name__ not in found:
                found[inner.__name__] = inner
                parts_of(inner, found)
    return found


def test_every_message_stands_in_the_table_and_no_other():
    assert list(rows_of("message")) == list(MESSAGES)


def test_messages_have_the_fields_of_the_table():
    table = {name: documented(row[2]) for name, row in rows_of("message").items()}
    assert table == {name: fields_of(kind) for name, kind in MESSAGES.items()}


def test_every_message_has_a_direction_a_socket_and_a_meaning():
    for name, (direction, socket, _, meaning) in rows_of("message").items():
        assert re.fullmatch(r"[NCO] to [NCO](, [NCO] to [NCO])*", direction), name
        assert socket in SOCKETS, name
        assert (socket == "data") == (direction == "N to N"), name
        assert meaning, name


def test_the_sockets_of_the_table_are_described():
    assert set(rows_of("socket")) == SOCKETS


def test_parts_have_the_fields_of_their_table():
    parts = {}
    for kind in MESSAGES.values():
        parts_of(kind, parts)
    assert {name: documented(row[0]) for name, row in rows_of("part").items()} == {
        name: fields_of(kind) for name, kind in parts.items()
    }


def test_limits_are_those_of_the_table():
    table = {documented(name)[0]: int(row[0]) for name, row in rows_of("limit").items()}
    assert table == dataclasses.asdict(Limits())


def test_packets_have_the_kinds_of_the_table():
    from brigade.wire import session_packets

    kinds = {name: int(row[0]) for name, row in rows_of("packet").items()}
    assert kinds == {name: getattr(session_packets, f"_{name.upper()}") for name in kinds}
