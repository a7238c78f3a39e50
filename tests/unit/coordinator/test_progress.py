"""What a person sees: plain lines, JSON lines, a bar, or only what is wrong."""

import io
import json

import pytest
from tests.unit.coordinator.scripted_fleet import World
from tests.unit.coordinator.scripted_node import make_spec

from brigade.coordinator.progress import Display, choose_mode
from brigade.coordinator.run_events import Note
from brigade.coordinator.wording import show_duration, steps_are_done
from brigade.wire import messages as m


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


class Terminal(io.StringIO):
    """Text that goes to a terminal, as far as rich can tell."""

    def isatty(self):
        return True


def test_a_terminal_counts_down_while_nodes_are_awaited_and_shows_no_line_for_it():
    output, now = Terminal(), [100.0]
    display = Display("bar", output=output, errors=output, clock=lambda: now[0])
    world = World(make_spec())  # a minute to gather
    world.join("ada")
    world.settle()
    now[0] = world.now + 22.0
    display.look(world.core.run)
    display.note(Note(kind="waiting", text="waiting for nodes, as a line"))
    display._countdown.refresh()
    assert "waiting for nodes (1 of 2, giving up in 0:38)" in output.getvalue()
    assert "as a line" not in output.getvalue()
    world.join("bob")
    world.settle()
    display.look(world.core.run)
    assert display._countdown is None
    display.close()


def test_the_bar_is_gone_before_the_end_is_told():
    display = Display("bar", output=io.StringIO(), errors=io.StringIO())
    world = World(make_spec(max_steps=2))
    world.join("ada", "bob")
    drawn = []
    while world.end is None:
        steps = world.core.run.tally.steps_done
        world.run(until=lambda w: w.core.run.tally.steps_done > steps or w.end)  # noqa: B023 - called at once
        display.look(world.core.run)
        drawn.append(display._bar is not None)
    assert drawn == [True, False, False]


def test_a_cause_is_shown_once():
    errors = io.StringIO()
    display = Display("quiet", output=io.StringIO(), errors=errors)
    display.note(Note(kind="lost", text="node bob is lost: gone", level="warning", cause="node bob is lost: gone"))
    display.note(Note(kind="failed", text="node bob is lost: gone; 4 steps are done", level="error"))
    assert errors.getvalue() == "warning: node bob is lost: gone\nerror: the run ends: 4 steps are done\n"


def test_lost_and_leaving_nodes_give_the_cause_of_the_end():
    world = World(make_spec(max_steps=100))
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 5)
    errors = io.StringIO()
    display = Display("quiet", output=io.StringIO(), errors=errors)
    carry_out = world.carry_out
    world.carry_out = lambda c: (display.note(c) if isinstance(c, Note) else None, carry_out(c))
    world.nodes["bob"].say(m.Leaving(reason="SIGTERM at bob"))
    world.run()
    first, second = errors.getvalue().splitlines()
    assert first == "warning: node bob (stage 1, blocks 2-3) has left: SIGTERM at bob; saving after this step"
    assert second.startswith("error: the run ends: all ")


@pytest.mark.parametrize(("number", "text"), [(0, "0 steps are done"), (1, "1 step is done"), (2, "2 steps are done")])
def test_numbers_agree_with_their_noun(number, text):
    assert steps_are_done(number) == text


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, "-"), (0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3661, "1:01:01")]
)
def test_durations(seconds, shown):
    assert show_duration(seconds) == shown


def test_the_mode_fits_the_output():
    assert choose_mode(quiet=False, json_lines=True) == "json"
    assert choose_mode(quiet=True, json_lines=False) == "quiet"
    assert choose_mode(quiet=False, json_lines=False) == "lines"  # pytest's output is no terminal
