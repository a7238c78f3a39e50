"""Whatever arrives: a message or RemoteProtocolError (ConfigError where a person typed it), in bounded memory."""

import struct
import tracemalloc
from pathlib import Path

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from brigade.wire.encoding import check_frames, decode, encode, unpack
from brigade.wire.endpoint import parse_endpoint
from brigade.wire.errors import ConfigError, RemoteProtocolError
from brigade.wire.invite import Invite, check_proof
from brigade.wire.limits import MIB, Limits
from brigade.wire.message_parts import TensorHeader, ValueHeader
from brigade.wire.messages import FilePart
from brigade.wire.validity import ITEM_BYTES, check_value_header, is_safe_name

GOLDEN = Path(__file__).parents[1] / "golden" / "wire_headers.txt"
HEADERS = [bytes.fromhex(line.split()[1]) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
BODIES = [msgpack.unpackb(header) for header in HEADERS]

LIMITS = Limits()


def decode_or_refuse(header, limits=LIMITS):
    """Return the message, or None when it was refused; anything else that happens fails the test."""
    try:
        return decode(header, limits)
    except RemoteProtocolError as error:
        said = str(error)
    assert 0 < len(said) < 1000
    return None


def peak_of(header, limits=LIMITS):
    tracemalloc.start()
    try:
        decode_or_refuse(header, limits)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=400))
@settings(max_examples=400)
@example(b"")
@example(b"\xc1")
@example(b"\x80")
@example(b"\x82\xa4type\xa5Hello\xa4body\x80")
def test_any_bytes(header):
    decode_or_refuse(header)


@st.composite
def damaged_headers(draw):
    header = bytearray(draw(st.sampled_from(HEADERS)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(header)))
        end = draw(st.integers(start, min(len(header), start + 12)))
        header[start:end] = draw(st.binary(max_size=12))
    return bytes(header)


@given(damaged_headers())
@settings(max_examples=600)
def test_damaged_headers_of_real_messages(header):
    message = decode_or_refuse(header)
    if message is not None:
        assert decode(encode(message)) == message or "nan" in repr(message)


@given(st.sampled_from(HEADERS), st.data())
def test_no_part_of_a_header_is_a_header(header, data):
    cut = data.draw(st.integers(0, len(header) - 1))
    with pytest.raises(RemoteProtocolError):
        decode(header[:cut])
    with pytest.raises(RemoteProtocolError):
        decode(header + header[cut:])


# What a liar may put in the place of any field.
LIES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=8),
    st.sampled_from(["../../etc/passwd", "/etc/passwd", "float31", "qint8", "0" * 64, "tcp://0.0.0.0:0", "\x1b[2J"]),
    st.lists(st.integers(-1, 2**62), max_size=20),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=8),
    st.dictionaries(st.text(max_size=5), st.integers(0, 5), max_size=3),
)


def places_of(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from places_of(part, (*path, key))


def replaced(value, path, lie):
    if not path:
        return lie
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], lie)
    return copy


@st.composite
def lying_headers(draw):
    envelope = draw(st.sampled_from(BODIES))
    for _ in range(draw(st.integers(1, 3))):
        envelope = replaced(envelope, draw(st.sampled_from(list(places_of(envelope)))), draw(LIES))
    return msgpack.packb(envelope)


@given(lying_headers())
@settings(max_examples=800, suppress_health_check=[HealthCheck.too_slow])
def test_real_messages_with_a_lie(header):
    message = decode_or_refuse(header)
    if message is not None:
        assert decode(encode(message)) == message or "nan" in repr(message)


@given(lying_headers(), st.lists(st.binary(max_size=20), max_size=4))
def test_frames_that_were_not_announced(header, frames):
    message = decode_or_refuse(header)
    if message is not None:
        try:
            check_frames(message, frames)
        except RemoteProtocolError:
            return
        assert not isinstance(message, FilePart) or message.offset + len(frames[0]) <= message.size


