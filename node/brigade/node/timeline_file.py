"""Timelines as files: a recorder that a node tells what it does, and the reader.

The recorder keeps actions in memory and hands them to a thread of its own once a step: neither the event loop nor the
compute thread ever waits for the disk. A file is bounded: at `MAX_FILE_BYTES` it becomes `FILE.1` and a new one begins.
"""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from io import SEEK_END
from pathlib import Path
from threading import BoundedSemaphore
from typing import BinaryIO

from brigade.node.timeline import Action, Entry, Kind, Label, StageBegan, StageLife, lives, parse_lines, to_lines
from brigade.wire.errors import ConfigError
from brigade.wire.plan import Plan

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 32 * 1024 * 1024  # a step of eight microbatches takes about 10 kB
MOST_WAITING = 64  # batches for a disk that hangs; more are dropped


class TimelineFile:
    """Appends entries to a bounded file. Raises ConfigError when it cannot be opened."""

    def __init__(self, path: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._stage: StageBegan | None = None
        try:
            self._file: BinaryIO | None = self._open()
            if not _ends_with_line(path):
                self._file.write(b"\n")  # a node that was killed left half a line
        except OSError as error:
            raise ConfigError(f"the timeline {path} cannot be written: {error.strerror}") from error

    def write(self, entries: list[Entry]) -> None:
        """Append entries; a disk that takes no more ends the timeline, not the node."""
        if self._file is None:
            return
        try:
            lines = to_lines(entries)
            if self._file.tell() > 0 and self._file.tell() + len(lines) > self._max_bytes:
                self._begin_anew(entries)
            self._file.write(lines)
            self._file.flush()
        except OSError as error:
            log.warning("the timeline %s ends here: %s", self._path, error.strerror)
            self.close()
        for entry in entries:
            if isinstance(entry, StageBegan):
                self._stage = entry

    def close(self) -> None:
        """Write no more."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> BinaryIO:
        return self._path.open("ab")

    def _begin_anew(self, entries: list[Entry]) -> None:
        assert self._file is not None
        self._file.close()
        self._path.replace(_older(self._path))
        self._file = self._open()
        if self._stage is not None and not isinstance(entries[0], StageBegan):
            self._file.write(to_lines([self._stage]))


class Recorder:
    """What a node did, told with monotonic seconds; to be called by the event loop only. Without a path it forgets."""

    def __init__(self, path: Path | None, max_bytes: int = MAX_FILE_BYTES) -> None:
        """Open the file; raises ConfigError when that is not possible."""
        self._file = None if path is None else TimelineFile(path, max_bytes)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="timeline")
        self._to_wall_s = time.time() - time.monotonic()
        self._entries: list[Entry] = []
        self._warned = False
        self._room = BoundedSemaphore(MOST_WAITING)

    @property
    def on(self) -> bool:
        """Whether anything is recorded."""
        return self._file is not None

    def began(self, plan: Plan, stage: int, node: str) -> None:
        """Note that a stage stands now."""
        if self._file is not None:
            self._entries.append(
                StageBegan(
                    run_id=plan.run_id,
                    generation=plan.generation,
                    stage=stage,
                    node=node,
                    stages=len(plan.stages),
                    at_s=time.monotonic() + self._to_wall_s,
                )
            )

    def add(self, what: Label, begin: float, end: float, payload_bytes: int = 0) -> None:
        """Note an action from `begin` to `end`, monotonic seconds."""
        if self._file is not None:
            begin, end, kind = begin + self._to_wall_s, end + self._to_wall_s, what.kind
            self._entries.append(
                Action(kind, what.step, what.index, begin, end, what.evaluation, what.other, payload_bytes)
            )

    def moment(self, kind: Kind, step: int) -> None:
        """Note something of this step that happens now."""
        now = time.monotonic()
        self.add(Label(kind, step), now, now)

    def flush(self) -> None:
        """Hand what was noted to the file's thread; to be called once a step."""
        entries, self._entries = self._entries, []
        if not entries or self._file is None:
            return
        if not self._room.acquire(blocking=False):
            if not self._warned:
                log.warning("the disk is too slow for the timeline; steps are left out")
            self._warned = True
            return
        self._pool.submit(self._file.write, entries).add_done_callback(lambda _: self._room.release())

    def close(self) -> None:
        """Write what is left and close the file; waits for the disk."""
        self.flush()
        if self._file is not None:
            self._pool.submit(self._file.close)
        self._pool.shutdown(wait=True)


def read_timeline(path: Path) -> list[StageLife]:
    """Return what stands in a node's timeline and in the older file beside it; nothing when there is none.

    Raises OSError when a file that is there cannot be read.
    """
    parts = [each.read_bytes() for each in (_older(path), path) if each.exists()]
    return lives(entry for part in parts for entry in parse_lines(part))


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _ends_with_line(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, SEEK_END) == 0:
            return True
        file.seek(-1, SEEK_END)
        return file.read(1) == b"\n"
