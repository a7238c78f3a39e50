"""From the host and port that a person wrote to the numeric addresses that a socket takes.

ZeroMQ says nothing at all about a host name that nobody knows, so names are looked up before.
"""

import asyncio
import ipaddress
import socket
import threading

from brigade.wire.endpoint import Endpoint


class UnknownHostError(Exception):
    """The host name cannot be resolved; the text says why."""


async def resolve(endpoint: Endpoint) -> list[Endpoint]:
    """Return the numeric endpoints of a host, in the system's order of preference; raise `UnknownHostError`."""
    try:
        ipaddress.ip_address(endpoint.host.partition("%")[0])
    except ValueError:
        return await _look_up(endpoint)
    return [endpoint]


async def _look_up(endpoint: Endpoint) -> list[Endpoint]:
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Endpoint] | UnknownHostError] = loop.create_future()

    def tell(result: list[Endpoint] | UnknownHostError) -> None:
        if not found.done():
            found.set_result(result)

    def look_up() -> None:
        result: list[Endpoint] | UnknownHostError
        try:
            infos = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            result = list(dict.fromkeys(Endpoint(str(info[4][0]), endpoint.port) for info in infos))
        except (OSError, UnicodeError) as error:
            result = UnknownHostError(f"host name {endpoint.host} cannot be resolved ({_cause(error)})")
        # The loop may have ended meanwhile: then nobody waits any more.
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, result)

    # A thread that nobody waits for: a resolver that hangs must not keep the program from ending, and the loop's
    # executor would.
    threading.Thread(target=look_up, name="resolve", daemon=True).start()
    result = await found
    if isinstance(result, UnknownHostError):
        raise result
    return result


def _cause(error: OSError | UnicodeError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
