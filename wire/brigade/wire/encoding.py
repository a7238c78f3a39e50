"""Messages as bytes and back: one MessagePack header, raw frames beside it. Total, and bounded in memory.

The header is a map {"type": name, "body": {field: value}}. Whatever arrives, `decode` gives a message of
`brigade.wire.messages` that passes `brigade.wire.validity`, or raises RemoteProtocolError, and allocates no more than
`Limits.decoding_bytes` says.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgpack
import msgspec

from brigade.wire import messages as m
from brigade.wire.errors import LocalProtocolError, RemoteProtocolError
from brigade.wire.limits import DEFAULT_LIMITS, Limits
from brigade.wire.messages import MESSAGES
from brigade.wire.validity import Buffer, check_frames, check_message, check_value_header

__all__ = [
    "PROTOCOL_VERSION",
    "Buffer",
    "Limits",
    "Message",
    "check_frames",
    "check_value_header",
    "decode",
    "encode",
    "unpack",
]

PROTOCOL_VERSION = 1

Message = (
    m.Hello
    | m.Welcome
    | m.Refused
    | m.Leaving
    | m.NodeFailed
    | m.ProfileBlocks
    | m.Profiled
    | m.MeasureLinks
    | m.LinksMeasured
    | m.LinkProbe
    | m.LinkProbeEcho
    | m.LoadStage
    | m.StandBy
    | m.StageLoaded
    | m.BeginTraining
    | m.GradientsReady
    | m.ApplyStep
    | m.StepApplied
    | m.Evaluated
    | m.StateSaved
    | m.RunEnded
    | m.FileWanted
    | m.FilePart
    | m.Activation
    | m.Gradient
    | m.TiedGradient
    | m.TiedWeight
    | m.Pulse
    | m.PulseEcho
    | m.StatusWanted
    | m.StatusTold
    | m.StopWanted
    | m.RevokeWanted
    | m.Done
)

_MOST_ERROR_CHARACTERS = 300
_PLAIN = frozenset({type(None), bool, int, float, str, list, dict})


def encode(message: Message, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Return the header of a message.

    Raises LocalProtocolError for what the other side would refuse: not a message, a value that MessagePack cannot
    carry, a field that breaks the rules of `brigade.wire.validity`, a header above the limit.
    """
    name = type(message).__name__
    if MESSAGES.get(name) is not type(message):
        raise LocalProtocolError(f"{name} is not a message of the protocol")
    try:
        check_message(message, limits)
        header = msgspec.msgpack.encode({"type": name, "body": message})
    except (RemoteProtocolError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LocalProtocolError(f"cannot send {name}: {error}") from error
    if len(header) > limits.max_header_bytes:
        raise LocalProtocolError(
            f"cannot send {name}: its header of {len(header)} bytes exceeds {limits.max_header_bytes}"
        )
    return header


def decode(header: Buffer, limits: Limits = DEFAULT_LIMITS) -> Message:
    """Return the message in a header; RemoteProtocolError for anything else, whatever the bytes are."""
    envelope = unpack(header, limits)
    if type(envelope) is not dict:
        raise RemoteProtocolError("the header is not a map")
    name, body = envelope.get("type"), envelope.get("body")
    kind = MESSAGES.get(name) if type(name) is str else None
    if kind is None:
        raise RemoteProtocolError(f"a message of the unknown type {_shown(name)}")
    if type(body) is not dict:
        raise RemoteProtocolError(f"{name} without a body")
    try:
        message: object = msgspec.convert(body, type=kind)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise RemoteProtocolError(f"{name}: {str(error)[:_MOST_ERROR_CHARACTERS]}") from error
    check_message(message, limits)
    return cast("Message", message)


def unpack(data: Buffer, limits: Limits = DEFAULT_LIMITS) -> Any:
    """Return the one MessagePack value that fills `data`, made of None, bool, int, float, str, list and dict.

    Raises RemoteProtocolError for anything else, and for what exceeds the limits.
    """
    try:
        view = memoryview(data).cast("B")
        if view.nbytes > limits.max_header_bytes:
            raise RemoteProtocolError(f"a header of {view.nbytes} bytes, at most {limits.max_header_bytes}")
        _check_lengths(view)
        root = _unpack_counted(view, limits.max_containers)
    except (msgpack.UnpackException, ValueError, TypeError, OverflowError, RecursionError) as error:
        # Some of these errors have no text of their own.
        why = str(error)[:_MOST_ERROR_CHARACTERS] or type(error).__name__
        raise RemoteProtocolError(f"the header is not MessagePack within the limits: {why}") from error
    _check_plain(root, limits.max_nesting)
    return root


def _check_lengths(view: memoryview) -> None:
    """Walk over the value without building it.

    A list of declared length n gets memory for n items before its first item is read, and lists nest. Once the value
    is known to be complete, every item has its byte, so all lists together need memory in proportion to the bytes.
    """
    walker = msgpack.Unpacker(max_buffer_size=max(view.nbytes, 1))
    walker.feed(view)
    walker.skip()


def _unpack_counted(view: memoryview, most: int) -> Any:
    """Unpack, counting lists and maps as they are made: an empty one is 1 byte on the wire and 72 in memory."""
    count = 0

    def counted(container: Any) -> Any:
        nonlocal count
        count += 1
        if count > most:
            raise ValueError(f"more than {most} lists and maps")
        return container

    return msgpack.unpackb(
        view, list_hook=counted, object_hook=counted, strict_map_key=True, max_bin_len=0, max_ext_len=0
    )


def _check_plain(root: Any, max_nesting: int) -> None:
    """Refuse other kinds of values, keys that are not text, and deep nesting, level by level without recursion."""
    level: list[Any] = [[root]]
    for _ in range(max_nesting + 1):
        below: list[Any] = []
        for container in level:
            values: Sequence[Any] = container
            if type(container) is dict:
                if not all(type(key) is str for key in container):
                    raise RemoteProtocolError("a map in the header has a key that is not text")
                values = list(container.values())
            if not _PLAIN.issuperset(map(type, values)):
                raise RemoteProtocolError("the header has a value that is neither text, number, truth, list nor map")
            below.extend(value for value in values if type(value) is list or type(value) is dict)
        if not below:
            return
        level = below
    raise RemoteProtocolError(f"the header is nested deeper than {max_nesting} levels")


def _shown(name: Any) -> str:
    return repr(name[:40]) if type(name) is str else f"<{type(name).__name__}>"
