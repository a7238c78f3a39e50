"""Connections over real sockets that end: goodbyes, revoked keys, hostile strangers."""

import asyncio
import os
import random
import struct
import time

import psutil
import pytest
from tests.loopback.parties import Recorder, open_house
from tests.loopback.tcp_relay import Relay

from brigade.wire.messages import LinkProbe
from brigade.wire.network import Network

MB = 1_000_000
CURVE_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def test_closing_tells_the_other_side_whichever_closes():
    async def main():
        async with open_house() as house:
            for closing_side in (0, 1):
                recorder = Recorder()
                house.handler.connections.clear()
                house.handler.verdicts.clear()
                dialled = house.dial(recorder)
                accepted = await house.handler.until_opened()
                await recorder.until_opened()
                (dialled, accepted)[closing_side].close("work is done")
                for told in (await recorder.until_closed(2.0), await house.handler.until_closed(2.0)):
                    assert told.code == "closed"
                    assert "work is done" in told.reason
                async with asyncio.timeout(2.0):
                    await dialled.gone.wait()
                    await accepted.gone.wait()
            assert house.listener.connections == []

    asyncio.run(main())


def test_a_goodbye_message_arrives_if_drained_before_closing():
    async def main():
        async with open_house() as house:
            connection = house.dial(Recorder())
            await house.handler.until_opened()
            connection.send(LinkProbe(number=9), [os.urandom(3 * MB)], 0)
            assert await connection.drained(5.0)
            connection.close("bye")
            await house.handler.until_closed(2.0)
            assert [m.number for m, _ in house.handler.messages] == [9]

    asyncio.run(main())


@pytest.mark.parametrize("phase", ["before connecting", "nobody listens", "stalled with data queued", "greeting"])
def test_closing_never_hangs(phase):
    async def main():
        async with open_house() as house, Relay(house.port) as relay:
            network = Network()
            house.network, outer = network, house.network
            recorder = Recorder()
            if phase == "nobody listens":
                house.dial(recorder, port=1)
            elif phase == "stalled with data queued":
                connection = house.dial(recorder, port=relay.port)
                await recorder.until_opened()
                relay.stall()
                connection.send(LinkProbe(number=1), [bytes(50 * MB)], 2)
            elif phase == "greeting":
                relay.stall()
                house.dial(recorder, port=relay.port)
                await asyncio.wait_for(relay.connected.wait(), 5.0)
            else:
                house.dial(recorder)
            start = time.monotonic()
            await network.close()
            assert time.monotonic() - start < 3.0
            house.network = outer

    asyncio.run(main())


def test_a_dialled_connection_is_closed_for_good_when_its_key_is_revoked():
    async def main():
        async with open_house() as house:
            recorder = Recorder()
            house.dial(recorder)
            accepted = await house.handler.until_opened()
            house.admitted.clear()
            accepted.close("this key was revoked", "not_admitted")
            assert (await recorder.until_closed()).code == "not_admitted"
            again = Recorder()
            house.dial(again)
            assert (await again.until_closed()).code == "not_admitted"

    asyncio.run(main())


async def knock(port: int, said: bytes, trickle_bytes: int = 0) -> None:
    """Say something to a listener over plain TCP, and go on until it hangs up or all is said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(said)
        await writer.drain()
        for _ in range(trickle_bytes // 65536):
            writer.write(bytes(65536))
            await writer.drain()
        await asyncio.wait_for(reader.read(), 1.0)
    except (OSError, TimeoutError):
        pass
    finally:
        writer.transport.abort()


def test_hostile_strangers_harm_nobody():
    huge_frame = CURVE_GREETING + b"\x06" + struct.pack("!Q", 8 << 30)
    randomness = random.Random(5)

    async def main():
        async with open_house(handshake_s=1.0) as house:
            recorder = Recorder()
            connection = house.dial(recorder)
            await recorder.until_opened()
            before = resident_bytes()
            half_open = [await asyncio.open_connection("127.0.0.1", house.port) for _ in range(20)]
            knocks = [knock(house.port, randomness.randbytes(randomness.randrange(1, 3000))) for _ in range(20)]
            knocks += [knock(house.port, CURVE_GREETING + randomness.randbytes(200)) for _ in range(20)]
            knocks += [knock(house.port, huge_frame, 64 * MB) for _ in range(3)]
            knocks += [knock(house.port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), knock(house.port, b"")]
            await asyncio.gather(*knocks)
            # The half-open ones are thrown out after the handshake deadline.
            for reader, writer in half_open:
                async with asyncio.timeout(10.0):
                    await reader.read()
                writer.close()
            assert resident_bytes() - before < 30 * MB
            connection.send(LinkProbe(number=1), [os.urandom(MB)], 2)
            await house.handler.until(lambda r: r.messages)
            assert len(house.handler.connections) == 1
            kinds = set()
            while not house.refusals.empty():
                host, verdict = house.refusals.get_nowait()
                assert (host, verdict.code) not in kinds
                kinds.add((host, verdict.code))
            assert 1 <= len(kinds) <= 6

    asyncio.run(main())
