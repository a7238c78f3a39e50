"""A walk through an order, step after step, of steps that differ in size."""

from brigade.partition.schedule import build
from brigade.partition.walk import OrderedWalk

EVERYTHING = range(100)


def walk(sizes):
    return OrderedWalk(lambda step: build("1f1b", 2, sizes[step])[0], first=True, last=False)


def test_numbers_go_on_from_step_to_step():
    walked = walk([2, 1, 3])
    walked.admit(6)
    text = " ".join(str(walked.next(EVERYTHING, EVERYTHING)) for _ in range(12))
    assert text == "F0 F1 B0 B1 F2 B2 F3 F4 B3 F5 B4 B5"


def test_the_next_step_waits_for_admission():
    walked = walk([1, 1])
    walked.admit(1)
    assert [str(walked.next(EVERYTHING, EVERYTHING)) for _ in range(3)] == ["F0", "B0", "None"]
    assert walked.upcoming is None
    walked.admit(2)
    assert str(walked.upcoming) == "F1"
    assert walked.is_done("B", 0)
    assert not walked.is_done("F", 1)


def test_it_says_what_is_missing():
    walked = walk([2])
    walked.admit(2)
    assert [str(walked.next(EVERYTHING, ())) for _ in range(3)] == ["F0", "F1", "None"]
    assert str(walked.upcoming) == "B0"
