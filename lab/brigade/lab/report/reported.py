"""One finished experiment as the page shows it: its result, what its nodes noted, and what it is called on the page."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from brigade.lab.result import Result
from brigade.node.timeline import StageLife


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A result with the timelines that lie beside it; without them some figures are left out."""

    title: str
    result: Result
    lives: tuple[StageLife, ...] = ()
    place: str = ""  # where it lies

    @property
    def stage_names(self) -> list[str]:
        """Return the node of each stage of the last plan."""
        return [entry.rpartition(": ")[0] for entry in self.result.stages]

    @property
    def stage_blocks(self) -> list[str]:
        """Return the blocks of each stage of the last plan, in words."""
        spans = [entry.rpartition(": ")[2].partition("-") for entry in self.result.stages]
        return [f"block {first}" if first == last else f"blocks {first}-{last}" for first, _, last in spans]


def with_own_titles(runs: Sequence[Reported]) -> list[Reported]:
    """Return the runs with titles that tell them apart: those of one scenario get a number."""
    shared = {title for title, count in Counter(run.title for run in runs).items() if count > 1}
    seen: Counter[str] = Counter()
    named = []
    for run in runs:
        seen[run.title] += 1
        named.append(replace(run, title=f"{run.title} ({seen[run.title]})") if run.title in shared else run)
    return named
