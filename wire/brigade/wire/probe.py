"""What listens at an address that would not shake hands: looks at the first bytes that it says.

A CURVE listener hangs up on whoever expects another key without saying why, and so does many a program that never
heard of ZeroMQ. Their first bytes differ (RFC 37, ZMTP 3.1, section 2.1).
"""

import asyncio
import contextlib
from typing import Literal

from brigade.wire.endpoint import Endpoint

Found = Literal["curve", "plaintext", "stranger", "silent"]

# signature, version 3.1, mechanism padded to 20 bytes, as-server, filler
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
_SIGNATURE_BYTES = 10
_MECHANISM = slice(12, 32)


async def probe(address: Endpoint, timeout_s: float = 2.0, *, source_host: str = "") -> Found:
    """Return what answers at a numeric address; raise OSError with the reason if nothing accepts a connection."""
    source = (source_host, 0) if source_host else None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address.host, address.port, local_addr=source)
    except TimeoutError:
        raise OSError(None, "no answer") from None
    said = b""
    try:
        async with asyncio.timeout(timeout_s):
            writer.write(_GREETING)
            while _may_be_greeting(said) and (more := await reader.read(len(_GREETING))):
                said += more
    except (TimeoutError, OSError):
        if not said:
            return "silent"
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            writer.transport.abort()
    return _judge(said)


def _may_be_greeting(said: bytes) -> bool:
    return len(said) < len(_GREETING) and said[:1] in (b"", b"\xff")


def _judge(said: bytes) -> Found:
    if len(said) < _MECHANISM.stop or said[0] != 0xFF or not said[_SIGNATURE_BYTES - 1] & 1:
        return "stranger"
    mechanism = said[_MECHANISM].rstrip(b"\0")
    if mechanism == b"CURVE":
        return "curve"
    return "plaintext" if mechanism in (b"NULL", b"PLAIN") else "stranger"
