"""Whatever bytes come in: a tensor of the stated dtype and shape, or RemoteProtocolError, in bounded memory."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.compression.codec_texts import TEXTS, WITH_ZSTD

from brigade.compression.codec import build_codec
from brigade.compression.spec import MAX_TEXT, VALUES
from brigade.compression.tensors import pack, unpack
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.message_parts import TensorHeader

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["float32", "float16", "bfloat16", "float64", "int64", "int8", "uint32", "bool", "complex64", "float8_e5m2"]
SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)
BYTES = st.binary(max_size=300)
LENIENT = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None)


def decodes_or_refuses(text: str, frames: list[bytes], name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    dtype = getattr(torch, name)
    try:
        tensor = build_codec(text).decode(frames, dtype, shape)
    except RemoteProtocolError:
        return None
    assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape)
    return tensor


def sample(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    values = torch.linspace(-3, 3, max(1, torch.Size(shape).numel()))[: torch.Size(shape).numel()].reshape(shape)
    return values.abs().to(getattr(torch, name))


def mutations(frame: bytes, data: st.DataObject) -> bytes:
    kind = data.draw(st.sampled_from(["cut", "extend", "flip", "double", "replace", "zstd", "keep"]))
    at = data.draw(st.integers(0, max(0, len(frame) - 1)))
    match kind:
        case "cut":
            return frame[:at]
        case "extend":
            return frame + data.draw(st.binary(min_size=1, max_size=9))
        case "flip" if frame:
            return frame[:at] + bytes([frame[at] ^ data.draw(st.integers(1, 255))]) + frame[at + 1 :]
        case "double":
            return frame * 2
        case "replace":
            return data.draw(st.binary(min_size=len(frame), max_size=len(frame)))
        case "zstd":
            return zstandard.compress(frame)
        case _:
            return frame


@LENIENT
@given(st.sampled_from(TEXTS), st.sampled_from(NAMES), SHAPES, st.lists(BYTES, max_size=3))
def test_any_bytes(text: str, name: str, shape: tuple[int, ...], frames: list[bytes]) -> None:
    decodes_or_refuses(text, frames, name, shape)


@LENIENT
@given(st.sampled_from(TEXTS), st.sampled_from(NAMES), st.data())
def test_frames_of_the_right_sizes_with_any_content(text: str, name: str, data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    valid = build_codec(text).encode(sample(name, shape))
    frames = [data.draw(st.binary(min_size=len(frame), max_size=len(frame))) for frame in valid]
    decodes_or_refuses(text, frames, name, shape)


@LENIENT
@given(st.sampled_from(TEXTS), st.sampled_from(NAMES), st.data())
def test_mutated_frames(text: str, name: str, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(40, 30), (7,), (), (3, 129)]))
    frames = [mutations(bytes(frame), data) for frame in build_codec(text).encode(sample(name, shape))]
    if data.draw(st.booleans()):
        frames = data.draw(st.permutations(frames))
    decodes_or_refuses(text, frames, name, shape)


@LENIENT
@given(st.sampled_from(TEXTS), st.sampled_from(NAMES), SHAPES, SHAPES, st.sampled_from(NAMES))
def test_valid_frames_under_another_shape_or_dtype(
    text: str, name: str, shape: tuple[int, ...], other: tuple[int, ...], lie: str
) -> None:
    decodes_or_refuses(text, [bytes(f) for f in build_codec(text).encode(sample(name, shape))], lie, other)


HEADERS = st.builds(
    TensorHeader,
    dtype=st.sampled_from(NAMES) | st.text(max_size=20),
    shape=st.lists(st.integers(-2, 9) | st.integers(), max_size=5).map(tuple),
    codec=st.sampled_from(TEXTS) | st.text(max_size=MAX_TEXT + 9),
    frames=st.integers(-1, 4) | st.integers(),
)


@LENIENT
@given(st.lists(HEADERS, max_size=3), st.lists(BYTES, max_size=6), st.booleans())
def test_any_headers(headers: list[TensorHeader], frames: list[bytes], told: bool) -> None:
    expected = [("float32", (2, 3))] * len(headers) if told else None
    try:
        unpack(headers, frames, expected)
    except RemoteProtocolError:
        return


@LENIENT
@given(st.data())
def test_mutated_messages(data: st.DataObject) -> None:
    leaves = [sample("float32", (20, 33)), sample("int64", (50,)), sample("bool", (9,))]
    headers, frames = pack(leaves, build_codec(data.draw(st.sampled_from(TEXTS))))
    hostile = [mutations(bytes(frame), data) for frame in frames]
    try:
        unpack(headers, hostile, [("float32", (20, 33)), ("int64", (50,)), ("bool", (9,))])
    except RemoteProtocolError:
        return


# --- memory ---------------------------------------------------------------------------------------------------------

STATED = (256, 1024)  # one MiB of float32
ALLOWED_BYTES = 4 * 4 * 256 * 1024 + (12 << 20)  # four times what is stated, and a constant for torch and zstd
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
BOMBS = ["declared", "undeclared", "lying", "wide window", "truncated", "many frames", "scales"]


def largest_resident_bytes(*, reset: bool = False) -> int:
    """Return this process's peak of resident memory; `reset` starts from now. (ru_maxrss starts at the parent's.)"""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def lie_about_size(frame: bytes, size: int) -> bytes:
    """Overwrite the declared content size of a frame that has four bytes for it."""
    assert frame[4] >> 6 == 2
    at = 5 if frame[4] & 0x20 else 6
    return frame[:at] + size.to_bytes(4, "little") + frame[at + 4 :]


def bomb(kind: str, stated: int) -> bytes:
    """A small frame that wants to become 128 MiB, or makes the decoder ask for a large window."""
    flood = bytes(128 << 20)
    if kind == "declared":
        return zstandard.compress(flood, 1)
    if kind == "undeclared":
        return zstandard.ZstdCompressor(write_content_size=False).compress(flood)
    if kind == "lying":
        return lie_about_size(zstandard.compress(flood, 1), stated)
    if kind == "wide window":
        parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=True)
        frame = zstandard.ZstdCompressor(compression_params=parameters).compress(flood)
        return lie_about_size(frame, stated)
    if kind == "truncated":
        return zstandard.compress(bytes(stated), 1)[:-3]
    if kind == "many frames":
        return zstandard.compress(bytes(stated), 1) * 500
    return lie_about_size(zstandard.compress(flood, 1), 2 * 256 * 16)


def hostile_frames(text: str, made: bytes) -> Iterator[list[bytes]]:
    parts = build_codec(text).spec.values.parts(STATED)
    for index in range(len(parts)):
        frames = [bytes(part.size_bytes) for part in parts]
        frames[index] = made
        yield frames
    yield [made] * len(parts)
    yield [made] * 1000


def attack(paths: list[str]) -> dict[str, int]:
    """Decode every bomb under every codec; return by bomb the growth of the largest resident set so far, in bytes."""
    texts = [f"{name}+zstd" for name in VALUES]
    bombs = {path: Path(path).read_bytes() for path in paths}
    for text in texts:  # warm up: one honest tensor
        codec = build_codec(text)
        codec.decode(codec.encode(torch.randn(16, 1024)), torch.float32, (16, 1024))
    before = largest_resident_bytes(reset=True)
    growth: dict[str, int] = {}
    for path, made in bombs.items():
        for text in texts:
            for frames in hostile_frames(text, made):
                decodes_or_refuses(text, frames, "float32", STATED)
                decodes_or_refuses(text, frames, "int64", STATED)
        growth[Path(path).stem] = largest_resident_bytes() - before
    return growth


@LINUX
def test_bombs_cost_no_more_than_what_was_stated(tmp_path: Path) -> None:
    """In a process of its own: the largest resident set never shrinks, and building a bomb takes what it holds."""
    paths = []
    for kind in BOMBS:
        for stated in (256 * 1024, 2 * 256 * 1024, 4 * 256 * 1024):
            path = tmp_path / f"{kind}-{stated}.zst"
            path.write_bytes(bomb(kind, stated))
            paths.append(str(path))
    command = [sys.executable, "-m", "tests.fuzz.test_codec_frames", *paths]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    growth = json.loads(done.stdout)
    assert len(growth) == len(paths)
    assert max(growth.values()) < ALLOWED_BYTES, growth


HONEST_SHAPE = (8, 1 << 20)  # 32 MiB of float32


def decode_honest(text: str, name: str, *paths: str) -> int:
    """Return the growth of the largest resident set while valid frames are decoded, in bytes."""
    codec, dtype = build_codec(text), getattr(torch, name)
    small = torch.ones(2, 1024, dtype=dtype)
    codec.decode(codec.encode(small), dtype, small.shape)
    frames = [Path(path).read_bytes() for path in paths]
    before = largest_resident_bytes(reset=True)
    codec.decode(frames, dtype, HONEST_SHAPE)
    return largest_resident_bytes() - before


@LINUX
@pytest.mark.parametrize(
    ("text", "name"),
    [*((text, "float32") for text in WITH_ZSTD), ("raw+zstd", "bool")],
)
def test_valid_frames_cost_at_most_four_times_the_tensor(text: str, name: str, tmp_path: Path) -> None:
    tensor = torch.zeros((), dtype=getattr(torch, name)).expand(HONEST_SHAPE)  # small frames that become large
    paths = [str(tmp_path / str(index)) for index, _ in enumerate(build_codec(text).spec.values.parts(HONEST_SHAPE))]
    for path, frame in zip(paths, build_codec(text).encode(tensor), strict=True):
        Path(path).write_bytes(frame)
    command = [sys.executable, "-m", "tests.fuzz.test_codec_frames", "--honest", text, name, *paths]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    stated = tensor.numel() * tensor.itemsize
    sys.stdout.write(f"{text} {name}: {int(done.stdout) / stated:.2f} times\n")
    assert stated <= int(done.stdout) < 4 * stated + (12 << 20)


if __name__ == "__main__":
    if sys.argv[1] == "--honest":
        sys.stdout.write(str(decode_honest(*sys.argv[2:])))
    else:
        sys.stdout.write(json.dumps(attack(sys.argv[1:])))
