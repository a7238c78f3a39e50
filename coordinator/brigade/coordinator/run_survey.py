"""Who measures what and when: blocks one node at a time on each machine, then links in rounds.

A core without I/O; two nodes that measure at once on one machine would measure each other. Where costs are given, nodes
build the model on paper, all at once, and nothing is timed. Of a crowd only as many are measured as can be of use.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from brigade.coordinator.costs import GivenCosts
from brigade.coordinator.link_rounds import ONE_BY_ONE, Round, link_rounds
from brigade.coordinator.run_events import Note, RunCommand, Tell
from brigade.coordinator.run_members import Member
from brigade.wire.costs import ChainReport, LinkReport
from brigade.wire.errors import PlanError, RemoteProtocolError
from brigade.wire.messages import LinksMeasured, MeasureLinks, ProfileBlocks
from brigade.wire.plan import Boundary

MOST_CANDIDATES = 128  # time their blocks; a roster of so many fits into a message
MOST_LINKED = 64  # time their links: the fastest candidates, at most one a block
PROFILE_LIMIT_S = 900.0
LINKS_DEADLINE_S = 16.0  # of one link: half of it to connect, ten round trips of the longest lines
LINKS_GRACE_S = 30.0  # beyond the deadlines of all links of a node
LEAST_PAYLOAD_BYTES, MOST_PAYLOAD_BYTES = 64 * 1024, 4 * 1024 * 1024
NAMES_SHOWN = 3


def choose_candidates(members: Iterable[Member]) -> tuple[Member, ...]:
    """Return whom to measure: everybody, or of a crowd those with accelerators and those who have been there longest.

    Who has stayed long is likely to stay longer: sessions of volunteers have a falling hazard (Javadi et al. 2011).
    """
    return tuple(sorted(members, key=lambda member: member.device.kind == "cpu")[:MOST_CANDIDATES])


class Survey:
    """The measurements of these nodes; or `costs` that were given. A node that goes is measured no more."""

    def __init__(self, members: Sequence[Member], inputs: Boundary | None, costs: GivenCosts | None = None) -> None:
        self.members = tuple(members)
        self.chains: dict[str, ChainReport] = {}
        self.links: dict[tuple[str, str], LinkReport] = {}
        self._inputs = inputs
        self._costs = costs
        self._roster = tuple(member.contact for member in self.members)
        self._colocated = Counter(member.device.host for member in self.members)
        self._hosts: dict[str, deque[Member]] = {}
        for member in self.members:
            self._hosts.setdefault(self._turns(member), deque()).append(member)
        self._rounds: deque[Round] = deque()
        self._round_count = 0
        self._awaited: dict[str, tuple[str, ...]] = {}  # who times its links, and to whom

    @property
    def waiting_for(self) -> str:
        """Return, for a person, whose measurement is awaited."""
        names = {member.node_id: member.name for member in self.members}
        if not self.profiled:
            first = [queue[0].name for queue in self._hosts.values() if queue]
            what = "time the blocks" if self._costs is None else "build the model on paper"
            return f"{_some(first)} to {what} ({len(self.chains)} of {len(self.members)} done)"
        first = [names[node_id] for node_id in self._awaited]
        done = self._round_count - len(self._rounds) - 1
        return (
            f"{_some(first)} to time {'its' if len(first) == 1 else 'their'} links ({done} of {self._round_count} done)"
        )

    def drop(self, member: Member) -> list[RunCommand]:
        """Go on without a node that has gone: whoever waited for its turn has it."""
        self.members = tuple(other for other in self.members if other is not member)
        self.chains.pop(member.node_id, None)
        self.links = {ends: link for ends, link in self.links.items() if member.node_id not in ends}
        queue = self._hosts[self._turns(member)]
        its_turn = bool(queue) and queue[0] is member
        if member in queue:
            queue.remove(member)
        if its_turn:
            return [self._profile(queue[0])] if queue else []
        self._awaited.pop(member.node_id, None)
        return self._next_round()

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
        first = next((m for m in self.members if m.node_id in self.chains), member)
        known = self.chains.get(first.node_id, chain)  # all that are known are equal
        if known.fingerprint != chain.fingerprint:
            raise PlanError(
                f"the model is not the same on nodes {first.name} and {member.name}"
                f" (fingerprints {known.fingerprint[:12]} and {chain.fingerprint[:12]});"
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
            roster=self._roster,
            colocated=self._colocated[member.device.host],
            inputs=self._inputs,
            timed=self._costs is None,
        )
        return Tell(connection=member.control, message=order)

    # --- links --------------------------------------------------------------------------------------------------

    def keep_fastest(self) -> tuple[Member, ...]:
        """Return those whom a large survey leaves out from now on: a line has no more stages than blocks."""
        if len(self.members) <= ONE_BY_ONE:
            return ()

        def seconds(member: Member) -> float:
            return sum(block.forward_s + block.backward_s for block in self.chains[member.node_id].blocks)

        blocks = len(self.chains[self.members[0].node_id].blocks)
        left_out = sorted(self.members, key=seconds)[max(ONE_BY_ONE, min(blocks, MOST_LINKED)) :]
        ids = {member.node_id for member in left_out}
        self.members = tuple(member for member in self.members if member.node_id not in ids)
        for node_id in ids:
            del self.chains[node_id]
        return tuple(left_out)

    def begin_links(self) -> list[RunCommand]:
        """Begin the first round; a node without others has no links."""
        if self._costs is not None:
            self.links = self._costs.links([member.contact for member in self.members])
            return []
        self._rounds.extend(link_rounds([member.node_id for member in self.members]))
        self._round_count = len(self._rounds)
        return self._next_round()

    @property
    def links_limit_s(self) -> float:
        """Return how long this round may take, if no link answers."""
        most = max((len(targets) for targets in self._awaited.values()), default=0)
        return most * LINKS_DEADLINE_S + LINKS_GRACE_S

    def take_links(self, member: Member, message: LinksMeasured) -> list[RunCommand]:
        """Take what a node's links carry; after the last node of a round begin the next one."""
        if {link.to for link in message.links} != set(self._awaited.get(member.node_id, ())):
            return []  # the answer to an order of an earlier gathering
        others = {other.node_id: other for other in self.members}
        commands: list[RunCommand] = []
        for link in message.links:
            if (other := others.get(link.to)) is None:
                continue  # it has gone since
            self.links[member.node_id, link.to] = link
            if link.error:
                text = (
                    f"{other.name} takes part but is not reachable at {other.endpoint} from {member.name}: {link.error}"
                )
                commands.append(Note(kind="unreachable", text=text, node=other.name, level="warning"))
        del self._awaited[member.node_id]
        return [*commands, *self._next_round()]

    @property
    def linked(self) -> bool:
        """Tell whether every node has timed its links."""
        return not self._awaited and not self._rounds

    def _next_round(self) -> list[RunCommand]:
        """Begin the next round that has anybody left to measure, if this one is over."""
        if self._awaited:
            return []
        members = {member.node_id: member for member in self.members}
        while self._rounds and not self._awaited:
            for sender, targets in self._rounds.popleft().items():
                there = tuple(node_id for node_id in targets if node_id in members)
                if sender in members and there:
                    self._awaited[sender] = there
        return [self._measure(members[sender], targets, members) for sender, targets in self._awaited.items()]

    def _measure(self, member: Member, targets: Sequence[str], members: dict[str, Member]) -> Tell:
        largest = max((block.output_bytes for block in self.chains[member.node_id].blocks[:-1]), default=0)
        order = MeasureLinks(
            to=tuple(members[node_id].contact for node_id in targets),
            payload_bytes=min(MOST_PAYLOAD_BYTES, max(LEAST_PAYLOAD_BYTES, largest)),
            deadline_s=LINKS_DEADLINE_S,
        )
        return Tell(connection=member.control, message=order)


def _some(names: Sequence[str]) -> str:
    """Return names for a person, not all of many."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return (", ".join(names[:NAMES_SHOWN]) or "nobody") + more


def _check_chain(chain: ChainReport) -> None:
    if not chain.blocks or len(chain.boundaries) != len(chain.blocks) - 1:
        raise RemoteProtocolError(f"a chain of {len(chain.blocks)} blocks with {len(chain.boundaries)} boundaries")
    if not all(math.isfinite(s) and s >= 0 for s in (chain.encode_s, chain.decode_s)):
        raise RemoteProtocolError(f"a codec that takes {chain.encode_s} and {chain.decode_s} s")
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
