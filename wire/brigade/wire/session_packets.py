"""The packets of a session: from values to frames and back, total and bounded.

A packet is a short list of frames; the first is its header. Greeting and Farewell start with a preamble whose layout
holds for every version of the protocol; the others belong to the version that the greetings agreed on.

    preamble   "BB"  u16 highest version  u16 lowest version  u8 kind
    greeting   preamble  16 bytes session  u64 received  u64 credit  u8 resuming           (later versions may append)
    farewell   preamble  u8 length, code  u16 length, reason                               (later versions may append)
    data       u8 kind  u8 flags and priority  u64 number  u64 received  u64 credit  [u32 count, u64 size of each piece]
    ack, gap   u8 kind  u64 received  u64 credit
    ping, pong u8 kind  u64 token
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from brigade.wire.errors import RemoteProtocolError
from brigade.wire.limits import DEFAULT_LIMITS

Buffer = bytes | bytearray | memoryview

MAGIC = b"BB"
FRAGMENT_BYTES = 256 * 1024
MAX_PARTS = 64  # frames of one data packet
PRIORITIES = 4
MAX_PIECES = DEFAULT_LIMITS.max_frames + 1  # header and frames of one message
MAX_HEADER_BYTES = 512
REASON_BYTES = 600
CODE_BYTES = 40

_GREETING, _FAREWELL, _DATA, _ACK, _GAP, _PING, _PONG = range(1, 8)
_FIRST, _LAST, _PRIORITY = 0x80, 0x40, 0x0F

_PREAMBLE = struct.Struct("!2sHHB")
_GREETING_BODY = struct.Struct("!16sQQB")
_DATA_HEADER = struct.Struct("!BBQQQ")
_ACK_HEADER = struct.Struct("!BQQ")
_PING_HEADER = struct.Struct("!BQ")
_U8 = struct.Struct("!B")
_U16 = struct.Struct("!H")
_U32 = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Versions:
    """The protocol versions that a program speaks, from lowest to highest."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        if self.lowest == self.highest:
            return f"version {self.highest}"
        return f"versions {self.lowest} to {self.highest}"

    def agreed(self, other: "Versions") -> int | None:
        """Return the highest version that both speak, None if there is none."""
        version = min(self.highest, other.highest)
        return version if version >= max(self.lowest, other.lowest) else None


@dataclass(frozen=True, slots=True)
class Greeting:
    """First packet of every route, from either side."""

    versions: Versions
    session_id: bytes
    received: int  # highest packet number up to which nothing is missing; 0: none
    credit: int  # the receiver of this may send up to so many bytes, counted from the session's start
    resuming: bool  # the session was open before


@dataclass(frozen=True, slots=True)
class ForeignGreeting:
    """A greeting of which only the preamble can be read: no version in common."""

    versions: Versions


