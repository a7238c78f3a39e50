"""Which keys take part in a run: admitted once by proof, remembered by key, out for good when revoked."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from brigade.wire.invite import check_proof
from brigade.wire.keys import is_key

Code = Literal["owner", "proved", "remembered", "bad_proof", "revoked"]


@dataclass(frozen=True, slots=True)
class Admittance:
    """Whether a key is in, with the reason."""

    admitted: bool
    code: Code
    reason: str


class Admission:
    """The list of a run's keys. Changes only by `judge` and `revoke`; whoever owns it keeps it on disk.

    Keys are public keys as Z85 text. The run's owner comes with the coordinator's own key.
    """

    def __init__(
        self, secret: str, coordinator_key: str, remembered: Iterable[str] = (), revoked: Iterable[str] = ()
    ) -> None:
        self._secret = secret
        self._coordinator_key = coordinator_key
        self._revoked = set(revoked)
        self._remembered = set(remembered) - self._revoked

    @property
    def remembered(self) -> frozenset[str]:
        """Every key that has proved itself and was not revoked."""
        return frozenset(self._remembered)

    @property
    def revoked(self) -> frozenset[str]:
        """Every key that is out for good."""
        return frozenset(self._revoked)

    def may_knock(self, key: str) -> bool:
        """Tell whether this key may shake hands at all and then show its proof (control socket)."""
        return is_key(key) and key not in self._revoked

    def admits(self, key: str) -> bool:
        """Tell whether this key has been admitted and still is (pulse and bulk sockets)."""
        return key in self._remembered or key == self._coordinator_key

    def judge(self, key: str, proof: str) -> Admittance:
        """Decide about a key that shows this proof, and remember it if it is right.

        A remembered key needs no proof: the secret may have been changed since.
        """
        if key == self._coordinator_key:
            return Admittance(True, "owner", "it holds the coordinator's own key")
        if key in self._revoked:
            return Admittance(False, "revoked", "the owner of the run has revoked this node")
        if key in self._remembered:
            return Admittance(True, "remembered", "it was admitted before")
        if is_key(key) and check_proof(proof, self._secret, self._coordinator_key, key):
            self._remembered.add(key)
            return Admittance(True, "proved", "it proved to have the invite")
        return Admittance(False, "bad_proof", "it does not have this run's invite: ask the owner for a new one")

    def revoke(self, key: str) -> bool:
        """Put a key out for good; tell whether this changed anything. The owner's own key stays."""
        if key == self._coordinator_key or key in self._revoked:
            return False
        self._remembered.discard(key)
        self._revoked.add(key)
        return True
