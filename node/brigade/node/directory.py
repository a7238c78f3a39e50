"""The state directory of a node: where it is, that nobody else uses it, and what lies in it."""

import os
from dataclasses import dataclass
from pathlib import Path

from brigade.wire.errors import ConfigError
from brigade.wire.identity import KeyPair, load_or_create
from brigade.wire.state_lock import StateLock

DEFAULT_NAME = "node"
MAX_NODES_A_MACHINE = 64


@dataclass(frozen=True, slots=True)
class NodeDirectory:
    """A locked state directory with the node's key."""

    path: Path
    name: str
    lock: StateLock
    keys: KeyPair

    @property
    def cache(self) -> Path:
        """Return the folder of fetched files, by checksum."""
        return self.path / "cache"

    @property
    def outgoing(self) -> Path:
        """Return the folder of snapshots on their way out."""
        return self.path / "outgoing"


def nodes_home() -> Path:
    """Return where the state of this user's nodes lives: `$XDG_STATE_HOME/brigade/nodes`."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "brigade" / "nodes"


def open_directory(name: str | None, state_dir: Path | None) -> NodeDirectory:
    """Lock a state directory and load its key.

    With a name or a directory it is that one; otherwise the first of node, node-2, node-3 ... that is free.
    Raises ConfigError: in use (with the process id that holds it), not writable, key file damaged.
    """
    if state_dir is not None:
        return _open(state_dir, name or state_dir.name)
    if name is not None:
        return _open(nodes_home() / _checked(name), name)
    candidates = [DEFAULT_NAME, *(f"{DEFAULT_NAME}-{number}" for number in range(2, MAX_NODES_A_MACHINE + 1))]
    for candidate in candidates:
        try:
            return _open(nodes_home() / candidate, candidate)
        except ConfigError as error:
            if "in use" not in str(error):
                raise
    raise ConfigError(
        f"{MAX_NODES_A_MACHINE} nodes run on this machine already: choose a --name or a --state directory"
    )


def _open(path: Path, name: str) -> NodeDirectory:
    lock = StateLock(path)
    try:
        return NodeDirectory(path, name, lock, load_or_create(path / "node.key"))
    except BaseException:
        lock.release()
        raise


def _checked(name: str) -> str:
    if name in {"", ".", ".."} or "/" in name or "\0" in name or len(name) > 64:
        raise ConfigError(f"--name: {name[:80]!r} cannot be the name of a node: up to 64 characters, without a slash")
    return name
