"""The device of a node: which one, how much memory is free on it, and how many threads it may use."""

import hashlib
import os
import platform
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from brigade.wire.costs import DeviceReport
from brigade.wire.errors import ConfigError


def choose_device(text: str) -> torch.device:
    """Return the device that `auto`, `cpu`, `cuda`, `cuda:N` or `mps` names; ConfigError when it is not there."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if text == "auto":
        return torch.device("cuda:0" if cuda else "mps" if mps else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        raise ConfigError(f"--device: {text!r} is not a device; expected auto, cpu, cuda:N or mps") from None
    if device.type == "cuda" and (not cuda or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"--device: {text} is not here; torch sees {torch.cuda.device_count() if cuda else 0} GPUs")
    if device.type == "mps" and not mps:
        raise ConfigError("--device: mps is not available on this machine")
    if device.type not in {"cpu", "cuda", "mps"}:
        raise ConfigError(f"--device: {text!r} is not supported; expected auto, cpu, cuda:N or mps")
    return device


def free_memory_bytes(device: torch.device, limit_bytes: int) -> int:
    """Return the memory that training may use; the owner's limit if it is lower (0: no limit)."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return min(free, limit_bytes) if limit_bytes else free


def usable_cores() -> int:
    """Return the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def set_threads(wanted: int | None, colocated: int) -> int:
    """Give torch its threads: the owner's number, or this node's share of the cores; return it.

    Several nodes on one machine with default threads were measured 30 times slower than with one thread each.
    """
    if wanted is None and "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    threads = wanted or max(1, usable_cores() // max(1, colocated))
    torch.set_num_threads(threads)
    return threads


def warm_up() -> None:
    """Load what torch loads at its first optimizer (seconds), while the node waits for the others anyway."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


def report(device: torch.device, limit_bytes: int) -> DeviceReport:
    """Return what the coordinator learns about this device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return DeviceReport(
        kind=device.type,
        name=name,
        memory_bytes=free_memory_bytes(device, limit_bytes),
        host=_host_id(),
        threads=torch.get_num_threads(),
        software=f"brigade {_own_version()}, Python {platform.python_version()}, torch {torch.__version__}",
    )


def _own_version() -> str:
    try:
        return version("bucket-brigade")
    except PackageNotFoundError:
        return "unknown"


def _host_id() -> str:
    """Return a name that is equal for all nodes of one machine; containers with an own id count as machines."""
    for place in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(place).read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if text:
            return _short_hash(f"{socket.gethostname()} {text}")
    return _short_hash(socket.gethostname())


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
