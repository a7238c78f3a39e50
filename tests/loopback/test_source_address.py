"""A connection comes from the address that was asked for, and so does the look at what would not shake hands."""

import asyncio
import socket

import pytest
from tests.loopback.parties import Recorder, open_house

from brigade.wire.dialer import dial
from brigade.wire.endpoint import Endpoint
from brigade.wire.probe import probe

SOURCE = "127.77.3.9"


def try_source():
    """Skip where only 127.0.0.1 is a loopback address."""
    with socket.socket() as each:
        try:
            each.bind((SOURCE, 0))
        except OSError:
            pytest.skip(f"{SOURCE} is no address of this machine")


@pytest.mark.parametrize(("source", "seen"), [(SOURCE, SOURCE), ("", "127.0.0.1")])
def test_the_listener_sees_where_the_dialler_comes_from(source, seen):
    try_source()

    async def scene():
        async with open_house() as house:
            connection = dial(
                house.network,
                house.guest,
                Endpoint("127.0.0.1", house.port),
                house.keys.public,
                Recorder(),
                source_host=source,
            )
            arrived = await house.handler.until_opened()
            connection.close("done")
            return arrived.remote_host

    assert asyncio.run(scene()) == seen


def test_a_probe_comes_from_there_too():
    try_source()
    seen = []

    async def scene():
        def accepted(_reader, writer):
            seen.append(writer.get_extra_info("peername")[0])
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(accepted, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await probe(Endpoint("127.0.0.1", port), source_host=SOURCE)

    assert asyncio.run(scene()) == "stranger"
    assert seen == [SOURCE]
