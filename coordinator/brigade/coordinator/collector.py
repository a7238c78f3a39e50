"""Collects the files of checkpoints from the nodes and seals them, in its own thread.

Nodes announce on one socket what they send on another, so parts may come before their announcement.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from brigade.coordinator.checkpoint_manifest import Manifest, block_of, parse_wire_name
from brigade.coordinator.checkpoints import PartialCheckpoint
from brigade.coordinator.export import export_model
from brigade.coordinator.run_events import (
    CheckpointFailed,
    CheckpointSealed,
    ExportFailed,
    ModelExported,
    PartsProgressed,
    PartsStored,
    RunEvent,
)
from brigade.wire.errors import BrigadeError, CheckpointError
from brigade.wire.message_parts import FileSpec

logger = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 1.0


@dataclass(slots=True)
class _Collection:
    partial: PartialCheckpoint
    nodes: Mapping[str, range]  # who may send files, and of which blocks
    announced: dict[int, tuple[FileSpec, ...]] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)


class Collector:
    """The one writer of the checkpoints; `answer` is called in the writing thread.

    The methods without `submit` carry out their work in the caller's thread.
    """

    def __init__(
        self, run_dir: Path, checkpoints_dir: Path, answer: Callable[[RunEvent], None], clock: Callable[[], float]
    ) -> None:
        self._run_dir = run_dir
        self._checkpoints_dir = checkpoints_dir
        self._answer = answer
        self._clock = clock
        self._collections: dict[int, _Collection] = {}
        self._progress_at = 0.0
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="collector")

    def submit(self, work: Callable[[], None]) -> None:
        """Queue one of the methods below."""
        self._pool.submit(self._guarded, work)

    def close(self) -> None:
        """Finish what is being written, forget the rest and remove what is unfinished."""
        self._pool.submit(self._drop_all)
        self._pool.shutdown(wait=True, cancel_futures=False)

    def open(self, steps_done: int, nodes: Mapping[str, range]) -> None:
        """Make room for a checkpoint."""
        try:
            self._collections[steps_done] = _Collection(PartialCheckpoint(self._checkpoints_dir, steps_done), nodes)
        except CheckpointError as error:
            self._answer(CheckpointFailed(steps_done=steps_done, reason=str(error)))

    def write(self, node_id: str, name: str, offset: int, size: int, data: memoryview | bytes) -> None:
        """Take one part of a file.

        Dropped is what belongs to no checkpoint that is being collected, or to no block that the node holds.
        """
        place = parse_wire_name(name)
        collection = self._collections.get(place[0]) if place else None
        blocks = collection.nodes.get(node_id, ()) if collection else ()
        if place is None or collection is None or block_of(place[1]) not in blocks:
            logger.debug("dropped a part of %r from %s", name[:80], node_id)
            return
        steps_done, file_name = place
        try:
            collection.partial.write(file_name, offset, size, data)
        except CheckpointError as error:
            self._fail(steps_done, str(error))
            return
        self._look(steps_done)
        now = self._clock()
        if now >= self._progress_at + PROGRESS_INTERVAL_S and steps_done in self._collections:
            self._progress_at = now
            received = collection.partial.received_bytes
            self._answer(PartsProgressed(steps_done=steps_done, received_bytes=received))

    def expect(self, steps_done: int, stage: int, files: tuple[FileSpec, ...]) -> None:
        """Learn what a stage sends."""
        if (collection := self._collections.get(steps_done)) is not None:
            collection.announced[stage] = files
            self._look(steps_done)

    def seal(self, manifest: Manifest, keep: int) -> None:
        """Complete a checkpoint."""
        collection = self._collections.pop(manifest.steps_done, None)
        if collection is None:
            return
        try:
            size, removed = collection.partial.seal(manifest, keep)
        except CheckpointError as error:
            collection.partial.discard()
            self._answer(CheckpointFailed(steps_done=manifest.steps_done, reason=str(error)))
        else:
            self._answer(CheckpointSealed(steps_done=manifest.steps_done, size=size, removed=removed))

    def drop(self, steps_done: int) -> None:
        """Remove what was collected for a checkpoint."""
        if (collection := self._collections.pop(steps_done, None)) is not None:
            collection.partial.discard()

    def export(self, steps_done: int) -> None:
        """Merge a checkpoint into the run's model file."""
        try:
            path = export_model(self._run_dir, step=steps_done)
        except BrigadeError as error:
            self._answer(ExportFailed(reason=str(error)))
        else:
            self._answer(ModelExported(path=str(path)))

    def _look(self, steps_done: int) -> None:
        """Tell about stages whose files are all here."""
        collection = self._collections[steps_done]
        for stage, files in collection.announced.items():
            try:
                complete = collection.partial.holds(files)
            except CheckpointError as error:
                self._fail(steps_done, str(error))
                return
            if complete and stage not in collection.stored:
                collection.stored.add(stage)
                self._answer(PartsStored(steps_done=steps_done, stage=stage))

    def _fail(self, steps_done: int, reason: str) -> None:
        self.drop(steps_done)
        self._answer(CheckpointFailed(steps_done=steps_done, reason=reason))

    def _drop_all(self) -> None:
        for steps_done in list(self._collections):
            self.drop(steps_done)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            logger.exception("the collector of checkpoints has a bug")
            raise
