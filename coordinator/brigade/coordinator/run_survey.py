"""Who measures what and when: blocks one node at a time on each machine, then links one node at a time.

A core without I/O; two nodes that measure at once on one machine would measure each other. Where costs are given, nodes
build the model on paper, all at once, and nothing is timed.
"""

import math
from collections import deque
from collections.abc import Sequence

from brigade.coordinator.costs import GivenCosts
from brigade.coordinator.run_events import Note, RunCommand, Tell
from brigade.coordinator.run_members import Member
from brigade.wire.costs import ChainReport, LinkReport
from brigade.wire.errors import PlanError, RemoteProtocolError
from brigade.wire.messages import LinksMeasured, MeasureLinks, ProfileBlocks
from brigade.wire.plan import Boundary

PROFILE_LIMIT_S = 900.0
LINKS_DEADLINE_S = 16.0  # of one link: half of it to connect, ten round trips of the longest lines
LINKS_GRACE_S = 30.0  # beyond the deadlines of all links of a node
LEAST_PAYLOAD_BYTES, MOST_PAYLOAD_BYTES = 64 * 1024, 4 * 1024 * 1024


class Survey:
    """The measurements of these nodes, which are fixed when it begins; or `costs` that were given."""

    def __init__(self, members: Sequence[Member], inputs: Boundary | None, costs: GivenCosts | None = None) -> None:
        self.members = tuple(members)
        self.chains: dict[str, ChainReport] = {}
        self.links: dict[tuple[str, str], LinkReport] = {}
        self._inputs = inputs
        self._costs = costs
        self._hosts: dict[str, deque[Member]] = {}
        for member in self.members:
            self._hosts.setdefault(self._turns(member), deque()).append(member)
        self._unlinked = deque(self.members)

    @property
    def waiting_for(self) -> str:
        """Return, for a person, whose measurement is awaited."""
        if len(self.chains) < len(self.members):
            names = [queue[0].name for queue in self._hosts.values() if queue]
            what = "time the blocks" if self._costs is None else "build the model on paper"
            return f"{', '.join(names)} to {what} ({len(self.chains)} of {len(self.members)} done)"
        name = self._unlinked[0].name if self._unlinked else "nobody"
        done = len(self.members) - len(self._unlinked)
        return f"{name} to time its links ({done} of {len(self.members)} done)"

    # --- blocks -------------------------------------------------------------------------------------------------

    def _turns(self, member: Member) -> str:
        """Return what nodes share that take turns."""
        return member.device.host if self._costs is None else member.node_id

    def begin(self) -> list[RunCommand]:
        """Let the first node of each machine time its blocks."""
        return [self._profile(queue[0]) for queue in self._hosts.values()]

    def take_profile(self, member: Member, chain: ChainReport) -> list[RunCommand]:
        """Take a node's costs and let the next node of its machine begin.

        Raises RemoteProtocolError for a report that cannot be, PlanError for a model that is another on another node.
        """
        queue = self._hosts.get(self._turns(member))
        if not queue or queue[0].node_id != member.node_id:
            return []  # the answer to an order of an earlier gathering
        _check_chain(chain)
        for node_id, other in self.chains.items():
            if other.fingerprint != chain.fingerprint:
                name = next(m.name for m in self.members if m.node_id == node_id)
                raise PlanError(
                    f"the model is not the same on nodes {name} and {member.name}"
                    f" (fingerprints {other.fingerprint[:12]} and {chain.fingerprint[:12]});"
                    " install the same versions of brigade and of the model's code on both"
                )
        self.chains[member.node_id] = chain if self._costs is None else self._costs.chain(member.name, chain)
        queue.popleft()
        return [self._profile(queue[0])] if queue else []

    @property
    def profiled(self) -> bool:
        """Tell whether every node has timed its blocks."""
        return len(self.chains) == len(self.members)

    def _profile(self, member: Member) -> Tell:
        order = ProfileBlocks(
            roster=tuple(m.contact for m in self.members),
            colocated=sum(m.device.host == member.device.host for m in self.members),
            inputs=self._inputs,
            timed=self._costs is None,
        )
        return Tell(connection=member.control, message=order)

    # --- links --------------------------------------------------------------------------------------------------

    def begin_links(self) -> list[RunCommand]:
        """Let the first node time its links; a node without others has none."""
        if self._costs is not None:
            self.links = self._costs.links([member.contact for member in self.members])
        if len(self.members) == 1 or self._costs is not None:
            self._unlinked.clear()
        return [self._measure(self._unlinked[0])] if self._unlinked else []

    @property
    def links_limit_s(self) -> float:
        """Return how long the node whose turn it is may take for all its links, if none of them answers."""
        return (len(self.members) - 1) * LINKS_DEADLINE_S + LINKS_GRACE_S

    def take_links(self, member: Member, message: LinksMeasured) -> list[RunCommand]:
        """Take what a node's links carry and let the next one begin."""
        wanted = {m.node_id: m for m in self.members if m is not member}
        if not self._unlinked or self._unlinked[0].node_id != member.node_id:
            return []
        if {link.to for link in message.links} != set(wanted):
            return []  # the answer to an order of an earlier gathering
        commands: list[RunCommand] = []
        for link in message.links:
            self.links[member.node_id, link.to] = link
            if link.error:
                other = wanted[link.to]
                text = (
                    f"{other.name} takes part but is not reachable at {other.endpoint} from {member.name}: {link.error}"
                )
                commands.append(Note(kind="unreachable", text=text, node=other.name, level="warning"))
        self._unlinked.popleft()
        return [*commands, *([self._measure(self._unlinked[0])] if self._unlinked else [])]

    @property
    def linked(self) -> bool:
        """Tell whether every node has timed its links."""
        return not self._unlinked

    def _measure(self, member: Member) -> Tell:
        largest = max((block.output_bytes for block in self.chains[member.node_id].blocks[:-1]), default=0)
        order = MeasureLinks(
            to=tuple(m.contact for m in self.members if m is not member),
            payload_bytes=min(MOST_PAYLOAD_BYTES, max(LEAST_PAYLOAD_BYTES, largest)),
            deadline_s=LINKS_DEADLINE_S,
        )
        return Tell(connection=member.control, message=order)


def _check_chain(chain: ChainReport) -> None:
    if not chain.blocks or len(chain.boundaries) != len(chain.blocks) - 1:
        raise RemoteProtocolError(f"a chain of {len(chain.blocks)} blocks with {len(chain.boundaries)} boundaries")
    for index, block in enumerate(chain.blocks):
        seconds = (block.forward_s, block.backward_s, block.optimizer_s)
        sizes = (
            block.parameter_bytes,
            block.gradient_bytes,
            block.optimizer_bytes,
            block.saved_bytes,
            block.output_bytes,
        )
        if not all(math.isfinite(s) and s >= 0 for s in seconds) or min(sizes) < 0:
            raise RemoteProtocolError(f"costs of block {index} that cannot be: {block}")
