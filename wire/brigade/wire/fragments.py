"""Messages in pieces: cut into fragments at the sender, put together at the receiver, copying only where it must."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brigade.wire.errors import RemoteProtocolError
from brigade.wire.session_packets import FRAGMENT_BYTES, MAX_PARTS, Buffer, Data, data_cost

EMPTY = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Fragment:
    """Slices of one message that travel in one packet; `sizes` only in the first."""

    priority: int
    sizes: tuple[int, ...] | None
    last: bool
    parts: tuple[memoryview, ...]
    message_bytes: int  # of the whole message

    @property
    def cost(self) -> int:
        """Bytes of credit."""
        return data_cost(self.parts, self.sizes)


class Cutter:
    """One message on its way out: gives its fragments one after the other, as slices of the caller's buffers.

    The buffers are referred to until they are acknowledged: their owner must not change them before.
    """

    def __init__(self, pieces: Sequence[Buffer], priority: int, fragment_bytes: int = FRAGMENT_BYTES) -> None:
        self._pieces = tuple(_flat(piece) for piece in pieces)
        self._fragment_bytes = fragment_bytes
        self._piece = 0
        self._offset = 0
        self._begun = False
        self.priority = priority
        self.sizes = tuple(len(piece) for piece in self._pieces)
        self.total_bytes = sum(self.sizes)
        self.done = False

    def next_fragment(self) -> Fragment:
        """Return the next fragment; `done` says that it was the last."""
        parts: list[memoryview] = []
        room = self._fragment_bytes
        while self._piece < len(self._pieces) and room > 0 and len(parts) < MAX_PARTS:
            piece = self._pieces[self._piece]
            part = piece[self._offset : self._offset + room]
            if part:
                parts.append(part)
            room -= len(part)
            self._offset += len(part)
            if self._offset == len(piece):
                self._piece += 1
                self._offset = 0
        sizes = None if self._begun else self.sizes
        self._begun = True
        self.done = all(not piece for piece in self._pieces[self._piece :])
        return Fragment(self.priority, sizes, self.done, tuple(parts), self.total_bytes)


def _flat(piece: Buffer) -> memoryview:
    view = memoryview(piece)
    if view.nbytes == 0:
        return EMPTY  # a view with a zero in its shape cannot be cast
    return view.cast("B")


class Assembly:
    """One message on its way in.

    A part that is a whole piece is taken as it is. Other pieces are gathered in memory of their declared size, which
    the system hands out only as it is filled: a declaration alone costs nothing.
    """

    def __init__(self, sizes: Sequence[int], max_message_bytes: int) -> None:
        if sum(sizes) > max_message_bytes:
            raise RemoteProtocolError(f"message of {sum(sizes)} bytes, at most {max_message_bytes}")
        self._sizes = sizes
        self._pieces: list[memoryview] = []
        self._offset = 0  # in the last piece, which is incomplete unless 0
        self._skip_empty()

    def add(self, data: Data) -> list[memoryview] | None:
        """Take the next fragment's parts; return the pieces when the message is whole."""
        for part in data.parts:
            self._add_part(part)
        whole = len(self._pieces) == len(self._sizes) and self._offset == 0
        if whole != data.last:
            raise RemoteProtocolError("last fragment and declared sizes disagree")
        return self._pieces if whole else None

    def _add_part(self, part: memoryview) -> None:
        if self._offset == 0:
            if len(self._pieces) == len(self._sizes):
                raise RemoteProtocolError("fragment beyond the end of its message")
            size = self._sizes[len(self._pieces)]
            if len(part) == size:
                self._pieces.append(part)
                self._skip_empty()
                return
            self._pieces.append(_memory(size))
        piece = self._pieces[-1]
        end = self._offset + len(part)
        if end > len(piece):
            raise RemoteProtocolError("fragment runs over the end of its piece")
        piece[self._offset : end] = part
        self._offset = end
        if end == len(piece):
            self._offset = 0
            self._skip_empty()

    def _skip_empty(self) -> None:
        while len(self._pieces) < len(self._sizes) and self._sizes[len(self._pieces)] == 0:
            self._pieces.append(memoryview(bytearray()))


def _memory(size: int) -> memoryview:
    try:
        return np.empty(size, dtype=np.uint8).data
    except (MemoryError, ValueError) as error:
        raise RemoteProtocolError(f"no memory for a piece of {size} bytes") from error
