"""What a key is, and the short name of whoever holds it. No files, no cryptography."""

import base64
import hashlib
import string
from dataclasses import dataclass, field

from brigade.wire.errors import ConfigError

KEY_LENGTH = 40  # characters of a CURVE key as Z85 text (32 bytes)
NODE_ID_LENGTH = 16
_Z85 = frozenset(string.digits + string.ascii_letters + ".-:+=^!/*?&<>()[]{}@%$#")
_BASE32 = frozenset(string.ascii_lowercase + "234567")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair as Z85 text; the secret half never shows in a representation."""

    public: str
    secret: str = field(repr=False)


def is_key(text: str) -> bool:
    """Tell whether `text` has the form of a CURVE key: 40 characters of Z85."""
    return len(text) == KEY_LENGTH and _Z85.issuperset(text)


def is_node_id(text: str) -> bool:
    """Tell whether `text` has the form of a node id: 16 characters of lower-case base32."""
    return len(text) == NODE_ID_LENGTH and _BASE32.issuperset(text)


def node_id(public_key: str) -> str:
    """Return the node's id: lower-case base32 of the 10-byte BLAKE2b of its public key's Z85 text.

    Raises ConfigError for anything that is not a key.
    """
    if not is_key(public_key):
        raise ConfigError(f"not a public key: {len(public_key)} characters, expected {KEY_LENGTH} of Z85")
    digest = hashlib.blake2b(public_key.encode(), digest_size=10, person=b"brigade node id").digest()
    return base64.b32encode(digest).decode().lower()
