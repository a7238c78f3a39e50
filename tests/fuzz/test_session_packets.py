"""The decoder of session packets is total: any frames give a packet or a `RemoteProtocolError`."""

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from brigade.wire.errors import RemoteProtocolError
from brigade.wire.session import Session
from brigade.wire.session_events import (
    DeliverMessage,
    PacketArrived,
    RouteOpened,
    RouteReady,
    SendPacket,
    SessionOptions,
)
from brigade.wire.session_packets import (
    FRAGMENT_BYTES,
    MAX_PARTS,
    Ack,
    Data,
    Farewell,
    ForeignGreeting,
    Greeting,
    Ping,
    Pong,
    Versions,
    pack_ack,
    pack_data,
    pack_farewell,
    pack_greeting,
    pack_ping,
    parse_packet,
)

U64 = st.integers(0, 2**64 - 1)
U16 = st.integers(0, 2**16 - 1)
VERSIONS = st.tuples(U16, U16).map(lambda pair: Versions(min(pair), max(pair)))
OURS = Versions(1, 1)

GREETINGS = st.builds(Greeting, st.just(OURS), st.binary(min_size=16, max_size=16), U64, U64, st.booleans())
FAREWELLS = st.builds(Farewell, VERSIONS, st.text(max_size=12), st.text(max_size=60))
DATA = st.builds(
    Data,
    U64,
    U64,
    U64,
    st.integers(0, 3),
    st.none() | st.lists(U64, max_size=5).map(tuple),
    st.booleans(),
    st.lists(st.binary(min_size=1, max_size=20), max_size=4).map(lambda parts: tuple(map(memoryview, parts))),
)
ACKS = st.builds(Ack, U64, U64, st.booleans())
PINGS = st.builds(Ping, U64) | st.builds(Pong, U64)


def pack(packet):
    match packet:
        case Greeting():
            return pack_greeting(packet)
        case Farewell():
            return pack_farewell(packet)
        case Data():
            p = packet
            return pack_data(p.number, p.received, p.credit, p.priority, p.sizes, p.last, p.parts)
        case Ack():
            return pack_ack(packet)
        case _:
            return pack_ping(packet)


def parse_or_refuse(frames, versions=OURS):
    try:
        return parse_packet(frames, versions)
    except RemoteProtocolError:
        return None


@given(GREETINGS | DATA | ACKS | PINGS)
def test_a_packet_survives_the_way(packet):
    assert parse_packet(pack(packet), OURS) == packet


@given(FAREWELLS)
def test_a_farewell_survives_the_way_without_control_characters(packet):
    found = parse_packet(pack(packet), OURS)
    assert found.versions == packet.versions
    assert found.reason == "".join(c if c.isprintable() else "?" for c in packet.reason)
    assert found.reason.isprintable()


@given(VERSIONS, st.binary(max_size=40))
def test_the_preamble_of_any_version_is_readable(versions, rest):
    frames = [struct.pack("!2sHHB", b"BB", versions.highest, versions.lowest, 1) + rest]
    if versions.lowest <= 1 <= versions.highest:
        parse_or_refuse(frames)
    else:
        assert parse_packet(frames, OURS) == ForeignGreeting(versions)


@given(st.lists(st.binary(max_size=64), max_size=5))
@example([b"BB"])
@example([b"\x03"])
@example([b"\x03" + b"\x80" + bytes(24) + b"\xff\xff\xff\xff"])
@example([b""])
@example([])
def test_any_frames_give_a_packet_or_a_refusal(frames):
    parse_or_refuse(frames)


@given(st.sampled_from([b"BB", *(bytes([kind]) for kind in range(9))]), st.binary(max_size=80), st.integers(0, 3))
def test_any_bytes_behind_a_known_beginning(start, rest, more):
    parse_or_refuse([start + rest, *([b"x"] * more)])


@given(GREETINGS | FAREWELLS | DATA | ACKS | PINGS, st.data())
def test_mutations_of_valid_packets(packet, data):
    frames = [bytearray(frame) for frame in pack(packet)]
    for _ in range(data.draw(st.integers(1, 3))):
        frame = frames[data.draw(st.integers(0, len(frames) - 1))]
        if frame:
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del frames[0][data.draw(st.integers(0, len(frames[0]))) :]
    parse_or_refuse(frames)


def test_tables_and_parts_are_bounded():
    count = 10_000_000
    assert parse_or_refuse([struct.pack("!BBQQQI", 3, 0x80, 1, 0, 0, count) + bytes(8 * 10)]) is None
    header = pack_data(1, 0, 0, 0, None, False, [])
    assert parse_or_refuse([*header, *([b"x"] * MAX_PARTS)]) is not None
    assert parse_or_refuse([*header, *([b"x"] * (MAX_PARTS + 1))]) is None
    assert parse_or_refuse([*header, bytes(FRAGMENT_BYTES)]) is not None
    assert parse_or_refuse([*header, bytes(FRAGMENT_BYTES), b"x"]) is None


def opened_session():
    session = Session(b"s" * 16, False, "a", SessionOptions(window_bytes=10_000, max_message_bytes=5_000), 0.0)
    session.handle(RouteOpened(), 0.0)
    session.handle(PacketArrived(pack_greeting(Greeting(OURS, b"s" * 16, 0, 1 << 40, False))), 0.0)
    return session


SMALL = st.integers(0, 12)
LIKELY_DATA = st.builds(
    Data,
    SMALL,
    SMALL,
    U64,
    st.integers(0, 3),
    st.none() | st.lists(SMALL | U64, max_size=3).map(tuple),
    st.booleans(),
    st.lists(st.binary(min_size=1, max_size=12), max_size=3).map(lambda parts: tuple(map(memoryview, parts))),
)


@given(
    st.lists(
        LIKELY_DATA | ACKS | PINGS | GREETINGS | FAREWELLS | st.lists(st.binary(max_size=40), max_size=4), max_size=12
    )
)
def test_no_order_of_packets_breaks_a_session_core(packets):
    session = opened_session()
    for n, packet in enumerate(packets):
        frames = packet if isinstance(packet, list) else pack(packet)
        for command in session.handle(PacketArrived(frames), n / 10):
            if isinstance(command, DeliverMessage):
                assert sum(map(len, command.pieces)) <= 5_000
        for _ in range(20):
            sent = session.handle(RouteReady(), n / 10)
            if not sent:
                break
            assert isinstance(sent[0], SendPacket)
