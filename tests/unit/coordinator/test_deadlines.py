"""The first of many moving deadlines, against a look at all of them."""

from hypothesis import given
from hypothesis import strategies as st

from brigade.coordinator.deadlines import Deadlines

MOVES = st.lists(
    st.tuples(st.sampled_from(["later", "earlier", "gone", "pass"]), st.integers(0, 4), st.integers(0, 20)), max_size=80
)


@given(MOVES)
def test_the_next_one_is_the_first_of_all(moves: list[tuple[str, int, int]]) -> None:
    at: dict[int, float] = {}
    deadlines: Deadlines[int] = Deadlines(at.get)
    for move, key, number in moves:
        match move:
            case "later":
                new = key not in at
                at[key] = at.get(key, 0.0) + number
                if new:
                    deadlines.set(key)
            case "earlier":
                at[key] = at.get(key, 0.0) - number
                deadlines.set(key)
            case "gone":
                at.pop(key, None)
            case _:
                passed = list(deadlines.passed(float(number)))
                assert sorted(passed) == sorted(key for key, moment in at.items() if moment <= number)
                assert [at[key] for key in passed] == sorted(at[key] for key in passed)
                for gone in passed:
                    del at[gone]
        assert deadlines.next() == min(at.values(), default=None)


def test_what_moves_on_costs_one_look_more_and_leaves_nothing_behind() -> None:
    """A thousand keys that move on a hundred times, always the first one."""
    now, asked = 0.0, 0
    heard = dict.fromkeys(range(1000), 0.0)

    def due(key: int) -> float:
        nonlocal asked
        asked += 1
        return heard[key] + 15.0

    deadlines: Deadlines[int] = Deadlines(due)
    for key in heard:
        deadlines.set(key)
    asked = 0
    for _ in range(100):
        now += 1.0
        for key in heard:
            heard[key] = now
            assert deadlines.next() is not None
    assert asked <= 2 * 100 * 1000
    assert len(deadlines._heap) == len(heard)
