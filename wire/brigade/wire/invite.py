"""What the owner of a run hands to people who may join it, and the proof that a node has it.

An invite is `brigade1-` and base64url text of: 5 bytes of BLAKE2b over the rest, then the rest as JSON.
"""

import base64
import hashlib
import hmac
import re
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from brigade.wire.endpoint import parse_endpoint
from brigade.wire.errors import ConfigError
from brigade.wire.keys import is_key

INVITE_VERSION = 1
_PREFIX = f"brigade{INVITE_VERSION}-"
_CHECKSUM_BYTES = 5
_MOST_CHARACTERS = 4096
_ALPHABET = re.compile(r"[A-Za-z0-9_-]*")
_ANY_VERSION = re.compile(r"brigade(\d{1,6})-")
_PROOF_LABEL = b"brigade join 1\0"

Short = Annotated[str, Meta(min_length=1, max_length=256)]


class _Body(Struct, frozen=True, kw_only=True):
    a: Annotated[tuple[Short, ...], Meta(min_length=1, max_length=16)]  # addresses
    k: Short  # the coordinator's public key
    s: Short  # the join secret
    r: Short  # run id


class Invite(Struct, frozen=True, kw_only=True):
    """Where the coordinator is, its key, and the secret that admits a new node to one run."""

    addresses: tuple[str, ...]  # tcp://host:port of the control socket; any of them will do
    coordinator_key: str
    secret: str
    run_id: str

    def __repr__(self) -> str:
        return f"Invite(addresses={self.addresses!r}, run_id={self.run_id!r})"

    def text(self) -> str:
        """Return the invite as one word to copy and paste."""
        body = msgspec.json.encode(_Body(a=self.addresses, k=self.coordinator_key, s=self.secret, r=self.run_id))
        return _PREFIX + base64.urlsafe_b64encode(_checksum(body) + body).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str) -> "Invite":
        """Return the invite in `text`, which may hold blanks and line ends from pasting.

        Raises ConfigError: not an invite, cut short, mistyped, of another version. Never repeats the invite, which
        is a secret.
        """
        word = "".join(text[: 2 * _MOST_CHARACTERS].split()).strip("\"'<>`")
        encoded = word.removeprefix(_PREFIX)
        if encoded == word:
            raise _foreign(word)
        if len(encoded) > _MOST_CHARACTERS or not _ALPHABET.fullmatch(encoded):
            raise ConfigError("the invite is too long or has a character that no invite has: copy it again")
        # A length of 1 more than a multiple of 4 is no base64: the last character cannot be what was sent.
        if len(encoded) % 4 == 1:
            raise _incomplete()
        content = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        checksum, body = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        if not body.endswith(b"}"):
            raise _incomplete()
        if checksum != _checksum(body):
            raise ConfigError("the invite is mistyped (its checksum is wrong): copy it again")
        try:
            return cls._from_body(msgspec.json.decode(body, type=_Body))
        except msgspec.MsgspecError as error:
            raise ConfigError(f"the invite does not hold what an invite holds: {error}") from error

    @classmethod
    def _from_body(cls, body: _Body) -> "Invite":
        if not is_key(body.k):
            raise ConfigError("the invite holds no coordinator key")
        addresses = tuple(parse_endpoint(address, to_dial=True).address for address in body.a)
        return cls(addresses=addresses, coordinator_key=body.k, secret=body.s, run_id=body.r)


def prove(secret: str, coordinator_key: str, node_key: str) -> str:
    """Return the proof that whoever holds `node_key` has the invite: HMAC-SHA256 over both public keys, as hex.

    It names both keys, so it is worth nothing to another node or at another coordinator.
    """
    # A key has a fixed length; the lengths are in the text for those that are not keys.
    words = (coordinator_key.encode(), node_key.encode())
    message = _PROOF_LABEL + b"".join(len(word).to_bytes(4, "big") + word for word in words)
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def check_proof(proof: str, secret: str, coordinator_key: str, node_key: str) -> bool:
    """Tell whether `proof` is right, in a time that does not depend on how wrong it is."""
    wanted = prove(secret, coordinator_key, node_key)
    return hmac.compare_digest(proof.encode(errors="replace"), wanted.encode())


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()


def _incomplete() -> ConfigError:
    return ConfigError("the invite is incomplete or mistyped: copy it again, whole")


def _foreign(word: str) -> ConfigError:
    version = _ANY_VERSION.match(word)
    if version is not None:
        return ConfigError(
            f"the invite is of version {version[1]}, this program reads version {INVITE_VERSION}: "
            "both sides need the same release"
        )
    return ConfigError(f"this is not an invite: an invite begins with {_PREFIX}")
