"""Sessions over real sockets: broken connections, hostile strangers, slow receivers, closing, speed."""

import asyncio
import concurrent.futures
import hashlib
import os
import time

import psutil
import pytest
from tests.loopback.parties import Recorder, open_house
from tests.loopback.tcp_relay import Relay

from brigade.wire.errors import LocalProtocolError
from brigade.wire.identity import new_key_pair
from brigade.wire.listener import Listener
from brigade.wire.messages import LinkProbe, LinkProbeEcho, TensorHeader, TiedGradient
from brigade.wire.network import Network
from brigade.wire.session_events import MessageSubmitted, SessionOptions

MB = 1_000_000


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def digest(frames) -> str:
    return hashlib.blake2b(b"".join(frames)).hexdigest()


def test_messages_pass_both_ways_with_their_frames():
    async def main():
        async with open_house() as house:
            recorder = Recorder()
            dialled = house.dial(recorder)
            frames = [b"", os.urandom(3), os.urandom(1_000_000), bytearray(os.urandom(300_000)), b"\0"]
            tensor = TensorHeader(dtype="float32", shape=(3,), codec="raw", frames=len(frames))
            sent = TiedGradient(run_id="r", generation=1, step=0, parameter="0.weight", tensor=tensor)
            dialled.send(sent, frames, 2)
            await house.handler.until(lambda r: r.messages)
            message, got = house.handler.messages[0]
            assert message == sent
            assert got == frames
            got[2][0] = 0  # its own memory, to be written to
            accepted = house.handler.connections[0]
            accepted.send(LinkProbeEcho(number=1))
            await recorder.until(lambda r: r.messages)
            assert recorder.messages[0] == (LinkProbeEcho(number=1), [])
            assert await dialled.drained(5.0)
            assert dialled.queued_bytes == 0
            assert dialled.sent_bytes == accepted.received_bytes > 1_300_000
            assert accepted.remote_key == house.guest.public
            assert accepted.remote_host == "127.0.0.1"
            assert dialled.remote_id != accepted.remote_id
            assert dialled.rtt_s is not None

    asyncio.run(main())


@pytest.mark.parametrize(
    "cuts", [(7 * MB,), (5_000, 300_000, 4 * MB, 10_000, 3 * MB), (100,)], ids=["one", "five", "in the handshake"]
)
def test_a_cut_in_the_middle_of_twenty_megabytes_loses_and_doubles_nothing(cuts):
    async def main():
        async with open_house() as house, Relay(house.port, cuts) as relay:
            recorder = Recorder()
            connection = house.dial(recorder, port=relay.port)
            payloads = [os.urandom(2 * MB) for _ in range(10)]
            for number, payload in enumerate(payloads):
                connection.send(LinkProbe(number=number), [payload], 2)
                connection.send(LinkProbeEcho(number=100 + number), [], 0)
            await house.handler.until(lambda r: len(r.messages) >= 20)
            assert await connection.drained(5.0)
            got = [(m.number, digest(frames)) for m, frames in house.handler.messages if m.number < 100]
            assert got == [(n, digest([p])) for n, p in enumerate(payloads)]
            assert [m.number for m, _ in house.handler.messages if m.number >= 100] == list(range(100, 110))
            assert relay.cuts == len(cuts)
            assert len(recorder.connections) == len(house.handler.connections) == 1
            assert connection.verdict is None

    asyncio.run(main())


def test_a_link_that_swallows_everything_is_replaced_and_nothing_is_lost():
    options = SessionOptions(ping_interval_s=0.2, silence_limit_s=15.0)

    async def main():
        async with open_house(options) as house, Relay(house.port) as relay:
            recorder = Recorder()
            connection = house.dial(recorder, port=relay.port, options=options)
            await recorder.until_opened()
            relay.stall()
            payload = os.urandom(5 * MB)
            connection.send(LinkProbe(number=1), [payload], 2)
            async with asyncio.timeout(10.0):
                while relay.connections < 2:
                    await asyncio.wait_for(connection.room(0, 0.05), 1.0)
            relay.flow()
            await house.handler.until(lambda r: r.messages)
            assert digest(house.handler.messages[0][1]) == digest([payload])
            assert await connection.drained(5.0)
            assert len(house.handler.messages) == 1

    asyncio.run(main())


def test_both_sides_notice_a_link_that_stays_dead():
    options = SessionOptions(ping_interval_s=0.2, silence_limit_s=1.5)

    async def main():
        async with open_house(options) as house, Relay(house.port) as relay:
            recorder = Recorder()
            house.dial(recorder, port=relay.port, options=options)
            await house.handler.until_opened()
            await recorder.until_opened()
            relay.stall()
            assert (await recorder.until_closed(5.0)).code in ("silent", "unreachable")
            assert (await house.handler.until_closed(5.0)).code == "silent"

    asyncio.run(main())


