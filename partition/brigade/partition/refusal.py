"""Says for a person why no plan is possible: which block, node or link stands in the way, and by how much."""

from functools import cache

import numpy as np

from brigade.partition.cost_tables import Measurements
from brigade.partition.fixed_order import CostTables, Seconds, Split
from brigade.partition.memory import format_bytes, usable_bytes
from brigade.partition.order import rank_orders

MOST_LINKS_NAMED = 3


def explain_refusal(measured: Measurements, stages: int | None) -> str:
    """Return why these nodes cannot train this model in `stages` stages (or in any number)."""
    block = _block_that_fits_nowhere(measured, stages)
    if block is not None:
        return block
    closest = _closest_split(measured, stages)
    if closest is not None and closest.least_bottleneck_s > 0:
        return _shortfall_of(measured, closest)
    return _links_that_fail(measured)


def format_blocks(first: int, end: int) -> str:
    """Return a run of blocks for a person: `block 3`, `blocks 3 to 5`."""
    return f"block {first}" if end - first == 1 else f"blocks {first} to {end - 1}"


def _block_that_fits_nowhere(measured: Measurements, stages: int | None) -> str | None:
    """Name the block that lacks most on the node where it lacks least."""
    nodes = range(len(measured.blocks))
    in_flight = min(measured.in_flight(stages or len(measured.blocks)))
    lacking = np.stack([measured.shortfall(node, in_flight).diagonal(1) for node in nodes])  # [node, block]
    least = lacking.min(axis=0)
    block = int(least.argmax())
    if least[block] == 0:
        return None
    node = int(lacking[:, block].argmin())
    return _lack(measured, node, block, block + 1, in_flight, "the largest node")


def _closest_split(measured: Measurements, stages: int | None) -> Split | None:
    """Return the split whose worst stage lacks the fewest bytes, whatever the links."""
    nodes, blocks = len(measured.blocks), len(measured.blocks[0])

    def missing_bytes(node: int, in_flight: int) -> Seconds:
        possible = np.triu(np.ones((blocks + 1, blocks + 1), dtype=np.bool_), k=1)
        return np.where(possible, measured.shortfall(node, in_flight), np.inf)

    free = np.zeros((nodes, nodes, blocks + 1))
    tables = CostTables(
        nodes=nodes,
        blocks=blocks,
        microbatches=measured.microbatches,
        stage_s=cache(missing_bytes),
        transfer_s=free,
        hop_s=free,
        in_flight=measured.in_flight,
    )
    ranked = rank_orders(tables, stages)
    splits = [split for best in ranked.values() for split in best]
    return min(splits, key=lambda split: split.least_bottleneck_s, default=None)


def _shortfall_of(measured: Measurements, split: Split) -> str:
    in_flight = measured.in_flight(len(split.order))
    missing = [
        int(measured.shortfall(node, in_flight[k])[split.cuts[k], split.cuts[k + 1]])
        for k, node in enumerate(split.order)
    ]
    k = missing.index(max(missing))
    lack = _lack(measured, split.order[k], split.cuts[k], split.cuts[k + 1], in_flight[k], "there")
    names = ", ".join(contact.name for contact in measured.contacts)
    return f"the model fits no split over {names}; the closest one is short of {format_bytes(missing[k])}: {lack}"


def _lack(measured: Measurements, node: int, first: int, end: int, in_flight: int, which: str) -> str:
    needed = int(measured.needed(node, in_flight)[first, end])
    memory = measured.memory_bytes[node]
    verb = "needs" if end - first == 1 else "need"
    return (
        f"{format_blocks(first, end)} {verb} {format_bytes(needed)}, {which} ({measured.contacts[node].name}) "
        f"has {format_bytes(memory)}, of which a plan uses {format_bytes(usable_bytes(memory))}"
    )


def _links_that_fail(measured: Measurements) -> str:
    nodes = range(len(measured.blocks))
    failed = [
        f"{measured.contacts[a].name} to {measured.contacts[b].name}: "
        + (measured.link(a, b).error or "no data came through")
        for a in nodes
        for b in nodes
        if a != b and (measured.link(a, b).error or measured.link(a, b).bytes_per_s <= 0)
    ]
    named = "; ".join(failed[:MOST_LINKS_NAMED])
    more = f"; and {len(failed) - MOST_LINKS_NAMED} more" if len(failed) > MOST_LINKS_NAMED else ""
    return f"the nodes cannot stand in a line, because links fail ({named}{more})"
