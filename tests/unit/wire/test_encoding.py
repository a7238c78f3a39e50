"""Headers: what travels, what is refused at the sender, what is refused at the receiver, and with which words."""

import dataclasses
import math

import msgpack
import numpy as np
import pytest

from brigade.wire import messages as m
from brigade.wire.encoding import decode, encode, unpack
from brigade.wire.errors import LocalProtocolError, RemoteProtocolError
from brigade.wire.limits import Limits
from brigade.wire.message_parts import Slot, TensorHeader, ValueHeader

TENSOR = TensorHeader(dtype="float32", shape=(2, 3), codec="raw", frames=1)
GRADIENT = m.Gradient(
    run_id="run",
    generation=1,
    slot=Slot(step=5, index=2),
    attempt=0,
    value=ValueHeader(structure=["l", [0, None, ["s", -3], ["s", 2**64 - 1], ["s", "ü"]]], tensors=(TENSOR,)),
)


def header_of(kind, /, **body):
    return msgpack.packb({"type": kind, "body": body})


def test_a_header_is_plain_messagepack():
    assert msgpack.unpackb(encode(m.Pulse(number=3, incarnation="x"))) == {
        "type": "Pulse",
        "body": {"number": 3, "incarnation": "x", "step": -1, "forwards": 0, "backwards": 0, "doing": ""},
    }


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_decodes(wrap):
    assert decode(wrap(encode(GRADIENT))) == GRADIENT


def test_a_buffer_of_wider_items_or_with_gaps():
    header = encode(m.LinkProbe(number=1))
    wide = memoryview(header[: len(header) // 4 * 4]).cast("I")
    with pytest.raises(RemoteProtocolError):
        decode(wide)
    with pytest.raises(RemoteProtocolError):
        decode(memoryview(header)[::2])


def test_non_finite_numbers_arrive():
    ready = m.GradientsReady(generation=1, step=2, stage=0, squared_norm=math.inf, finite=False, loss_sum=math.nan)
    arrived = decode(encode(ready))
    assert arrived.squared_norm == math.inf
    assert math.isnan(arrived.loss_sum)


def test_fields_of_a_later_version_are_ignored_and_defaults_fill_in():
    assert decode(header_of("Pulse", number=1, incarnation="x", mood="fine")) == m.Pulse(number=1, incarnation="x")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"", "not MessagePack"),
        (b"\x80" + b"\x80", "not MessagePack"),
        (b"\x90", "not a map"),
        (msgpack.packb({"type": "Pulse"}), "Pulse without a body"),
        (header_of("Surprise"), "unknown type 'Surprise'"),
        (msgpack.packb({"type": ["Pulse"], "body": {}}), "unknown type <list>"),
        (header_of("PulseEcho"), "missing required field `number`"),
        (header_of("PulseEcho", number="1"), r"Expected `int`, got `str` - at `\$.number`"),
        (header_of("PulseEcho", number=True), r"Expected `int`, got `bool`"),
        (header_of("PulseEcho", number=-1), "PulseEcho.number is -1"),
        (header_of("PulseEcho", number=2**53), "53 bits"),
        (header_of("FileWanted", name="../key"), "unsafe name '../key'"),
        (header_of("Done", ok=True, reason=b"bytes"), "within the limits"),
        (header_of("StatusTold", status={"time": msgpack.Timestamp(1)}), "within the limits"),
        (header_of("StatusTold", status={b"": 1}), "within the limits|not text"),
        (header_of("StatusTold", status={"empty": b""}), "neither text"),
    ],
)
def test_what_is_refused_says_why(header, words):
    with pytest.raises(RemoteProtocolError, match=words):
        decode(header)


def test_the_run_that_a_welcome_brings_is_validated():
    spec = {
        "name": "a/b",
        "model": {"kind": "gpt"},
        "data": {"kind": "text", "path": "t"},
        "training": {"max_steps": 1},
    }
    body = {"run_id": "r", "name": "n", "pulse_port": 1, "bulk_port": 2, "pulse_interval_s": 1, "silence_limit_s": 9}
    with pytest.raises(RemoteProtocolError, match=r"\$.spec.name"):
        decode(header_of("Welcome", spec=spec, **body))
    assert decode(header_of("Welcome", spec=spec | {"name": "ab"}, **body)).spec.training.batch_size == 16


@pytest.mark.parametrize(
    "message",
    [
        m.LinkProbe(number=-1),
        m.LinkProbe(number=2**63),
        m.LinkProbe(number=np.int64(3)),
        m.FileWanted(name="/etc/passwd"),
        m.StatusTold(status={"of": object()}),
        m.Done(ok=True, reason="\ud800"),
        Slot(step=1, index=1),
        "text",
        dataclasses.replace(GRADIENT, value=ValueHeader(structure=0, tensors=(TENSOR,) * 2000)),
    ],
    ids=lambda message: repr(message)[:40],
)
def test_what_the_other_side_would_refuse_is_never_sent(message):
    with pytest.raises(LocalProtocolError):
        encode(message)


def test_a_header_that_is_too_long_is_refused_on_both_sides():
    message = m.Done(ok=True, reason="x" * 2000)
    limits = Limits(max_header_bytes=1024)
    with pytest.raises(LocalProtocolError, match="exceeds 1024"):
        encode(message, limits)
    with pytest.raises(RemoteProtocolError, match="at most 1024"):
        decode(encode(message), limits)


def test_too_many_containers_are_refused():
    limits = Limits(max_containers=10)
    assert unpack(msgpack.packb([[]] * 9), limits) == [[]] * 9
    with pytest.raises(RemoteProtocolError, match="more than 10"):
        unpack(msgpack.packb([[]] * 10), limits)
    with pytest.raises(RemoteProtocolError, match="more than 10"):
        unpack(msgpack.packb([{"a": {}}] * 5), limits)
