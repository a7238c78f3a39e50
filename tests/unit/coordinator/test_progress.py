"""What a person sees: plain lines, JSON lines, a bar, or only what is wrong."""

import io
import json

import pytest
from tests.unit.coordinator.scripted_fleet import World
from tests.unit.coordinator.scripted_node import make_spec

from brigade.coordinator.progress import Display, choose_mode, show_duration
from brigade.coordinator.run_events import Note


def show(mode, **options):
    """Return what a whole small run shows on standard output and on standard error."""
    output, errors = io.StringIO(), io.StringIO()
    display = Display(mode, output=output, errors=errors, **options)
    display.greet("toy", "127.0.0.1:7700", "brigade1-abc")
    world = World(make_spec(max_steps=4, logging_steps=2, save_steps=0, eval_steps=2))
    world.join("ada", "bob")
    while world.end is None:
        world.run(until=lambda w: w.core.run.tally.steps_done > (max(0, display._shown_steps)) or w.end)
        display.look(world.core.run)
    display.note(Note(kind="kind", text="good to know"))
    display.note(Note(kind="kind", text="[red]bad[/red]", level="warning"))
    display.close()
    return output.getvalue(), errors.getvalue()


def test_plain_lines():
    output, errors = show("lines")
    lines = output.splitlines()
    assert lines[0] == "Run toy listens at 127.0.0.1:7700. Start each node with:"
    assert "  brigade join brigade1-abc" in lines
    steps = [line.split()[1] for line in lines if line.startswith("step ")]
    assert steps == ["1/4", "2/4", "4/4"]
    assert sum(line.startswith("validation loss") for line in lines) == 2
    assert "good to know" in lines
    assert errors == "warning: [red]bad[/red]\n"


def test_json_lines_are_json():
    output, errors = show("json")
    events = [json.loads(line) for line in output.splitlines()]
    assert errors == ""
    assert [e["step"] for e in events if e["event"] == "step"] == [1, 2, 3, 4]
    assert [e["step"] for e in events if e["event"] == "evaluation"] == [2, 4]
    assert events[0] == {"event": "listening", "run": "toy", "endpoint": "127.0.0.1:7700", "invite": "brigade1-abc"}
    assert [e["text"] for e in events if e["event"] == "note"] == ["good to know", "[red]bad[/red]"]


def test_quiet_shows_only_what_is_wrong():
    output, errors = show("quiet")
    assert output == ""
    assert errors == "warning: [red]bad[/red]\n"


def test_the_bar_shows_loss_rate_and_time_left():
    output, _ = show("bar")
    assert "4/4" in output
    assert "loss" in output
    assert "tokens/s" in output
    assert "left" in output


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, "-"), (0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3661, "1:01:01")]
)
def test_durations(seconds, shown):
    assert show_duration(seconds) == shown


def test_the_mode_fits_the_output():
    assert choose_mode(quiet=False, json_lines=True) == "json"
    assert choose_mode(quiet=True, json_lines=False) == "quiet"
    assert choose_mode(quiet=False, json_lines=False) == "lines"  # pytest's output is no terminal
