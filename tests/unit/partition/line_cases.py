"""Lines of stages for tests: even ones, random ones, the worked table; and the period by a plain recursion."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from brigade.partition.line import HopTime, Line, StageTime


def even_line(stages: int, compute_s: float, way_s: float) -> Line:
    """Equal stages, a third of the time forward; hops of pure latency, `way_s` each way."""
    return Line((StageTime(compute_s / 3, compute_s * 2 / 3),) * stages, (HopTime(0.0, 0.0, way_s),) * (stages - 1))


@dataclass(frozen=True)
class Worked:
    name: str
    stages: int
    compute_s: float
    megabytes: float
    megabits_per_s: float
    round_trip_s: float
    period_s: float
    in_flight: int
    warm_up: int
    plain_percent: int
    flush_microbatches: int | None = None
    per_update: int | None = None

    @property
    def line(self) -> Line:
        seconds = self.megabytes * 8 / self.megabits_per_s
        hop = HopTime(seconds, seconds, self.round_trip_s / 2)
        return Line((StageTime(self.compute_s / 3, self.compute_s * 2 / 3),) * self.stages, (hop,) * (self.stages - 1))


WORKED = (
    Worked("metro", 8, 0.3, 2, 1000, 0.005, 0.3, 9, 14, 90, 71, 14),
    Worked("country", 8, 0.3, 2, 100, 0.02, 0.3, 16, 21, 50, 135, 21),
    Worked("continent", 8, 0.3, 2, 100, 0.1, 0.3, 18, 21, 45, 152, 21),
    Worked("ocean", 8, 0.1, 0.5, 100, 0.2, 0.1, 28, 28, 29, 240, 28),
    Worked("dsl", 4, 0.5, 0.25, 10, 0.05, 0.5, 7, 6, 60, 52, 6),
    Worked("narrow", 4, 0.5, 2, 10, 0.05, 1.6, 8, 7, 54),
    Worked("wide", 16, 0.2, 4, 1000, 0.05, 0.2, 25, 30, 65, 212, 30),
)

seconds = st.floats(0.05, 3.0)


@st.composite
def lines(draw: st.DrawFn, most_stages: int = 7) -> Line:
    count = draw(st.integers(1, most_stages))
    stages = tuple(StageTime(draw(seconds), draw(seconds)) for _ in range(count))
    hops = tuple(
        HopTime(draw(st.floats(0, 2)), draw(st.floats(0, 2)), draw(st.floats(0, 5)), draw(st.floats(0, 5)))
        for _ in range(count - 1)
    )
    return Line(stages, hops)


def recursion_period_s(line: Line, warm_ups: Sequence[int], microbatches: int = 600) -> float:
    """Return the steady period of strict alternation, from the times at which each action can start at the earliest."""
    count = len(line.stages)
    forward = [[0.0] * microbatches for _ in range(count)]  # ends
    backward = [[0.0] * microbatches for _ in range(count)]
    there = [[0.0] * microbatches for _ in range(count)]  # when an activation left the line towards the next stage
    back = [[0.0] * microbatches for _ in range(count)]

    def run_forward(k: int, i: int) -> None:
        after = [forward[k][i - 1]] if i else []
        if i > warm_ups[k]:
            after.append(backward[k][i - warm_ups[k] - 1])
        if k:
            after.append(there[k - 1][i] + line.hops[k - 1].one_way_s)
        forward[k][i] = max(after, default=0.0) + line.stages[k].forward_s
        if k < count - 1:
            free = there[k][i - 1] if i else 0.0
            there[k][i] = max(forward[k][i], free) + line.hops[k].activation_s

    def run_backward(k: int, i: int) -> None:
        after = [forward[k][min(i + warm_ups[k], microbatches - 1)], backward[k][i - 1] if i else 0.0]
        if k < count - 1:
            after.append(back[k + 1][i] + line.hops[k].back_way_s)
        backward[k][i] = max(after) + line.stages[k].backward_s
        if k:
            free = back[k][i - 1] if i else 0.0
            back[k][i] = max(backward[k][i], free) + line.hops[k - 1].gradient_s

    for wave in range(microbatches + warm_ups[0]):  # forwards up to `wave` are known wherever a backward needs them
        for k in range(count):
            lead = wave - (warm_ups[0] - warm_ups[k])
            if 0 <= lead < microbatches:
                run_forward(k, lead)
        for k in reversed(range(count)):
            if 0 <= wave - warm_ups[0] < microbatches:
                run_backward(k, wave - warm_ups[0])
    quarter, end = microbatches // 4, 3 * microbatches // 4
    return (backward[0][end] - backward[0][quarter]) / (end - quarter)
