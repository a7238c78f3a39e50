"""Writes what the run core wants written down, in its own thread and in order.

A step that cannot be stored is told to the core, which ends the run; everything else that cannot be stored costs a
warning a minute and no training.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from brigade.coordinator.run_events import (
    CommitStored,
    Note,
    RunEvent,
    StoreBroke,
    StoreCommit,
    StoreEvaluation,
    StoreNode,
    StorePlan,
    StoreRevocation,
)
from brigade.coordinator.store import Store, StoreError

logger = logging.getLogger(__name__)

WARNING_INTERVAL_S = 60.0

Written = StorePlan | StoreNode | StoreRevocation | StoreCommit | StoreEvaluation | Note


class LedgerThread:
    """The one writer of the store; `answer` and `warn` are called in the writing thread."""

    def __init__(
        self,
        store: Store,
        answer: Callable[[RunEvent], None],
        warn: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._answer = answer
        self._warn = warn
        self._clock = clock
        self._warned_at: float | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")

    def submit(self, command: Written) -> None:
        """Queue a command."""
        self._pool.submit(self._write_guarded, command)

    def note_checkpoint(self, steps_done: int, attempt: int, size: int) -> None:
        """Queue the fact that a checkpoint was sealed."""
        self._pool.submit(self._without_fail, lambda: self._store.save_checkpoint(steps_done, attempt, size))

    def close(self, attempt: int, state: str, reason: str) -> None:
        """Write down how it ended, after everything that was queued, and close the store."""
        self._pool.submit(self._without_fail, lambda: self._store.end_attempt(attempt, state, reason))
        self._pool.shutdown(wait=True)
        self._store.close()

    def write(self, command: Written) -> None:
        """Carry out a command now, in the caller's thread."""
        store = self._store
        match command:
            case StoreCommit(commit=commit):
                try:
                    store.save_commit(commit)
                except StoreError as error:
                    self._answer(StoreBroke(reason=str(error)))
                else:
                    self._answer(CommitStored(step=commit.step))
            case StorePlan(plan=plan, attempt=attempt):
                try:
                    store.save_plan(plan, attempt)
                except StoreError as error:
                    self._answer(StoreBroke(reason=str(error)))
            case StoreNode():
                self._without_fail(
                    lambda: store.save_node(
                        command.node_id, command.public_key, command.name, command.host, command.device
                    )
                )
            case StoreRevocation(node_id=node_id, public_key=public_key):
                self._without_fail(lambda: store.revoke_node(node_id, public_key))
            case StoreEvaluation(evaluation=evaluation):
                self._without_fail(lambda: store.save_evaluation(evaluation))
            case Note(kind=kind, node=node, text=text):
                self._without_fail(lambda: store.save_event(kind, node, text))

    def _write_guarded(self, command: Written) -> None:
        try:
            self.write(command)
        except Exception as error:  # a commit that is never answered would hang the run
            logger.exception("the ledger has a bug")
            self._answer(StoreBroke(reason=f"{type(error).__name__}: {error}"))

    def _without_fail(self, write: Callable[[], None]) -> None:
        try:
            write()
        except StoreError as error:
            now = self._clock()
            if self._warned_at is None or now >= self._warned_at + WARNING_INTERVAL_S:
                self._warned_at = now
                self._warn(f"some of the run's history is lost: {error}")
