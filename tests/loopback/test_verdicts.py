"""Every way in which a connection fails to come about has its own verdict, on each side that can see it."""

import asyncio
import contextlib
import socket

import pytest
import zmq
from tests.loopback.parties import Recorder, open_house

from brigade.wire.endpoint import Endpoint
from brigade.wire.errors import ConfigError
from brigade.wire.identity import new_key_pair
from brigade.wire.listener import Listener
from brigade.wire.session_events import SessionOptions
from brigade.wire.session_packets import Versions

GREETED = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)


@contextlib.asynccontextmanager
async def raw_listener(says: bytes = b"", hangs_up: bool = False):
    async def accepted(reader, writer):
        writer.write(says)
        if hangs_up:
            await reader.read(10)
            writer.close()
        else:
            await reader.read()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def test_wrong_key_is_told_on_both_sides():
    async def main():
        async with open_house() as house:
            recorder = Recorder()
            house.dial(recorder, remote_key=new_key_pair().public)
            verdict = await recorder.until_closed(10.0)
            assert verdict.code == "wrong_key"
            assert f"tcp://127.0.0.1:{house.port}" in verdict.reason
            _, refusal = await house.refusal("wrong_key")
            assert str(house.port) in refusal.reason
            assert house.handler.connections == []

    asyncio.run(main())


def test_a_key_that_is_not_admitted_is_told_on_both_sides_with_its_fingerprint():
    async def main():
        async with open_house() as house:
            recorder, stranger = Recorder(), new_key_pair()
            house.dial(recorder, keys=stranger)
            assert (await recorder.until_closed(10.0)).code == "not_admitted"
            host, refusal = await house.refusal("not_admitted")
            assert host == "127.0.0.1"
            assert stranger.public not in refusal.reason
            assert house.handler.connections == []

    asyncio.run(main())


def test_a_dialler_that_awaits_admission_gets_in_once_it_is_admitted():
    async def main():
        async with open_house() as house:
            recorder, newcomer = Recorder(), new_key_pair()
            house.dial(recorder, keys=newcomer, awaits_admission=True)
            await house.refusal("not_admitted")
            house.admitted.add(newcomer.public)
            await recorder.until_opened()

    asyncio.run(main())


def test_versions_are_named_on_both_sides():
    async def main():
        async with open_house() as house:
            recorder = Recorder()
            house.dial(recorder, options=SessionOptions(versions=Versions(7, 9)))
            verdict = await recorder.until_closed(10.0)
            _, refusal = await house.refusal("version")
            for told in (verdict, refusal):
                assert told.code == "version"
                assert "version 1" in told.reason
                assert "versions 7 to 9" in told.reason

    asyncio.run(main())


def test_nobody_there():
    async def main():
        async with open_house() as house:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            recorder = Recorder()
            house.dial(recorder, port=port, deadline_s=1.0)
            verdict = await recorder.until_closed(3.0)
            assert verdict.code == "unreachable"
            assert "refused" in verdict.reason

    asyncio.run(main())


def test_a_host_name_that_nobody_knows():
    async def main():
        async with open_house() as house:
            recorder = Recorder()
            house.dial(recorder, host="no-such-host.invalid")
            verdict = await recorder.until_closed(10.0)
            assert verdict.code == "unreachable"
            assert "no-such-host.invalid" in verdict.reason

    asyncio.run(main())


def test_an_unencrypted_listener_is_told_apart():
    async def main():
        async with open_house() as house:
            plain = house.network.context.socket(zmq.ROUTER)
            plain.linger = 0
            port = plain.bind_to_random_port("tcp://127.0.0.1")
            recorder = Recorder()
            house.dial(recorder, port=port)
            assert (await recorder.until_closed(10.0)).code == "plaintext"
            plain.close()

    asyncio.run(main())


