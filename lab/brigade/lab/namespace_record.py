"""What a lab has made in the kernel, written down before it is made, so that a later lab can take it down if it must.

One directory for each network. Its lock is held as long as its owner lives; the system frees it, however the owner
ends.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from brigade.wire.errors import ConfigError
from brigade.wire.state_lock import StateLock

RECORDS = Path("/run/brigade-lab")
NAMES = "namespaces"


class Record:
    """The namespaces of one network. Only what is in a record is ever taken down."""

    def __init__(self, lock: StateLock) -> None:
        self._lock = lock

    @property
    def prefix(self) -> str:
        """What the names of the namespaces begin with; nobody else's do."""
        return self._lock.directory.name

    @property
    def namespaces(self) -> list[str]:
        """What was written down."""
        try:
            return (self._lock.directory / NAMES).read_text(encoding="utf-8").split()
        except FileNotFoundError:
            return []

    def write(self, namespaces: Sequence[str]) -> None:
        """Write down what will be made."""
        (self._lock.directory / NAMES).write_text("\n".join(namespaces) + "\n", encoding="utf-8")

    def erase(self) -> None:
        """Forget all: it is taken down."""
        shutil.rmtree(self._lock.directory, ignore_errors=True)
        self._lock.release()

    def release(self) -> None:
        """Leave it to somebody else, who will find it without an owner."""
        self._lock.release()


def new_record(directory: Path = RECORDS) -> Record:
    """Return an empty record, named after this process.

    Raises ConfigError where the directory cannot be written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in count(1):
            own = directory / f"lab{os.getpid()}{'' if number == 1 else f'.{number}'}"
            try:
                own.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return Record(StateLock(own))
    except OSError as error:
        raise ConfigError(f"{directory}, where labs write down what they make, cannot be used: {error}") from error
    raise AssertionError


def ownerless(directory: Path = RECORDS) -> Iterator[Record]:
    """Yield the records of networks whose owners have ended; they are ours then."""
    for names in sorted(directory.glob(f"*/{NAMES}")):  # without names: a record that is just being made
        try:
            record = Record(StateLock(names.parent))
        except ConfigError:
            continue  # its owner lives
        yield record