def test_a_receiver_that_takes_nothing_costs_no_more_than_the_window():
    options = SessionOptions(window_bytes=8 * MB)

    async def main():
        handler = Recorder()
        async with open_house(options, handler) as house:
            recorder = Recorder()
            connection = house.dial(recorder, options=options)
            accepted = await handler.until_opened()
            accepted.pause()
            before = resident_bytes()
            payload = os.urandom(2 * MB)
            for number in range(200):
                connection.send(LinkProbe(number=number), [payload], 2)
            # It comes to rest: half a second in which nothing more arrives.
            arrived = -1
            async with asyncio.timeout(30.0):
                while arrived != accepted.received_bytes:
                    arrived = accepted.received_bytes
                    await connection.room(0, 0.5)
            assert arrived <= 8 * MB
            assert connection.queued_bytes >= 390 * MB
            assert resident_bytes() - before < 40 * MB
            accepted.resume()
            await handler.until(lambda r: sum(len(f[0]) for _, f in r.messages) >= 10 * MB)

    asyncio.run(main())


def test_control_overtakes_bulk_that_waits():
    async def main():
        async with open_house() as house:
            connection = house.dial(Recorder())
            for number in range(20):
                connection.send(LinkProbe(number=number), [bytes(2 * MB)], 3)
            connection.send(LinkProbeEcho(number=100), [], 0)
            await house.handler.until(lambda r: any(m.number == 100 for m, _ in r.messages))
            assert len(house.handler.messages) < 5
            await house.handler.until(lambda r: len(r.messages) == 21)

    asyncio.run(main())


def test_a_message_that_no_decoder_takes_ends_its_session_only():
    async def main():
        async with open_house() as house:
            good, bad = Recorder(), Recorder()
            well_behaved = house.dial(good)
            rude = house.dial(bad)
            await good.until_opened()
            await bad.until_opened()
            rude.feed(MessageSubmitted([b"\xc1 no message"], 0))
            assert (await house.handler.until_closed()).code == "protocol"
            assert (await bad.until_closed()).code == "protocol"
            well_behaved.send(LinkProbeEcho(number=5))
            await house.handler.until(lambda r: r.messages)
            assert good.verdicts == []

    asyncio.run(main())


def test_sending_from_another_thread_is_our_own_bug():
    async def main():
        async with open_house() as house:
            connection = house.dial(Recorder())
            loop = asyncio.get_running_loop()
            with concurrent.futures.ThreadPoolExecutor(1) as pool, pytest.raises(LocalProtocolError):
                await loop.run_in_executor(pool, connection.send, LinkProbe(number=1))

    asyncio.run(main())


def test_many_diallers_at_once():
    async def main():
        async with open_house() as house:
            recorders = []
            for _ in range(40):
                keys = new_key_pair()
                house.admitted.add(keys.public)
                recorder = Recorder()
                house.dial(recorder, keys=keys).send(LinkProbe(number=1), [os.urandom(400_000)], 2)
                recorders.append(recorder)
            await house.handler.until(lambda r: len(r.messages) == 40)
            assert len({c.remote_id for c in house.handler.connections}) == 40

    asyncio.run(main())


def test_two_listeners_of_one_network_have_each_its_own_rule():
    async def main():
        async with open_house() as house:
            closed_house = Listener(house.network, house.keys, house.listener.endpoint, lambda _: False, Recorder())
            closed_house.endpoint = type(house.listener.endpoint)("127.0.0.1", 0)
            port = await closed_house.start()
            inside, outside = Recorder(), Recorder()
            house.dial(inside)
            house.dial(outside, port=port)
            await inside.until_opened()
            assert (await outside.until_closed()).code == "not_admitted"

    asyncio.run(main())


def test_throughput_is_printed(capsys):
    """Two networks, so two input-output threads, as between two machines; one process, so one interpreter."""

    async def main():
        count = 0
        whole = asyncio.Event()

        def count_up(_connection, _message, _frames):
            nonlocal count
            count += 1
            if count % 100 == 0:
                whole.set()

        async with open_house(handler=Recorder(count_up)) as house:
            outer, house.network = house.network, Network()
            recorder = Recorder()
            connection = house.dial(recorder)
            await recorder.until_opened()
            payload = os.urandom(2 * MB)
            rates = []
            for _ in range(3):
                whole.clear()
                start = time.perf_counter()
                for number in range(100):
                    connection.send(LinkProbe(number=number), [payload], 2)
                async with asyncio.timeout(60.0):
                    await whole.wait()
                rates.append(200 / (time.perf_counter() - start))
            await house.network.close()
            house.network = outer
            with capsys.disabled():
                print(f"\n2 MB messages over CURVE on loopback: best of 3: {max(rates):.0f} MB/s")

    asyncio.run(main())


def test_an_error_of_a_handler_is_reported_and_stops_nothing():
    async def main():
        numbers, errors = [], []

        def fail_once(_connection, message, _frames):
            numbers.append(message.number)
            if message.number == 0:
                raise RuntimeError("a bug of ours")

        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
        handler = Recorder(fail_once)
        async with open_house(handler=handler) as house:
            connection = house.dial(Recorder())
            for number in range(50):
                connection.send(LinkProbe(number=number), [bytes(100_000)], 2)
            await handler.until(lambda _: len(numbers) == 50)
            assert numbers == list(range(50))
            assert await connection.drained(5.0)
            assert [str(error) for error in errors] == ["a bug of ours"]

    asyncio.run(main())
