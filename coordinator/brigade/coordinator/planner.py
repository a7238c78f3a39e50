"""Lets the planner work in a thread of its own, and warns when the disk has no room for what the plan will save."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from brigade.compression.spec import ratio
from brigade.coordinator.checkpoints import space_warning
from brigade.coordinator.run_events import MakePlan, PlanMade, PlanRefused, RunEvent
from brigade.partition.solve import plan
from brigade.wire.errors import BrigadeError
from brigade.wire.run_spec import RunSpec

logger = logging.getLogger(__name__)


class Planner:
    """Answers MakePlan; `answer` and `warn` are called in the planning thread."""

    def __init__(
        self,
        run_id: str,
        spec: RunSpec,
        checkpoints_dir: Path,
        answer: Callable[[RunEvent], None],
        warn: Callable[[str], None],
    ) -> None:
        self._run_id = run_id
        self._spec = spec
        self._checkpoints_dir = checkpoints_dir
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
            )
        except BrigadeError as error:
            self._answer(PlanRefused(reason=str(error)))
            return
        except Exception as error:
            logger.exception("the planner has a bug")
            self._answer(PlanRefused(reason=f"the planner has a bug: {type(error).__name__}: {error}"))
            return
        blocks = next(iter(order.chains.values())).blocks
        size = sum(block.parameter_bytes + block.optimizer_bytes for block in blocks)
        if text := space_warning(self._checkpoints_dir, size, self._spec.training.save_total_limit):
            self._warn(text)
        self._answer(PlanMade(plan=made))
