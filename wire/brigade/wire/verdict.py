"""Why a connection ended or was refused, in a word for programs and a sentence for people."""

from dataclasses import dataclass
from typing import Literal, get_args

Code = Literal[
    "closed",  # one side closed it in good order
    "silent",  # connected, and nothing heard for too long
    "unreachable",  # no TCP connection, or a host name that nobody knows
    "wrong_key",  # the listener has another key than the dialler expects
    "not_admitted",  # the listener does not admit the dialler's key
    "version",  # no protocol version in common
    "protocol",  # the other side broke the protocol
    "lost_session",  # the other side no longer knows the session
    "plaintext",  # a ZeroMQ party without encryption
    "stranger",  # something that does not speak this protocol at all
]
CODES: tuple[Code, ...] = get_args(Code)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision with its reason: `reason` is one sentence that names the endpoint."""

    code: Code
    reason: str


def code_of(text: str) -> Code:
    """Return the code that another party named; a code of a later version is `closed`."""
    for code in CODES:
        if code == text:
            return code
    return "closed"
