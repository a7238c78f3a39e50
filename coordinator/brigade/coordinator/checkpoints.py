"""Checkpoints on disk: collected in a partial folder, verified, made durable, and only then given their name.

A folder `step-000040` with a manifest is a checkpoint; `step-000040.partial` is one being made, and worthless after a
crash. Every step of sealing can be cut off at any byte: what is found afterwards is the old state or the new one.
"""

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from brigade.coordinator.checkpoint_manifest import (
    MANIFEST_NAME,
    Manifest,
    decode_manifest,
    encode_manifest,
    folder_name,
)
from brigade.wire.errors import CheckpointError
from brigade.wire.message_parts import FileSpec

PARTIAL, DELETING, DAMAGED = ".partial", ".deleting", ".damaged"
_SEALED = re.compile(r"^step-(\d{6,})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The newest checkpoint that is whole, and what was set aside on the way to it."""

    manifest: Manifest | None
    damaged: tuple[str, ...]  # sentences


class PartialCheckpoint:
    """A checkpoint that is being collected; files arrive in parts, each file in order."""

    def __init__(self, checkpoints_dir: Path, steps_done: int) -> None:
        self.steps_done = steps_done
        self._parent = checkpoints_dir
        self._folder = checkpoints_dir / (folder_name(steps_done) + PARTIAL)
        self._begun: dict[str, tuple[int, hashlib._Hash]] = {}  # name -> bytes so far and their digest
        self._received: dict[str, tuple[int, str]] = {}  # name -> size, checksum of whole files
        with _explained(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)

    def write(self, name: str, offset: int, size: int, data: memoryview | bytes) -> None:
        """Append a part of the file `name`, which will have `size` bytes.

        Raises CheckpointError when the part does not continue the file or the disk refuses.
        """
        if name in self._received:
            raise CheckpointError(f"{name} came twice")
        with _explained(self._folder / name):
            there, digest = self._begun.get(name, (0, hashlib.sha256()))
            end = offset + len(data)
            if offset != there or end > size:
                raise CheckpointError(f"{name}: bytes {offset} to {end} of {size} after {there}")
            # Opened for each part: however many files are begun at once, one descriptor is in use.
            with (self._folder / name).open("ab") as file:
                file.write(data)
                digest.update(data)
                self._begun[name] = (end, digest)
                if end < size:
                    return
                file.flush()
                os.fsync(file.fileno())
        del self._begun[name]
        self._received[name] = (size, digest.hexdigest())

    def holds(self, files: tuple[FileSpec, ...]) -> bool:
        """Tell whether all these files are here; raises CheckpointError when one is not what was announced."""
        for file in files:
            if file.name in self._received and self._received[file.name] != (file.size, file.sha256):
                raise CheckpointError(f"{file.name} arrived with another size or checksum than was announced")
        return all(file.name in self._received for file in files)

    @property
    def received_bytes(self) -> int:
        """Return how much has arrived."""
        return sum(size for size, _ in self._received.values()) + sum(size for size, _ in self._begun.values())

    def seal(self, manifest: Manifest, keep: int) -> tuple[int, tuple[int, ...]]:
        """Write the manifest, give the folder its name and remove all but the `keep` newest checkpoints.

        What came and is not in the manifest is removed.

        Returns the bytes of the checkpoint and which older ones were removed. Raises CheckpointError.
        """
        if not self.holds(manifest.files):
            raise CheckpointError(f"{self._folder.name} is not complete")
        final = self._parent / folder_name(self.steps_done)
        with _explained(self._folder):
            wanted = {file.name for file in manifest.files}
            for path in self._folder.iterdir():
                if path.name not in wanted:
                    path.unlink()
            data = encode_manifest(manifest)
            _write_durably(self._folder / MANIFEST_NAME, data)
            _sync_folder(self._folder)
            if final.exists():  # of an earlier attempt, or damaged: it was not resumed from
                _remove(final)
            self._folder.rename(final)
            _sync_folder(self._parent)
        return sum(f.size for f in manifest.files) + len(data), prune(self._parent, keep)

    def discard(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._folder, ignore_errors=True)


def list_sealed(checkpoints_dir: Path) -> list[int]:
    """Return the checkpoints by steps done, oldest first; whether they are whole is not looked at."""
    if not checkpoints_dir.is_dir():
        return []
    return sorted(int(m[1]) for path in checkpoints_dir.iterdir() if (m := _SEALED.match(path.name)))


def find_newest(checkpoints_dir: Path, run_id: str) -> Found:
    """Return the newest checkpoint of this run whose every byte is right; set aside the damaged ones above it."""
    damaged: list[str] = []
    for steps_done in reversed(list_sealed(checkpoints_dir)):
        folder = checkpoints_dir / folder_name(steps_done)
        try:
            manifest = verify(folder, run_id)
        except CheckpointError as error:
            damaged.append(f"{error}; set aside as {folder.name}{DAMAGED}")
            aside = folder.with_name(folder.name + DAMAGED)
            shutil.rmtree(aside, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.rename(aside)
            continue
        return Found(manifest=manifest, damaged=tuple(damaged))
    return Found(manifest=None, damaged=tuple(damaged))


def verify(folder: Path, run_id: str | None = None) -> Manifest:
    """Return the manifest of a checkpoint after reading every byte of it.

    Raises CheckpointError that says what is wrong.
    """
    manifest = read_manifest(folder)
    if run_id is not None and manifest.run_id != run_id:
        raise CheckpointError(f"{folder} is a checkpoint of another run")
    if folder_name(manifest.steps_done) != folder.name:
        raise CheckpointError(f"{folder} holds the checkpoint of {manifest.steps_done} steps")
    for file in manifest.files:
        path = folder / file.name
        with _explained(path):
            size = path.stat().st_size
            if size != file.size:
                raise CheckpointError(f"{path} has {size} bytes instead of {file.size}")
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != file.sha256:
            raise CheckpointError(f"{path} has a wrong checksum")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint; raises CheckpointError when there is none that can be read."""
    path = folder / MANIFEST_NAME
    with _explained(path):
        data = path.read_bytes()
    return decode_manifest(data, str(path))


def prune(checkpoints_dir: Path, keep: int) -> tuple[int, ...]:
    """Remove all but the `keep` newest checkpoints, and what was set aside; return which were removed."""
    old = list_sealed(checkpoints_dir)[:-keep]
    for steps_done in old:
        _remove(checkpoints_dir / folder_name(steps_done))
    for path in checkpoints_dir.glob(f"step-*{DAMAGED}"):
        shutil.rmtree(path, ignore_errors=True)
    return tuple(old)


def clean_leftovers(checkpoints_dir: Path) -> tuple[str, ...]:
    """Remove what a killed coordinator left half made or half removed; return the names."""
    if not checkpoints_dir.is_dir():
        return ()
    leftovers = [path for path in checkpoints_dir.iterdir() if path.name.endswith((PARTIAL, DELETING))]
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)
    return tuple(sorted(path.name for path in leftovers))


def space_warning(folder: Path, checkpoint_bytes: int, keep: int) -> str:
    """Return a warning if the disk has no room for the checkpoints that will be kept and one more; else nothing."""
    needed = checkpoint_bytes * (keep + 1)
    free = shutil.disk_usage(folder).free
    if needed <= free:
        return ""
    return (
        f"{folder} has {free / 1e6:.0f} MB free, but {keep} checkpoints and the one being written"
        f" take about {needed / 1e6:.0f} MB"
    )


def _remove(folder: Path) -> None:
    """Take a checkpoint's name away first, so that a half removed one never looks like a whole one."""
    doomed = folder.with_name(folder.name + DELETING)
    shutil.rmtree(doomed, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    reasons: Mapping[int, str] = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EROFS: "the disk is read-only",
        errno.ENOENT: "it is missing",
    }
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: {reasons.get(error.errno or 0, error.strerror or str(error))}") from error
