"""zstd around the frames of a tensor: kept only where it makes them smaller, never trusted when it comes in.

Both sides know the plain size of a frame, so a frame of that size is plain and a shorter one is zstd: no flag travels.
"""

import threading

import torch
import zstandard

from brigade.compression.buffers import bytes_of, tensor_over
from brigade.compression.planes import WORDS, join_planes, split_planes
from brigade.compression.spec import Part, ZstdStage
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.validity import Buffer

SMALLEST = 128  # bytes; below, the frame's own header eats the gain
WORTHWHILE = 0.98  # of the plain size; otherwise not worth the receiver's time
MAX_EXPANSION = 1 << 15  # one run of 128 KiB takes four bytes of zstd


class _Threads(threading.local):
    """The zstd objects of one thread: shared ones crash (dask/distributed#7403)."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()


_threads = _Threads()


def squeeze(payload: Buffer, item_bytes: int, stage: ZstdStage) -> Buffer:
    """Return the zstd frame of the payload, or the payload itself where that is no larger."""
    size = len(payload)
    if size < SMALLEST:
        return payload
    compressor = _threads.compressors.get(stage.level)
    if compressor is None:
        compressor = zstandard.ZstdCompressor(level=stage.level, write_content_size=True)
        _threads.compressors[stage.level] = compressor
    width = _plane_width(item_bytes)
    plain = payload if width == 1 else bytes_of(split_planes(tensor_over(payload, torch.uint8), width))
    frame = compressor.compress(plain)
    return frame if len(frame) < WORTHWHILE * size else payload


def check_frame(frame: Buffer, part: Part, stage: ZstdStage | None) -> None:
    """Raise RemoteProtocolError unless the frame can hold this part; reads its first bytes only, allocates nothing."""
    size = len(frame)
    if size == part.size_bytes:
        return
    if stage is None or size > part.size_bytes:
        raise RemoteProtocolError(f"a frame has {size} bytes where the tensor needs {part.size_bytes}")
    if part.size_bytes > size * MAX_EXPANSION:
        raise RemoteProtocolError(f"a frame of {size} bytes cannot hold {part.size_bytes}")
    try:
        parameters = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise RemoteProtocolError(f"a frame of {size} bytes is neither plain nor zstd: {error}") from None
    declared = parameters.content_size
    if declared != part.size_bytes:
        told = "no size" if declared == zstandard.CONTENTSIZE_UNKNOWN else f"{declared} bytes"
        raise RemoteProtocolError(f"a zstd frame declares {told} where the tensor needs {part.size_bytes}")


def restore(frame: Buffer, part: Part, stage: ZstdStage | None) -> Buffer:
    """Undo `squeeze`: the plain bytes of this part, or RemoteProtocolError; allocates twice the part at most."""
    check_frame(frame, part, stage)
    if len(frame) == part.size_bytes:
        return frame
    try:
        # The declared size was checked, so this is what is allocated, whatever the frame really holds.
        plain = _threads.decompressor.decompress(frame, max_output_size=part.size_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        _threads.decompressor = zstandard.ZstdDecompressor()  # a broken frame may leave large scratch in the old one
        raise RemoteProtocolError(f"a zstd frame is damaged: {error}") from None
    if len(plain) != part.size_bytes:
        raise RemoteProtocolError(f"a zstd frame holds {len(plain)} bytes where the tensor needs {part.size_bytes}")
    width = _plane_width(part.item_bytes)
    return plain if width == 1 else bytes_of(join_planes(tensor_over(plain, torch.uint8), width))


def _plane_width(item_bytes: int) -> int:
    """Return the number of planes: complex numbers of 16 bytes are pairs of 8."""
    return min(item_bytes, max(WORDS))
