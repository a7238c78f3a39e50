"""Files that hold secrets: made whole and for their owner only, refused when others can read them."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from brigade.wire.errors import ConfigError

_MOST_BYTES = 4096


def read_private(path: Path) -> str | None:
    """Return the text of a secret file, None if there is none.

    Raises ConfigError naming the path when others than its owner may read or write it, or it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise ConfigError(f"{path} is not a file")
            if state.st_mode & 0o077:
                mode = stat.S_IMODE(state.st_mode)
                raise ConfigError(f"{path} is open to others (mode {mode:04o}); run: chmod 600 {path}")
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:  # a directory opens and does not read
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{path} is longer than {_MOST_BYTES} bytes: not a file of this program")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text: not a file of this program") from error


def create_private(path: Path, text: str) -> bool:
    """Write a secret file (mode 0600) that appears whole or not at all; tell whether it was not there before.

    An existing file is left as it is. Raises ConfigError naming the path when it cannot be written.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: the directory {path.parent} does not exist")
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        draft = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), 0o600)  # whatever the umask
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            return _publish(draft, path)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _publish(draft: Path, path: Path) -> bool:
    try:
        os.link(draft, path)  # unlike a rename it never replaces what another process made meanwhile
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if path.exists():
            return False
        draft.rename(path)
    return True
