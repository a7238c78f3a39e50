"""What is told, what is held back, and what cannot be told."""

from dataclasses import dataclass, field

import pytest

from brigade.coordinator.mouthpiece import MOST_QUEUED_BYTES, MOST_QUEUED_FOR_ECHO_BYTES, Mouthpiece
from brigade.coordinator.run_events import Tell
from brigade.wire import messages as m
from brigade.wire.encoding import encode
from brigade.wire.errors import LocalProtocolError

NODE, OWNER = 1, 2
TOO_LONG = m.Done(ok=True, reason="x" * 2**21)


@dataclass
class Link:
    """A connection whose other side has so many bytes before it."""

    queued_bytes: int = 0
    label: str = "tcp://10.0.0.2:7700"
    sent: list = field(default_factory=list)
    closed: str = ""

    def send(self, message):
        encode(message)
        self.sent.append(message)

    def close(self, reason):
        self.closed = reason


@pytest.fixture
def links():
    return {NODE: Link(), OWNER: Link()}


@pytest.fixture
def mouthpiece(links):
    return Mouthpiece(links, lambda number: number == OWNER)


def test_whoever_takes_no_echoes_gets_no_more_of_them(links, mouthpiece):
    echo = m.PulseEcho(number=1)
    for queued, echoes in ((0, 1), (MOST_QUEUED_FOR_ECHO_BYTES, 2), (MOST_QUEUED_FOR_ECHO_BYTES + 1, 2)):
        links[NODE].queued_bytes = queued
        mouthpiece.tell(Tell(connection=NODE, message=echo))
        assert len(links[NODE].sent) == echoes
    mouthpiece.tell(Tell(connection=NODE, message=m.BeginTraining(generation=0, step=0)))
    assert len(links[NODE].sent) == 3
    assert not links[NODE].closed


def test_whoever_takes_nothing_is_hung_up_on(links, mouthpiece):
    links[NODE].queued_bytes = MOST_QUEUED_BYTES + 1
    mouthpiece.tell(Tell(connection=NODE, message=m.BeginTraining(generation=0, step=0)))
    assert links[NODE].sent == []
    assert "takes none" in links[NODE].closed


def test_an_answer_that_cannot_be_sent_is_an_error_of_the_command(links, mouthpiece):
    mouthpiece.tell(Tell(connection=OWNER, message=TOO_LONG))
    (answer,) = links[OWNER].sent
    assert not answer.ok
    assert "its header of" in answer.reason


def test_a_message_that_cannot_be_sent_is_an_error_of_the_run(links, mouthpiece):
    with pytest.raises(LocalProtocolError):
        mouthpiece.tell(Tell(connection=NODE, message=TOO_LONG))


def test_nobody_is_told_when_the_connection_is_gone(mouthpiece):
    mouthpiece.tell(Tell(connection=7, message=TOO_LONG))
