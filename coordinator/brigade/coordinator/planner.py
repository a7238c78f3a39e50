"""Lets the planner work in a thread of its own, and notes what each plan was made of.

It warns when the disk has no room for what the plan will save.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from brigade.compression.spec import ratio
from brigade.coordinator.checkpoints import space_warning
from brigade.coordinator.costs import COSTS_NAME, microbatch_samples, record_costs
from brigade.coordinator.export import CHECKPOINTS_NAME
from brigade.coordinator.run_events import MakePlan, PlanMade, PlanRefused, RunEvent
from brigade.partition.prediction import MESSAGE_BYTES
from brigade.partition.solve import plan
from brigade.wire.errors import BrigadeError
from brigade.wire.run_spec import RunSpec

logger = logging.getLogger(__name__)


def with_ways(order: MakePlan, rtt_s: Callable[[str], float | None]) -> MakePlan:
    """Return an order with the ways to the coordinator, half of what `rtt_s` tells by node id, if it has none."""
    around = order.surroundings
    if around.coordinator_way_s:
        return order
    ways_s = {contact.node_id: (rtt_s(contact.node_id) or 0.0) / 2 for contact in order.contacts}
    return replace(order, surroundings=replace(around, coordinator_way_s=ways_s))


class Planner:
    """Answers MakePlan; `answer` and `warn` are called in the planning thread."""

    def __init__(
        self,
        run_id: str,
        spec: RunSpec,
        directory: Path,
        answer: Callable[[RunEvent], None],
        warn: Callable[[str], None],
    ) -> None:
        self._run_id = run_id
        self._spec = spec
        self._directory = directory
        self._answer = answer
        self._warn = warn
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="planner")

    def submit(self, order: MakePlan) -> None:
        """Queue an order."""
        self._pool.submit(self.make, order)

    def close(self) -> None:
        """Forget what is queued."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def make(self, order: MakePlan) -> None:
        """Make a plan now, in the caller's thread."""
        order = replace(order, surroundings=replace(order.surroundings, message_bytes=MESSAGE_BYTES))
        try:
            made = plan(
                self._run_id,
                order.generation,
                order.contacts,
                order.devices,
                order.chains,
                order.links,
                self._spec,
                order.train_samples,
                order.validation_samples,
                ratio,
                order.surroundings,
            )
            self._note_costs(order)
        except BrigadeError as error:
            self._answer(PlanRefused(reason=str(error)))
            return
        except Exception as error:
            logger.exception("the planner has a bug")
            self._answer(PlanRefused(reason=f"the planner has a bug: {type(error).__name__}: {error}"))
            return
        blocks = next(iter(order.chains.values())).blocks
        copies = made.versions if made.mode == "async" else 1
        size = sum(copies * block.parameter_bytes + block.optimizer_bytes for block in blocks)
        if text := space_warning(self._directory / CHECKPOINTS_NAME, size, self._spec.training.save_total_limit):
            self._warn(text)
        self._answer(PlanMade(plan=made))

    def _note_costs(self, order: MakePlan) -> None:
        """Write down what the plan was made of; a plan can be repeated from it."""
        costs = record_costs(order, microbatch_samples(self._spec, order.train_samples))
        try:
            (self._directory / COSTS_NAME).write_bytes(costs.to_json())
        except OSError as error:
            self._warn(f"{COSTS_NAME} cannot be written: {error.strerror}")