@dataclass(frozen=True, slots=True)
class Farewell:
    """Last packet: the session ends, or never begins."""

    versions: Versions
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Data:
    """One fragment of a message; `sizes` lists the pieces of the whole message in its first fragment."""

    number: int
    received: int
    credit: int
    priority: int
    sizes: tuple[int, ...] | None
    last: bool
    parts: tuple[memoryview, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """Everything up to packet `received` has arrived; `gap`: and a later one came, send again from there."""

    received: int
    credit: int
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks whether the other side is there."""

    token: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a ping."""

    token: int


Packet = Greeting | ForeignGreeting | Farewell | Data | Ack | Ping | Pong


def data_cost(parts: Sequence[Buffer], sizes: Sequence[int] | None) -> int:
    """Return the bytes of credit that a data packet uses: payload and what it costs to keep."""
    return 64 + 64 * len(parts) + 8 * len(sizes or ()) + sum(len(part) for part in parts)


def pack_greeting(greeting: Greeting) -> list[Buffer]:
    """Return the frames of a greeting."""
    versions = greeting.versions
    body = _GREETING_BODY.pack(greeting.session_id, greeting.received, greeting.credit, greeting.resuming)
    return [_PREAMBLE.pack(MAGIC, versions.highest, versions.lowest, _GREETING) + body]


def pack_farewell(farewell: Farewell) -> list[Buffer]:
    """Return the frames of a farewell; the reason is cut to a sane length."""
    code = farewell.code.encode()[:CODE_BYTES]
    reason = farewell.reason.encode(errors="replace")[:REASON_BYTES]
    versions = farewell.versions
    preamble = _PREAMBLE.pack(MAGIC, versions.highest, versions.lowest, _FAREWELL)
    return [preamble + _U8.pack(len(code)) + code + _U16.pack(len(reason)) + reason]


def pack_data(
    number: int,
    received: int,
    credit: int,
    priority: int,
    sizes: tuple[int, ...] | None,
    last: bool,
    parts: Sequence[Buffer],
) -> list[Buffer]:
    """Return the frames of a data packet; `parts` are used as they are."""
    flags = priority | (_FIRST if sizes is not None else 0) | (_LAST if last else 0)
    header = _DATA_HEADER.pack(_DATA, flags, number, received, credit)
    if sizes is not None:
        header += struct.pack(f"!I{len(sizes)}Q", len(sizes), *sizes)
    return [header, *parts]


def pack_ack(ack: Ack) -> list[Buffer]:
    """Return the frames of an acknowledgement or a gap report."""
    return [_ACK_HEADER.pack(_GAP if ack.gap else _ACK, ack.received, ack.credit)]


def pack_ping(packet: Ping | Pong) -> list[Buffer]:
    """Return the frames of a ping or a pong."""
    return [_PING_HEADER.pack(_PING if isinstance(packet, Ping) else _PONG, packet.token)]


def parse_packet(frames: Sequence[Buffer], versions: Versions, max_pieces: int = MAX_PIECES) -> Packet:
    """Return the packet in `frames`; whatever they hold, nothing but `RemoteProtocolError` is raised.

    Allocates no more than the table of sizes, at most `max_pieces` numbers; payload frames are referred to, not copied.
    """
    if not frames:
        raise RemoteProtocolError("empty packet")
    header = memoryview(frames[0]).cast("B")
    if header[:2] == MAGIC:
        return _parse_lasting(header, len(frames), versions)
    if not header:
        raise RemoteProtocolError("packet without a header")
    kind = header[0]
    if kind == _DATA:
        return _parse_data(header, frames, max_pieces)
    if len(frames) != 1:
        raise RemoteProtocolError(f"packet of kind {kind} with {len(frames)} frames, expected 1")
    if kind in (_ACK, _GAP) and len(header) == _ACK_HEADER.size:
        _, received, credit = _ACK_HEADER.unpack(header)
        return Ack(received, credit, kind == _GAP)
    if kind in (_PING, _PONG) and len(header) == _PING_HEADER.size:
        token = _PING_HEADER.unpack(header)[1]
        return Ping(token) if kind == _PING else Pong(token)
    raise RemoteProtocolError(f"packet of kind {kind} with a header of {len(header)} bytes")


def _parse_lasting(header: memoryview, frame_count: int, ours: Versions) -> Greeting | ForeignGreeting | Farewell:
    if frame_count != 1 or not _PREAMBLE.size <= len(header):
        raise RemoteProtocolError("preamble cut short or followed by more frames")
    _, highest, lowest, kind = _PREAMBLE.unpack_from(header)
    if lowest > highest:
        raise RemoteProtocolError(f"lowest version {lowest} above the highest, {highest}")
    theirs = Versions(lowest, highest)
    body = header[_PREAMBLE.size :]
    if kind == _FAREWELL:
        return _parse_farewell(theirs, body)
    if kind != _GREETING:
        raise RemoteProtocolError(f"preamble of unknown kind {kind}")
    if ours.agreed(theirs) is None:
        return ForeignGreeting(theirs)
    if len(body) < _GREETING_BODY.size or len(header) > MAX_HEADER_BYTES:
        raise RemoteProtocolError(f"greeting of {len(header)} bytes")
    session_id, received, credit, resuming = _GREETING_BODY.unpack_from(body)
    return Greeting(theirs, session_id, received, credit, bool(resuming))


def _parse_farewell(theirs: Versions, body: memoryview) -> Farewell:
    code, rest = _parse_text(body, _U8, CODE_BYTES)
    reason, _ = _parse_text(rest, _U16, REASON_BYTES)
    return Farewell(theirs, code, reason)


def _parse_text(body: memoryview, length: struct.Struct, most: int) -> tuple[str, memoryview]:
    if len(body) < length.size:
        raise RemoteProtocolError("farewell cut short")
    (size,) = length.unpack_from(body)
    text = body[length.size : length.size + size]
    if size > most or len(text) != size:
        raise RemoteProtocolError(f"text of {size} bytes in a farewell, at most {most}")
    shown = bytes(text).decode(errors="replace")
    # What strangers write ends up on terminals and in logs: no control characters.
    return "".join(c if c.isprintable() else "?" for c in shown), body[length.size + size :]


def _parse_data(header: memoryview, frames: Sequence[Buffer], max_pieces: int) -> Data:
    if len(header) < _DATA_HEADER.size:
        raise RemoteProtocolError("data header cut short")
    _, flags, number, received, credit = _DATA_HEADER.unpack_from(header)
    priority = flags & _PRIORITY
    if priority >= PRIORITIES or flags & ~(_FIRST | _LAST | _PRIORITY):
        raise RemoteProtocolError(f"data packet with flags {flags:#x}")
    sizes = None
    table = header[_DATA_HEADER.size :]
    if flags & _FIRST:
        sizes = _parse_sizes(table, min(max_pieces, MAX_PIECES))
    elif table:
        raise RemoteProtocolError("data header with a tail")
    if len(frames) - 1 > MAX_PARTS:
        raise RemoteProtocolError(f"data packet of {len(frames) - 1} parts, at most {MAX_PARTS}")
    parts = tuple(memoryview(frame).cast("B") for frame in frames[1:])
    if sum(len(part) for part in parts) > FRAGMENT_BYTES:
        raise RemoteProtocolError(f"data packet above {FRAGMENT_BYTES} bytes")
    if not all(parts):
        raise RemoteProtocolError("data packet with an empty part")
    return Data(number, received, credit, priority, sizes, bool(flags & _LAST), parts)


def _parse_sizes(table: memoryview, most: int) -> tuple[int, ...]:
    if len(table) < _U32.size:
        raise RemoteProtocolError("table of sizes cut short")
    (count,) = _U32.unpack_from(table)
    if count > most:
        raise RemoteProtocolError(f"message of {count} pieces, at most {most}")
    if len(table) != _U32.size + 8 * count:
        raise RemoteProtocolError(f"table of {count} sizes in {len(table)} bytes")
    return struct.unpack_from(f"!{count}Q", table, _U32.size)
