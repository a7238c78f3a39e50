"""What a lab needs of its links, whoever makes them: where hosts are, how lines are changed, what has passed."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from brigade.lab.hosts import Place
from brigade.lab.relay_orders import ChangeRate, Corrupt, Counted, Cut, Heal

LinkOrder = Cut | Heal | ChangeRate | Corrupt


class Links(Protocol):
    """The links between all hosts of a lab, made and open."""

    @property
    def places(self) -> Mapping[str, Place]:
        """Where every host listens, and under which address others reach it."""

    async def order(self, order: LinkOrder) -> None:
        """Do something to the links. Raises BrigadeError where these links cannot."""

    async def count(self) -> Counted:
        """Return what has passed so far."""

    def namespace_of(self, host: str) -> str:
        """Return the network namespace in which the processes of a host live; empty: that of the lab."""

    def command(self, host: str, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs a program on a host, whatever the program."""

    async def close(self) -> None:
        """Take down what was made; a second time does nothing."""
