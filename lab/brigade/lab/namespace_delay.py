"""The delay line as a process of its own: reads frames from a device, and writes them back when they have arrived.

The kernel hands over and takes back whole trains of packets (TSO), which is why one core is enough for 1 Gbit/s.
Orders come in on standard input, whose end is its end too.
"""

import contextlib
import errno
import fcntl
import gc
import os
import select
import struct
import sys
import time

from brigade.lab.namespace_entry import enter_namespace
from brigade.lab.namespace_orders import (
    Answer,
    Failed,
    Lost,
    Open,
    Opened,
    Reported,
    read_order,
    write_line,
)
from brigade.lab.namespace_packets import DelayLine

# linux/if_tun.h
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04

LONGEST_FRAME = 65536 + 1024
MOST_AT_ONCE = 64  # frames read before those that are due get their turn
EARLY_S = 20e-6  # what is due so soon is done now
STDIN = 0


def main() -> None:
    """Serve until there are no more orders."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # a late delay line is a wrong one
    gc.disable()  # nothing here makes circles
    heard = b""
    while b"\n" not in heard:
        more = os.read(STDIN, 65536)
        if not more:
            return
        heard += more
    first, _, heard = heard.partition(b"\n")
    opening = read_order(first)
    assert isinstance(opening, Open)
    try:
        device = attach(opening)
    except OSError as error:
        answer(Failed(f"the delay line cannot use {opening.device}: {error.strerror}"))
        return
    answer(Opened())
    serve(device, DelayLine(opening.ways, opening.seed), heard)


def attach(opening: Open) -> int:
    """Return a descriptor of the device."""
    enter_namespace(opening.namespace)
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    name = opening.device.encode()
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name, IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(descriptor, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return descriptor


def serve(device: int, line: DelayLine, heard: bytes) -> None:
    """Carry packets and out orders until there are no more orders."""
    clock = time.monotonic
    while True:
        due = line.next_deadline()
        pause_s = None if due is None else max(0.0, due - clock())
        ready, _, _ = select.select((device, STDIN), (), (), pause_s)
        if device in ready:
            take_in(device, line)
        for frame in line.arrived(clock() + EARLY_S):
            hand_over(device, frame)
        if STDIN in ready:
            more = os.read(STDIN, 65536)
            if not more:
                return
            *orders, heard = (heard + more).split(b"\n")
            for _ in orders:
                answer(report(line))


def take_in(device: int, line: DelayLine) -> None:
    """Read what has set out."""
    for _ in range(MOST_AT_ONCE):
        try:
            frame = os.read(device, LONGEST_FRAME)
        except BlockingIOError:
            return
        line.admit(frame, time.monotonic())


def hand_over(device: int, frame: bytes) -> None:
    """Give a frame back to the kernel, which may have no room for it: then it is lost as on any full line."""
    try:
        os.write(device, frame)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.EIO, errno.EINVAL):
            raise


def report(line: DelayLine) -> Reported:
    """Say what has happened so far."""
    lost = tuple(Lost(*each) for each in line.lost() if each[2])
    return Reported(lost, line.late_total_s / max(1, line.packets), line.late_most_s)


def answer(message: Answer) -> None:
    """Say something to the lab."""
    sys.stdout.buffer.write(write_line(message))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
