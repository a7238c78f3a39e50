"""zstd around frames: kept where it gains, checked when it comes in, one object a thread."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import zstandard

from brigade.compression import lossless
from brigade.compression.codec import build_codec
from brigade.compression.lossless import restore, squeeze
from brigade.compression.spec import Part, ZstdStage
from brigade.wire.errors import RemoteProtocolError

STAGE = ZstdStage()


def smooth_floats(count: int) -> bytes:
    return np.random.default_rng(0).standard_normal(count).astype(np.float32).tobytes()


@pytest.mark.parametrize("item_bytes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("level", [1, 3, 19])
def test_round_trip(item_bytes: int, level: int) -> None:
    payload = smooth_floats(4096)
    frame = squeeze(payload, item_bytes, ZstdStage(level=level))
    assert bytes(restore(frame, Part(len(payload), item_bytes), STAGE)) == payload


def test_planes_gain_where_plain_zstd_does_not() -> None:
    payload = smooth_floats(1 << 16)
    assert len(squeeze(payload, 4, STAGE)) < 0.9 * len(payload)
    assert len(zstandard.compress(payload, 1)) > 0.9 * len(payload)


@pytest.mark.parametrize("size", [1 << k for k in range(8, 25)] + [(1 << 17) + 1, (1 << 23) - 4])
def test_the_most_compressible_payload_is_believed(size: int) -> None:
    frame = squeeze(bytes(size), 1, STAGE)
    assert len(frame) < size / 5
    assert bytes(restore(frame, Part(size, 1), STAGE)) == bytes(size)


def test_noise_and_crumbs_stay_plain() -> None:
    noise = np.random.default_rng(1).bytes(10_000)
    crumbs = bytes(100)
    assert squeeze(noise, 1, STAGE) is noise
    assert squeeze(crumbs, 1, STAGE) is crumbs
    assert restore(noise, Part(10_000, 1), None) is noise


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "cannot hold"),
        (bytes(50), "neither plain nor zstd"),
        (bytes(1001), "1001 bytes where the tensor needs 1000"),
        (zstandard.compress(bytes(999)), "declares 999"),
        (zstandard.compress(bytes(1 << 20)), "declares 1048576"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000)), "declares no size"),
        (zstandard.compress(bytes(1000))[:-1], "damaged"),
        (zstandard.compress(bytes(1000)) + b"x", "damaged"),
        (zstandard.compress(bytes(1000)) * 2, "damaged"),
        (b"\x50\x2a\x4d\x18" + (1000).to_bytes(4, "little"), "zstd frame"),
    ],
)
def test_hostile_frames_are_refused(frame: bytes, says: str) -> None:
    with pytest.raises(RemoteProtocolError, match=says):
        restore(frame, Part(1000, 1), STAGE)


def test_zstd_where_none_was_agreed_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="needs 1000"):
        restore(zstandard.compress(bytes(1000)), Part(1000, 1), None)


def test_every_thread_has_its_own_objects() -> None:
    barrier = threading.Barrier(4)

    def objects(_: int) -> tuple[int, int]:
        squeeze(bytes(1000), 1, STAGE)
        barrier.wait(timeout=30)  # all four threads live at once, so no address is used twice
        return id(lossless._threads.compressors[1]), id(lossless._threads.decompressor)

    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(objects, range(4)))
    assert len({pair[0] for pair in seen}) == len({pair[1] for pair in seen}) == 4


def test_eight_threads_never_mix_their_bytes() -> None:
    """One zstd object shared by several threads crashes within 0.15 s here."""
    codecs = [build_codec(text) for text in ("raw+zstd", "bf16+zstd", "int8+zstd:level=3", "fp16+zstd")]
    start = threading.Barrier(8)

    def work(thread: int) -> None:
        tensor = torch.randn(512, 1024, generator=torch.Generator().manual_seed(thread))
        expected = [codec.decode(codec.encode(tensor), tensor.dtype, tensor.shape) for codec in codecs]
        start.wait(timeout=60)
        for turn in range(12):
            index = (turn + thread) % len(codecs)
            frames = codecs[index].encode(tensor)
            again = codecs[index].decode(frames, tensor.dtype, tensor.shape)
            assert torch.equal(again, expected[index])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
