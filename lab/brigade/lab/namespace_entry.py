"""Enters a network namespace by its name."""

import ctypes
import os
import sys
from pathlib import Path

NAMESPACES = Path("/run/netns")  # where iproute2 keeps them
CLONE_NEWNET = 0x40000000


def enter_namespace(name: str) -> None:
    """Let the calling thread, and what it starts from now on, live in a network namespace.

    Raises OSError when there is none of this name, or without root.
    """
    descriptor = os.open(NAMESPACES / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        set_namespace(descriptor)
    finally:
        os.close(descriptor)


def set_namespace(descriptor: int) -> None:
    """Let the calling thread live in the network namespace that a descriptor stands for."""
    if sys.version_info >= (3, 12):
        os.setns(descriptor, CLONE_NEWNET)
        return
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
