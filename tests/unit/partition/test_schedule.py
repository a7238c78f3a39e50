"""Schedules: their orders, their text, their closed forms."""

import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.partition.schedule import (
    SCHEDULES,
    Action,
    build,
    format_schedule,
    parse_schedule,
    peak_in_flight,
)
from brigade.wire.errors import ConfigError, PlanError
from brigade.wire.run_spec import PipelineSpec

GOLDEN = Path(__file__).parents[2] / "golden" / "schedules.txt"
SHAPES = [(1, 1), (1, 4), (2, 1), (2, 4), (3, 2), (3, 6), (4, 4), (6, 8)]


def render() -> str:
    parts = []
    for name in sorted(SCHEDULES):
        for stages, microbatches in SHAPES:
            title = f"# {name}, {stages} stages, {microbatches} microbatches\n"
            parts.append(title + format_schedule(build(name, stages, microbatches)))
    return "\n".join(parts)


def test_text_is_as_reviewed(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--regenerate-golden", default=False):
        GOLDEN.write_text(render())
    assert render() == GOLDEN.read_text()


def test_1f1b_is_the_textbook_order() -> None:
    assert format_schedule(build("1f1b", 3, 4)) == (
        "F0 F1 F2 B0 F3 B1 B2 B3\nF0 F1 B0 F2 B1 F3 B2 B3\nF0 B0 F1 B1 F2 B2 F3 B3\n"
    )


def test_gpipe_fills_then_drains() -> None:
    assert format_schedule(build("gpipe", 2, 3)) == "F0 F1 F2 B0 B1 B2\n" * 2


def test_run_files_may_name_every_schedule() -> None:
    assert set(get_args(get_type_hints(PipelineSpec)["schedule"])) == set(SCHEDULES)


@given(stages=st.integers(1, 9), microbatches=st.integers(1, 20))
def test_in_flight_closed_forms(stages: int, microbatches: int) -> None:
    assert peak_in_flight(build("gpipe", stages, microbatches)) == (microbatches,) * stages
    expected = tuple(min(microbatches, stages - stage) for stage in range(stages))
    assert peak_in_flight(build("1f1b", stages, microbatches)) == expected


@given(name=st.sampled_from(sorted(SCHEDULES)), stages=st.integers(1, 9), microbatches=st.integers(1, 20))
def test_gradients_are_summed_in_one_order_everywhere(name: str, stages: int, microbatches: int) -> None:
    for order in build(name, stages, microbatches):
        for kind in "FB":
            assert [action.index for action in order if action.kind == kind] == list(range(microbatches))


@pytest.mark.parametrize(("name", "stages", "microbatches"), [("zigzag", 2, 2), ("1f1b", 0, 2), ("gpipe", 2, 0)])
def test_build_refuses(name: str, stages: int, microbatches: int) -> None:
    with pytest.raises(PlanError):
        build(name, stages, microbatches)


actions = st.builds(Action, st.sampled_from(["F", "B"]), st.integers(0, 999_999))


@given(st.lists(st.lists(actions, min_size=1, max_size=6).map(tuple), min_size=1, max_size=5).map(tuple))
def test_text_round_trip(schedule: tuple[tuple[Action, ...], ...]) -> None:
    assert parse_schedule(format_schedule(schedule)) == schedule


def test_stage_prefixes_comments_and_empty_lines() -> None:
    text = "# two stages\n\n0F0 F1  0B0 B1 # first\r\n\t1F0 1B0 1F1 1B1\n"
    assert parse_schedule(text) == parse_schedule("F0 F1 B0 B1\nF0 B0 F1 B1\n")


@pytest.mark.parametrize(
    ("text", "line", "column", "found"),
    [
        ("", 1, 1, "no action"),
        ("# nothing\n\n", 1, 1, "no action"),
        ("F0 B0\nF0  X0", 2, 5, "'X0'"),
        ("F0 f0", 1, 4, "'f0'"),
        ("F", 1, 1, "'F'"),
        ("F-1", 1, 1, "'F-1'"),
        ("F1234567", 1, 1, "'F1234567'"),
        ("F\u0663", 1, 1, "'F\u0663'"),
        ("0F0\n0F0", 2, 1, "line of stage 1"),
        ("F0 " + "y" * 5000, 1, 4, "'yyyyyyyyyyyyyyyyyyyy...'"),
    ],
)
def test_mistakes_are_located(text: str, line: int, column: int, found: str) -> None:
    with pytest.raises(ConfigError, match=f"line {line}, column {column}: ") as error:
        parse_schedule(text)
    assert found in str(error.value)


@given(st.text() | st.text(alphabet="FB0129 \n#\r\t\x00"))
def test_any_text_is_a_schedule_or_a_located_mistake(text: str) -> None:
    try:
        schedule = parse_schedule(text)
    except ConfigError as caught:
        mistake = str(caught)
    else:
        mistake = ""
        assert parse_schedule(format_schedule(schedule)) == schedule
    assert not mistake or re.search(r"line \d+, column \d+: ", mistake)
