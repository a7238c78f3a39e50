"""Every event happens once, at its moment, in order."""

import pytest

from brigade.lab import events as ev
from brigade.lab.events import StepsCommitted, Timeline, TimePassed, TrainingBegan, describe
from brigade.lab.scenario_spec import (
    CoordinatorKill,
    Join,
    Kill,
    Leave,
    LinkDown,
    LinkDownOneWay,
    LinkRate,
    LinkUp,
    Resume,
    Slow,
    Suspend,
)

ALL = [
    (Join(host="a", at_s=1), ev.StartNode("a"), "a joins"),
    (Leave(host="a", at_s=1), ev.AskToLeave("a"), "a leaves"),
    (Kill(host="a", at_s=1), ev.KillNode("a"), "a is killed"),
    (Suspend(host="a", at_s=1), ev.SuspendNode("a"), "a stands still"),
    (Resume(host="a", at_s=1), ev.WakeNode("a"), "a goes on"),
    (Slow(host="a", factor=3, at_s=1), ev.SlowNode("a", 3), "a computes 3 times slower"),
    (LinkDown(host="a", at_s=1), ev.CutLink("a", "", both=True, reset=False), "the link between a and all others is dead"),
    (LinkDown(host="a", other="b", reset=True, at_s=1), ev.CutLink("a", "b", both=True, reset=True), "the link between a and b is reset"),
    (LinkDownOneWay(host="a", other="b", at_s=1), ev.CutLink("a", "b", both=False, reset=False), "the link from a to b is dead"),
    (LinkUp(host="a", at_s=1), ev.HealLink("a", ""), "the link between a and all others is whole"),
    (LinkRate(host="a", up="1 Mbit/s", at_s=1), ev.SetRates("a", "1 Mbit/s", None), "a has uplink 1 Mbit/s"),
    (CoordinatorKill(at_s=1), ev.KillCoordinator(), "the coordinator is killed"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "action", "words"), ALL)
def test_every_kind_of_event_is_an_action_with_words(event, action, words):
    timeline = Timeline([event])
    assert timeline.handle(TrainingBegan(), 100.0) == []
    assert timeline.handle(TimePassed(), 100.9) == []
    assert timeline.handle(TimePassed(), 101.0) == [action]
    assert timeline.handle(TimePassed(), 200.0) in ([], [ev.StartCoordinator()])
    assert describe(action) == words


def test_time_counts_from_the_beginning_of_training_and_only_once():
    timeline = Timeline([Kill(host="b", at_s=5), Kill(host="a", at_s=2)])
    assert timeline.next_deadline() is None
    assert timeline.handle(TimePassed(), 50.0) == []
    timeline.handle(TrainingBegan(), 60.0)
    assert timeline.next_deadline() == 62.0
    assert timeline.handle(TimePassed(), 62.0) == [ev.KillNode("a")]
    timeline.handle(TrainingBegan(), 64.0)  # taken up again
    assert timeline.next_deadline() == 65.0
    assert timeline.handle(StepsCommitted(1), 66.0) == [ev.KillNode("b")]
    assert timeline.next_deadline() is None


def test_steps_that_are_jumped_over_and_replayed_steps():
    timeline = Timeline([Kill(host="a", at_step=3), Join(host="a", at_step=5), Suspend(host="b", at_step=0)])
    assert timeline.joins_to_come() == 1
    assert timeline.handle(TrainingBegan(), 0.0) == [ev.SuspendNode("b")]
    assert timeline.handle(StepsCommitted(2), 1.0) == []
    assert timeline.handle(StepsCommitted(4), 2.0) == [ev.KillNode("a")]
    assert timeline.handle(StepsCommitted(3), 3.0) == []
    assert timeline.handle(StepsCommitted(5), 4.0) == [ev.StartNode("a")]
    assert timeline.handle(StepsCommitted(6), 5.0) == []
    assert timeline.joins_to_come() == 0


def test_events_of_one_moment_keep_the_order_of_the_file():
    timeline = Timeline([Kill(host="b", at_step=1), Kill(host="a", at_step=1), LinkUp(host="a", at_step=1)])
    assert timeline.handle(StepsCommitted(1), 0.0) == [ev.KillNode("b"), ev.KillNode("a"), ev.HealLink("a", "")]


def test_a_killed_coordinator_comes_back():
    timeline = Timeline([CoordinatorKill(at_step=2, back_after_s=1.5)])
    assert timeline.handle(StepsCommitted(2), 10.0) == [ev.KillCoordinator()]
    assert timeline.next_deadline() == 11.5
    assert timeline.handle(TimePassed(), 11.5) == [ev.StartCoordinator()]
    assert timeline.next_deadline() is None