def test_an_unencrypted_dialler_is_refused_and_told_apart():
    async def main():
        async with open_house() as house:
            plain = house.network.context.socket(zmq.DEALER)
            plain.linger = 0
            plain.connect(f"tcp://127.0.0.1:{house.port}")
            plain.send(b"let me in")
            await house.refusal("plaintext")
            plain.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("says", "hangs_up", "code"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", False, "stranger"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True, "stranger"),
        (b"", True, "stranger"),
        (b"", False, "silent"),
        (GREETED, False, "silent"),
    ],
    ids=["ssh", "http", "hangs up", "says nothing", "greets and stops"],
)
def test_what_listens_there_is_something_else(says, hangs_up, code):
    async def main():
        async with open_house() as house, raw_listener(says, hangs_up) as port:
            recorder = Recorder()
            house.dial(recorder, port=port, deadline_s=2.0)
            verdict = await recorder.until_closed(5.0)
            assert verdict.code == code
            assert f"tcp://127.0.0.1:{port}" in verdict.reason

    asyncio.run(main())


def test_an_encrypted_listener_that_does_not_greet_is_silent():
    async def main():
        async with open_house() as house:
            mute = house.network.context.socket(zmq.ROUTER)
            mute.linger = 0
            mute.curve_server = True
            mute.curve_secretkey = house.keys.secret.encode()
            mute.zap_domain = house.listener._domain.encode()
            port = mute.bind_to_random_port("tcp://127.0.0.1")
            recorder = Recorder()
            house.dial(recorder, port=port, deadline_s=1.5)
            verdict = await recorder.until_closed(5.0)
            assert verdict.code == "silent"
            assert "did not greet" in verdict.reason
            mute.close()

    asyncio.run(main())


def test_a_listener_started_again_has_lost_the_session():
    async def main():
        async with open_house() as house:
            recorder = Recorder()
            house.dial(recorder)
            await recorder.until_opened()
            # As after kill -9: nobody says goodbye.
            house.listener._sessions.clear()
            house.listener._close_sockets()
            # ZeroMQ gives the port back in its own time.
            async with asyncio.timeout(10.0):
                while True:
                    again = Listener(house.network, house.keys, house.listener.endpoint, lambda _: True, house.handler)
                    with contextlib.suppress(ConfigError):
                        assert await again.start() == house.port
                        break
                    await asyncio.sleep(0)
            assert (await recorder.until_closed(10.0)).code == "lost_session"

    asyncio.run(main())


def test_refusals_are_reported_once_for_each_address_and_kind():
    async def main():
        async with open_house() as house:
            for _ in range(5):
                recorder = Recorder()
                house.dial(recorder, keys=new_key_pair())
                await recorder.until_closed()
            await house.refusal("not_admitted")
            assert house.refusals.empty()

    asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "0.0.0.0", "::"])
def test_hosts_to_listen_at_and_to_dial(host):
    async def main():
        async with open_house(host=host) as house:
            recorder = Recorder()
            house.dial(recorder, host={"0.0.0.0": "localhost", "::": "::1"}.get(host, host))
            await recorder.until_opened()
            assert (await house.handler.until_opened()).remote_host in ("127.0.0.1", "::1")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "said"),
    [("192.0.2.1", "192.0.2.1 is not an address of this machine"), ("no-such-host.invalid", "cannot be resolved")],
)
def test_addresses_that_cannot_be_listened_at(host, said):
    async def main():
        async with open_house() as house:
            listener = Listener(house.network, house.keys, Endpoint(host, 0), lambda _: True, Recorder())
            with pytest.raises(ConfigError, match=said):
                await listener.start()

    asyncio.run(main())


def test_a_port_in_use_is_named():
    async def main():
        async with open_house() as house:
            listener = Listener(
                house.network, house.keys, Endpoint("127.0.0.1", house.port), lambda _: True, Recorder()
            )
            with pytest.raises(ConfigError, match=f"port {house.port} is in use"):
                await listener.start()

    asyncio.run(main())
