"""Which node times its links to whom at the same time as which others. Pure."""

from collections.abc import Mapping, Sequence

ONE_BY_ONE = 16  # up to so many nodes one measures at a time, beyond it all of them in pairs

Round = Mapping[str, tuple[str, ...]]  # node id -> the nodes that it sends to


def link_rounds(nodes: Sequence[str]) -> list[Round]:
    """Return rounds in which every node sends to every other one once.

    In a small fleet nobody disturbs anybody: each round has one sender. In a large one that would take hours: in each
    round every node belongs to one pair at most, and each direction has a round of its own, so that two measurements
    meet on no line but one that several hosts share. Pairs by the circle method of tournaments (Kirkman 1847).
    """
    if len(nodes) <= ONE_BY_ONE:
        return [{node: tuple(other for other in nodes if other != node)} for node in nodes if len(nodes) > 1]
    circle: list[str | None] = [*nodes, None][: len(nodes) + len(nodes) % 2]  # with None, one rests
    rounds: list[Round] = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = [(a, b) for a, b in zip(circle[:half], reversed(circle[half:]), strict=True) if a and b]
        rounds += [{a: (b,) for a, b in pairs}, {b: (a,) for a, b in pairs}]
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds
