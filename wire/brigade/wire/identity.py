"""Who we are: a CURVE key pair and a join secret that live in files of a state directory."""

import secrets
from pathlib import Path

import zmq

from brigade.wire.errors import ConfigError
from brigade.wire.keys import KEY_LENGTH, KeyPair, is_key, node_id
from brigade.wire.private_file import create_private, read_private

__all__ = ["KeyPair", "load_or_create", "load_or_create_secret", "new_key_pair", "node_id"]

_NOTICE = "# Key of Bucket Brigade. Whoever has it is you: never copy it, never send it."
_SECRET_BYTES = 16


def new_key_pair() -> KeyPair:
    """Return a fresh key pair that lives in memory only."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def load_or_create(path: Path) -> KeyPair:
    """Return the key pair in `path`, making it (mode 0600) if there is none.

    Raises ConfigError naming the path: open to others, damaged, halves swapped or of different pairs, directory
    missing, not writable. Never says anything of the key itself.
    """
    text = read_private(path)
    if text is None:
        pair = new_key_pair()
        if create_private(path, f"{_NOTICE}\npublic {pair.public}\nsecret {pair.secret}\n"):
            return pair
        text = read_private(path) or ""  # another process was faster
    return _parse(path, text)


def load_or_create_secret(path: Path) -> str:
    """Return the join secret in `path`, making it (mode 0600) if there is none; ConfigError as `load_or_create`."""
    text = read_private(path)
    if text is None:
        secret = secrets.token_hex(_SECRET_BYTES)
        if create_private(path, secret + "\n"):
            return secret
        text = read_private(path) or ""
    secret = text.strip()
    if len(secret) != 2 * _SECRET_BYTES or not set(secret) <= set("0123456789abcdef"):
        raise ConfigError(
            f"{path} does not hold a join secret: delete it to have a new one made (and send new invites)"
        )
    return secret


def _parse(path: Path, text: str) -> KeyPair:
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("# "):
            name, _, value = line.strip().partition(" ")
            if name not in {"public", "secret"} or name in found:
                raise _damaged(path, "it has a line that is neither the public nor the secret key")
            found[name] = value.strip()
    for name in ("public", "secret"):
        if name not in found:
            raise _damaged(path, f"the {name} key is missing")
        if not is_key(found[name]):
            length = len(found[name])
            why = f"has {length} characters" if length != KEY_LENGTH else "has a character that no key has"
            raise _damaged(path, f"the {name} key {why}, expected {KEY_LENGTH} of Z85")
    public, secret = found["public"], found["secret"]
    if _public_of(secret) != public:
        if _public_of(public) == secret:
            raise _damaged(path, "the public and the secret key are swapped")
        raise _damaged(path, "the public key does not belong to the secret key")
    return KeyPair(public, secret)


def _public_of(secret: str) -> str | None:
    try:
        return zmq.curve_public(secret.encode()).decode()
    except (zmq.ZMQError, ValueError):  # 40 characters of Z85 that exceed 32 bits in a group
        return None


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is not a usable key file: {why}; restore it, or delete it to take part under a new identity"
    )
