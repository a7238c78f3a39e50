"""Links between nodes, without sockets: what happens to a message when the link has gone."""

from typing import cast

from brigade.node.data_links import DataLinks
from brigade.wire import messages as m
from brigade.wire.connection import Connection
from brigade.wire.keys import KeyPair
from brigade.wire.network import Network
from brigade.wire.plan import NodeContact
from brigade.wire.verdict import Verdict

ADA = NodeContact(node_id="a" * 16, name="ada", public_key="k" * 40, endpoint="tcp://127.0.0.1:7801")
PROBE = m.LinkProbe(number=1)


class Line:
    """A connection that notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: object, frames: object, priority: int) -> None:
        self.sent.append(message)


def test_what_is_sent_over_a_link_that_has_gone_is_dropped_and_the_loss_was_told() -> None:
    lost: list[str] = []
    links = DataLinks(
        cast("Network", None), cast("KeyPair", None), lambda *_: None, lambda contact, _: lost.append(contact.name)
    )
    line = Line()
    connection = cast("Connection", line)
    links._dialled[ADA.node_id] = (ADA, connection)
    links.send(ADA, PROBE, [], 0)
    links.closed(connection, Verdict("closed", "the program ends"))
    assert lost == ["ada"]
    links.send(ADA, PROBE, [], 0)  # a result that was computed in the meantime: no failure of this node
    assert line.sent == [PROBE]