ANY_INT = st.one_of(st.integers(0, 8), st.integers(-(2**70), 2**70))


@given(
    st.lists(
        st.builds(
            TensorHeader,
            dtype=st.one_of(st.sampled_from(sorted(ITEM_BYTES)), st.text(max_size=10)),
            shape=st.lists(ANY_INT, max_size=20).map(tuple),
            codec=st.one_of(st.just("raw"), st.text(max_size=300)),
            frames=ANY_INT,
        ),
        max_size=4,
    )
)
def test_tensors_that_pass_are_within_the_limits(tensors):
    value = ValueHeader(structure=None, tensors=tuple(tensors))
    try:
        check_value_header(value)
    except RemoteProtocolError:
        return
    assert 0 <= sum(tensor.frames for tensor in tensors) <= LIMITS.max_frames
    for tensor in tensors:
        size = ITEM_BYTES[tensor.dtype]
        for dim in tensor.shape:
            assert 0 <= dim <= LIMITS.max_dim
            size *= max(dim, 1)
        assert size <= LIMITS.max_tensor_bytes
        assert len(tensor.shape) <= LIMITS.max_dims


# Each would cost gigabytes, or a crash, in a decoder that believes what it reads.
MIB_OF_NONE = b"\xc0" * (MIB - 10_000)
ATTACKS = {
    "a list of 4 billion": b"\xdd\xff\xff\xff\xff",
    "a map of 4 billion": b"\xdf\xff\xff\xff\xff",
    "a text of 4 GB": b"\xdb\xff\xff\xff\xff",
    "a binary of 4 GB": b"\xc6\xff\xff\xff\xff",
    "an extension of 4 GB": b"\xc9\xff\xff\xff\xff\x01",
    "lists of a million in lists of a million": b"\xdd\x00\x0f\x00\x00" * 900 + MIB_OF_NONE,
    "maps of half a million in lists": b"\x91" * 900 + b"\xdf\x00\x07\x00\x00" + MIB_OF_NONE,
    "a million empty lists": b"\xdd\x00\x0f\xff\xf0" + b"\x90" * 0x0FFFF0,
    "a million empty maps": b"\xdd\x00\x0f\xff\xf0" + b"\x80" * 0x0FFFF0,
    "just as many empty maps as may be": b"\xdd\x00\x00\x7f\xff" + b"\x80" * 0x7FFF,
    "just as many maps of one key": b"\xdd\x00\x00\x7f\xff" + b"\x81\xa1a\xc0" * 0x7FFF,
    "just as many maps of six keys": b"\xdd\x00\x00\x7f\xff" + (b"\x86" + b"".join(b"\xa1%c\xc0" % k for k in b"abcdef")) * 0x7FFF,
    "lists of one in lists of one": b"\x91" * (MIB - 1) + b"\xc0",
    "nesting just below what msgpack bears": b"\x91" * 1000 + b"\xc0",
    "a million times none": b"\xdd\x00\x0f\xff\xf0" + b"\xc0" * 0x0FFFF0,
    "short texts": b"\xdd\x00\x05\x00\x00" + b"\xa2ab" * 0x50000,
    "texts of one wide character": b"\xdd\x00\x03\x00\x00" + b"\xa4\xf0\x9f\x98\x80" * 0x30000,
    "small numbers with memory of their own": b"\xdd\x00\x05\x00\x00" + b"\xcd\x7f\xff" * 0x50000,
    "one wide text": b"\xdb\x00\x0f\x00\x00" + b"\xf0\x9f\x98\x80" * (0xF0000 // 4),
    "a map of many keys": b"\xdf\x00\x03\x00\x00" + b"".join(b"\xa3" + b"%03x" % (i % 4096) + b"\xc0" for i in range(0x30000)),
    "a map of many different keys": b"\xdf\x00\x02\x00\x00" + b"".join(b"\xa5" + b"%05x" % i + b"\xc0" for i in range(0x20000)),
    "one more byte than a header may have": b"\xda\xff\xff" + b"a" * MIB,
    "a timestamp": b"\xd6\xff\x00\x00\x00\x00",
    "a map with a list as key": b"\x81\x90\x90",
    "a map with a number as key": b"\x81\x01\x01",
    "a text that is not UTF-8": b"\xa2\xff\xff",
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused_in_bounded_memory(attack):
    payload = ATTACKS[attack]
    # Bare, and as what the untyped fields of real messages hold.
    status = b"\x82\xa4type\xaaStatusTold\xa4body\x81\xa6status\x81\xa1x" + payload
    value = b"\x82\xa4body\x81\xa9structure" + payload + b"\xa4type\xa5Hello"
    for header in (payload, status, value):
        assert peak_of(header) <= LIMITS.decoding_bytes(len(header))
        assert decode_or_refuse(header) is None or header is status


@given(st.integers(0, 4), st.integers(0, 2**32 - 1), st.integers(0, 60), st.binary(max_size=200))
@settings(max_examples=150)
def test_declared_sizes_cost_nothing(kind, size, depth, rest):
    declaration = (b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9")[kind] + struct.pack(">I", size)
    header = declaration * depth + rest
    assert peak_of(header) <= LIMITS.decoding_bytes(len(header))


@pytest.mark.parametrize("header", HEADERS, ids=[body["type"] for body in BODIES])
def test_real_messages_keep_the_bound(header):
    assert peak_of(header) <= LIMITS.decoding_bytes(len(header))


def test_the_largest_messages_keep_the_bound():
    many = next(body for body in BODIES if body["type"] == "GradientsReady")
    header = msgpack.packb(replaced(many, ("body", "samples"), [2**40 + i for i in range(LIMITS.max_samples)]))
    assert len(decode(header).samples) == LIMITS.max_samples
    assert peak_of(header) <= LIMITS.decoding_bytes(len(header))
    load = next(body for body in BODIES if body["type"] == "LoadStage")
    files = load["body"]["checkpoint"] * 6000
    header = msgpack.packb(replaced(load, ("body", "checkpoint"), files))
    assert len(decode(header).checkpoint) == 6000
    assert peak_of(header) <= LIMITS.decoding_bytes(len(header))


@given(st.integers(1, 200))
def test_nesting_is_limited(depth):
    payload = b"\x91" * depth + b"\xc0"
    if depth <= LIMITS.max_nesting:
        assert unpack(payload) is not None
    else:
        with pytest.raises(RemoteProtocolError, match="deeper"):
            unpack(payload)


@given(st.one_of(st.text(max_size=300), st.text("ABCabc019-_=", max_size=200).map("brigade1-".__add__)))
@example("brigade1-")
@example("brigade2-AAAA")
@example("brigade1-" + "A" * 100_000)
def test_any_text_as_an_invite(text):
    with pytest.raises(ConfigError):
        Invite.parse(text)


@given(st.one_of(st.text(max_size=60), st.text("[]:.%/0123456789abtcp", max_size=40)))
def test_any_text_as_an_endpoint(text):
    try:
        endpoint = parse_endpoint(text)
    except ConfigError as error:
        said = str(error)
    else:
        said = endpoint.address
        assert parse_endpoint(str(endpoint)) == endpoint == parse_endpoint(said)
    assert said.isprintable()  # one line, and nothing that moves a cursor


@given(st.text(max_size=80))
def test_any_text_as_a_proof(proof):
    assert not check_proof(proof, "secret", "a" * 40, "b" * 40)


@given(st.one_of(st.text(max_size=40), st.text("./\\ab\0", max_size=12)))
def test_names_that_pass_stay_below(name):
    if is_safe_name(name):
        place = Path("/base") / name
        assert place.is_relative_to("/base")
        assert ".." not in place.parts
        assert "\0" not in name
