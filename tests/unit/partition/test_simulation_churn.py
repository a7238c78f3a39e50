"""Runs whose plan changes: what is committed, lost, paused."""

import dataclasses

import pytest
from tests.unit.partition.line_cases import even_line

from brigade.partition.line import Server
from brigade.partition.policy import alternation
from brigade.partition.schedule import build
from brigade.partition.simulation.churn import Change, Course, Formation, simulate_churn
from brigade.partition.simulation.disturbances import Noise, Slowdown, Stall
from brigade.partition.simulation.stage import HeldOut
from brigade.partition.simulation.walks import in_order
from brigade.wire.errors import PlanError


def flush(stages: int, compute_s: float = 1.0) -> Formation:
    """Steps of 8 microbatches under 1F1B without latency: (8 + stages - 1) times compute_s each."""
    return Formation(even_line(stages, compute_s, 0.0), lambda _: in_order(build("1f1b", stages, 8)), per_update=8)


def test_without_changes_it_is_one_run() -> None:
    report = simulate_churn(flush(4), [], Course(5))
    assert report.wall_s == pytest.approx(5 * 11)
    assert len(report.segments) == 1
    assert report.committed == 40
    assert report.lost == report.paused_s == report.wasted_s == 0


def test_a_failure_loses_what_is_not_committed() -> None:
    report = simulate_churn(flush(4), [Change(25.0, flush(3), 7.0, abrupt=True)], Course(5))
    assert report.commits_s == pytest.approx([11, 22, 32 + 10, 42 + 10, 52 + 10])
    assert report.committed == 40
    assert report.lost == 4, "the first stage begins its fourth forward 2.3 s into the step"
    assert report.wasted_s == pytest.approx(3)
    assert report.wall_s == pytest.approx(sum(s.wall_s for s in report.segments) + report.paused_s) == pytest.approx(62)


def test_a_join_waits_for_the_batch_under_way() -> None:
    report = simulate_churn(flush(3), [Change(25.0, flush(4, 0.5), 2.0, abrupt=False)], Course(5))
    assert report.commits_s == pytest.approx([10, 20, 30, 32 + 5.5, 32 + 11])
    assert report.lost == 0


def test_a_join_drains_what_an_asynchronous_line_has_begun() -> None:
    formation = Formation(even_line(3, 1.0, 0.2), lambda _: alternation([4, 2, 0], 1), per_update=6, versions=2)
    report = simulate_churn(
        formation, [Change(20.0, flush(3), 1.0, abrupt=False)], Course(9, noise=Noise(compute_cv=0.2), seed=1)
    )
    first = report.segments[0]
    assert first.started == 6 * len(first.commits_s) == len(first.finishes_s)
    assert len(report.commits_s) == 9
    assert report.lost == 0
    assert list(report.commits_s) == sorted(report.commits_s)


def test_changes_after_the_end_and_during_a_pause() -> None:
    assert simulate_churn(flush(2), [Change(1e6, flush(3), 1.0, abrupt=True)], Course(2)).wall_s == pytest.approx(18)
    changes = [Change(12.0, flush(3), 5.0, abrupt=True), Change(13.0, flush(2), 5.0, abrupt=True)]
    report = simulate_churn(flush(2), changes, Course(2))
    assert report.commits_s == pytest.approx([9, 12 + 5 + 5 + 9])
    assert report.paused_s == 10


def test_nonsense_is_refused() -> None:
    with pytest.raises(PlanError):
        simulate_churn(flush(2), [], Course(0))


def test_only_what_a_checkpoint_holds_survives_a_failure() -> None:
    report = simulate_churn(flush(4), [Change(58.0, flush(4), 7.0, abrupt=True)], Course(7, kept_every=4))
    # five steps of 11 s are committed by 58 s, of which the checkpoint after the fourth is kept
    assert report.first_updates == (0, 4)
    assert report.begins_s == pytest.approx((0, 65))
    assert report.commits_s == pytest.approx([11, 22, 33, 44, 76, 87, 98])
    assert report.wasted_s == pytest.approx(58 - 44)
    assert report.lost == 8 + 4, "the fifth step, and the warm-up of the sixth"


def test_disturbances_count_from_the_start_of_the_run() -> None:
    slow = dataclasses.replace(flush(1), disturbances=(Slowdown(Server("compute", 0), 12.0, 2.0),))
    assert simulate_churn(slow, [], Course(2)).wall_s == pytest.approx(12 + 2 * 4)
    moved = [Change(7.5, slow, 1.0, abrupt=False)]
    assert simulate_churn(flush(1), moved, Course(2)).commits_s == pytest.approx([8, 9 + 3 + 2 * 5])
    stalled = dataclasses.replace(flush(1), disturbances=(Stall(Server("compute", 0), 5.0, 6.0),))
    moved = [Change(7.5, stalled, 1.0, abrupt=False)]
    assert simulate_churn(flush(1), moved, Course(2)).commits_s == pytest.approx([8, 11 + 8])


def test_held_out_microbatches_count_updates_of_the_whole_run() -> None:
    held_out = HeldOut(microbatches=3, after=[1])
    alone = simulate_churn(flush(2), [], Course(3, held_out=held_out))
    # forwards are a third of the second that a microbatch takes; the next step follows right behind them
    assert alone.commits_s == pytest.approx([9, 18, 18 + 1 + 9])
    moved = simulate_churn(flush(2), [Change(8.0, flush(2), 1.0, abrupt=False)], Course(3, held_out=held_out))
    assert moved.commits_s == pytest.approx([9, 19, 19 + 1 + 9])
