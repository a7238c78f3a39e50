"""Links between nodes as far apart as the ends of the internet are: half a second away and more."""

import asyncio

from tests.loopback.tcp_relay import Relay

from brigade.coordinator.run_survey import LINKS_DEADLINE_S
from brigade.node.data_links import DataLinks
from brigade.wire.endpoint import Endpoint
from brigade.wire.identity import new_key_pair
from brigade.wire.keys import node_id
from brigade.wire.messages import MeasureLinks
from brigade.wire.network import Network
from brigade.wire.plan import NodeContact

ONE_WAY_S = 0.37  # the longest of the pairs of the scenario continents6


async def measure_over(one_way_s: float, payload_bytes: int) -> tuple[float, str]:
    """Let one node measure its link to another, and return the round trip and what went wrong."""
    network, keys = Network(), [new_key_pair(), new_key_pair()]
    near, far = [DataLinks(network, own, lambda *_: None, lambda *_: None) for own in keys]
    try:
        port = await far.listen(Endpoint("127.0.0.1", 0))
        await near.listen(Endpoint("127.0.0.1", 0))
        async with Relay(port, delay_s=one_way_s) as relay:
            contacts = [
                NodeContact(
                    node_id=node_id(own.public),
                    name=name,
                    public_key=own.public,
                    endpoint=f"tcp://127.0.0.1:{relay.port}",
                )
                for own, name in zip(keys, ("near", "far"), strict=True)
            ]
            far.admit(contacts[:1])
            order = MeasureLinks(to=(contacts[1],), payload_bytes=payload_bytes, deadline_s=LINKS_DEADLINE_S)
            (report,) = await near.measure(order)
            return report.rtt_s, report.error
    finally:
        await network.close()


def test_a_link_over_370_ms_each_way_is_measured() -> None:
    rtt_s, error = asyncio.run(measure_over(ONE_WAY_S, 64 * 1024))
    assert error == ""
    assert 2 * ONE_WAY_S <= rtt_s < 3 * ONE_WAY_S
