import pytest

from brigade.lab.yardstick import (
    CONTENDERS,
    STANDARD,
    Turn,
    contender,
    most_difference,
    rows_of,
    spread,
    steps_to_target,
)


def turn(name, step_s, *, stages=2, cpu_s=(1.0,)):
    used = {str(number): seconds for number, seconds in enumerate(cpu_s)}
    return Turn(contender=name, stages=stages, first_blocks=(0, 3), steps=5, step_s=step_s, cpu_s=used)


def test_a_ratio_is_formed_within_its_round():
    """Both get five times slower in the second round: the machine's doing, not theirs."""
    turns = [turn("brigade-1f1b", 2.0), turn("torch-1f1b", 1.0), turn("brigade-1f1b", 10.0), turn("torch-1f1b", 8.0)]
    ours, theirs = rows_of(turns, {}, {})
    assert ours.rival == "torch-1f1b"
    assert (ours.ratio.least, ours.ratio.median, ours.ratio.most) == (1.25, 1.625, 2.0)
    assert theirs.ratio is None


def test_numbers_of_stages_are_kept_apart_and_the_plain_loop_stands_beside_the_first():
    turns = [
        turn("plain", 6.0, stages=1),
        turn("torch-1f1b", 3.0),
        turn("brigade-1f1b", 3.0),
        turn("torch-1f1b", 2.0, stages=4),
        turn("brigade-1f1b", 1.0, stages=4),
    ]
    ratios = {(row.stages, row.contender): row.ratio and row.ratio.median for row in rows_of(turns, {}, {})}
    assert ratios == {
        (1, "plain"): 2.0,
        (2, "torch-1f1b"): None,
        (2, "brigade-1f1b"): 1.0,
        (4, "torch-1f1b"): None,
        (4, "brigade-1f1b"): 0.5,
    }


def test_seconds_to_the_target_are_steps_times_seconds_of_a_step():
    (row,) = rows_of(
        [turn("configured", 0.5), turn("configured", 1.0), turn("configured", 3.0)], {}, {"configured": 40}
    )
    assert row.seconds_to_target == 40.0


def test_processor_seconds_are_those_of_all_processes():
    (row,) = rows_of([turn("plain", 1.0, cpu_s=(0.5, 0.25))], {}, {})
    assert row.cpu_s == spread([0.75])


def test_bytes_stand_with_their_contender():
    ours, theirs = rows_of([turn("configured", 1.0), turn("torch-1f1b", 1.0)], {(2, "configured"): (9.0, 8.0)}, {})
    assert (ours.forward_bytes_per_token, ours.backward_bytes_per_token) == (9.0, 8.0)
    assert theirs.forward_bytes_per_token == 0.0


@pytest.mark.parametrize(
    ("held_out", "steps"),
    [
        ([(10, 4.0), (20, 3.0), (30, 1.0)], 25),  # a straight line between 20 and 30
        ([(10, 2.0)], 10),
        ([(10, 4.0), (20, 2.0)], 20),
        ([(10, 4.0)], None),
        ([], None),
    ],
)
def test_steps_to_a_loss_of_two(held_out, steps):
    assert steps_to_target(held_out, 2.0) == steps


def test_the_difference_of_two_courses_is_relative():
    assert most_difference([4.0, 2.2], [4.0, 2.0, 1.0]) == pytest.approx(0.1)


def test_every_rival_and_everybody_who_takes_part_by_default_is_known():
    assert all(contender(name) for name in STANDARD)
    assert all(contender(each.rival) for each in CONTENDERS if each.rival)
