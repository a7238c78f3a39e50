"""Who takes part: admits nodes, refuses the rest, and notices who has gone.

A core without I/O. Every method returns, in order, what to do and what is new about nodes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from brigade.coordinator.deadlines import Deadlines
from brigade.coordinator.run_events import ConnectionOpened, HangUp, Note, RunCommand, StoreNode, StoreRevocation, Tell
from brigade.coordinator.run_members import (
    CLOSED_GRACE_S,
    Challenge,
    Known,
    Member,
    MembershipNews,
    Names,
    NodeGone,
    NodeJoined,
    clean_name,
    data_endpoint,
    usable_device,
)
from brigade.wire.admission import Admission
from brigade.wire.messages import Hello, Pulse, PulseEcho, Refused, Welcome
from brigade.wire.refusals import RefusalFilter
from brigade.wire.run_spec import RunSpec

GREETING_LIMIT_S = 10.0
PULSE_INTERVAL_S = 1.0
STALL_S = 1.0  # a deadline that comes this much late means that we slept, not the nodes
UNSPECIFIED_HOSTS = frozenset({"0.0.0.0", "::", "[::]", "*"})  # noqa: S104 - to refuse them, not to bind

Outcome = list[RunCommand | MembershipNews]


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What newcomers are told and checked against."""

    run_id: str
    coordinator_key: str
    pulse_port: int
    bulk_port: int


class Membership:
    """The nodes of a run; see the module."""

    def __init__(self, door: Door, admission: Admission, spec: RunSpec, known: Iterable[Known] = ()) -> None:
        self._door = door
        self._admission = admission
        self._spec = spec
        self._silence_limit_s = spec.pipeline.silence_limit_s
        self._known = {node.node_id: node for node in known}
        self._connections: dict[int, ConnectionOpened] = {}
        self._ungreeted: dict[int, float] = {}  # control connection -> when it must have said Hello
        self._challenges: dict[str, Challenge] = {}
        self._by_control: dict[int, str] = {}
        self._closed_to: str | None = None
        self._refusals = RefusalFilter()
        self._names = Names()
        self.members: dict[str, Member] = {}
        self._silences = Deadlines(self._lost_at)  # by node id
        self._greetings = Deadlines(self._ungreeted.get)  # by connection
        self._decisions = Deadlines(self._decided_at)  # of challenges, by node id

    # --- questions ----------------------------------------------------------------------------------------------

    def is_owner(self, connection: int) -> bool:
        """Tell whether the other side holds the coordinator's own key."""
        opened = self._connections.get(connection)
        return opened is not None and opened.public_key == self._door.coordinator_key

    def member_of(self, connection: int) -> Member | None:
        """Return the node whose control connection this is."""
        node_id = self._by_control.get(connection)
        return None if node_id is None else self.members.get(node_id)

    def find(self, node: str) -> Known | None:
        """Return the node with this id or name, also one that has gone; of two, the one that takes part."""
        named = [known for known in self._known.values() if node in (known.node_id, known.name)]
        return max(named, key=lambda known: known.node_id in self.members, default=None)

    def next_deadline(self) -> float | None:
        """Return when the next node, newcomer or challenge is decided by silence."""
        times = (self._silences.next(), self._greetings.next(), self._decisions.next())
        return min((at for at in times if at is not None), default=None)

    # --- what happens -------------------------------------------------------------------------------------------

    def opened(self, event: ConnectionOpened, now: float) -> Outcome:
        """Take note of a connection; on the control socket it must say Hello soon."""
        self._connections[event.connection] = event
        if event.socket == "control" and event.public_key != self._door.coordinator_key:
            self._ungreeted[event.connection] = now + GREETING_LIMIT_S
            self._greetings.set(event.connection)
        return []

    def closed(self, connection: int, now: float) -> Outcome:
        """Take note that a connection is gone; its node gets a short grace to show that it lives."""
        opened = self._connections.pop(connection, None)
        self._ungreeted.pop(connection, None)
        if opened is not None:
            challenge = self._challenges.get(opened.node_id)
            if challenge is not None and challenge.connection == connection:
                del self._challenges[opened.node_id]
        node_id = self._by_control.pop(connection, None)
        if node_id is not None and node_id in self.members:
            self.members[node_id].closed_at = now
            self._silences.set(node_id)
        return []

    def greeted(self, connection: int, hello: Hello, now: float) -> Outcome:
        """Admit the sender of this Hello, refuse it, or wait whether its double is alive."""
        opened = self._connections.get(connection)
        if opened is None:
            return []
        self._ungreeted.pop(connection, None)
        if (refusal := self._refusal(opened, hello)) is not None:
            return self._refuse(opened, hello, refusal, now)
        old = self.members.get(opened.node_id)
        if old is None:
            return self._admit(opened, hello, now)
        if old.incarnation == hello.incarnation or old.closed_at is not None:
            return self._supersede(old, opened, hello, now)
        self._challenges[opened.node_id] = Challenge(connection, hello, now + CLOSED_GRACE_S)
        self._decisions.set(opened.node_id)
        return []

    def pulsed(self, connection: int, pulse: Pulse, now: float) -> Outcome:
        """Take a heartbeat and answer it."""
        opened = self._connections.get(connection)
        member = self.members.get(opened.node_id) if opened else None
        if member is None or pulse.incarnation != member.incarnation:
            return [HangUp(connection=connection, reason="this heartbeat is of no node that takes part")]
        member.heard_at = now
        member.pulse = pulse
        outcome: Outcome = [Tell(connection=connection, message=PulseEcho(number=pulse.number))]
        challenge = self._challenges.pop(member.node_id, None)
        newcomer = self._connections.get(challenge.connection) if challenge else None
        if challenge is not None and newcomer is not None:
            reason = f"node {member.name} with this identity is alive; two daemons must not share a node.key"
            outcome += self._refuse(newcomer, challenge.hello, Refused(code="identity_in_use", reason=reason), now)
        return outcome

    def heard(self, connection: int, now: float) -> None:
        """Take any message as a sign of life."""
        if (member := self.member_of(connection)) is not None:
            member.heard_at = now

    def left(self, member: Member, reason: str) -> Outcome:
        """Let a node go that said so."""
        return self._drop(member, reason, polite=True)

    def expel(self, member: Member, reason: str) -> Outcome:
        """Let a node go that broke the protocol."""
        return self._drop(member, reason)

    def revoke(self, known: Known) -> Outcome:
        """Admit this node no longer; if it takes part, it does so until it is put out."""
        self._admission.revoke(known.public_key)
        return [StoreRevocation(node_id=known.node_id, public_key=known.public_key)]

    def put_out(self, member: Member) -> Outcome:
        """Send a revoked node away."""
        reason = "the owner of the run has revoked this node"
        refusal = Tell(connection=member.control, message=Refused(code="revoked", reason=reason))
        return [refusal, *self._drop(member, reason, polite=True)]

    def close_door(self, reason: str) -> None:
        """Refuse every newcomer from now on: the run is over."""
        self._closed_to = reason

    def time_passed(self, now: float) -> Outcome:
        """Decide what was waiting for this moment."""
        late_s = now - (self.next_deadline() or now)
        if late_s > STALL_S:  # we slept and heartbeats may lie unread: everybody gets a fresh grace
            for member in self.members.values():
                member.heard_at = now
                member.closed_at = None if member.closed_at is None else now
        outcome: Outcome = []
        for connection in self._greetings.passed(now):
            del self._ungreeted[connection]
            outcome.append(HangUp(connection=connection, reason="no Hello within 10 s"))
        for node_id in self._decisions.passed(now):
            challenge = self._challenges.pop(node_id)
            opened = self._connections.get(challenge.connection)
            if opened is not None and (old := self.members.get(node_id)) is not None:
                outcome += self._supersede(old, opened, challenge.hello, now)
        for node_id in self._silences.passed(now):
            member = self.members[node_id]
            outcome += self._drop(member, member.loss(now))
        return outcome

    # --- inside -------------------------------------------------------------------------------------------------

    def _lost_at(self, node_id: str) -> float | None:
        member = self.members.get(node_id)
        return None if member is None else member.lost_at(self._silence_limit_s)

    def _decided_at(self, node_id: str) -> float | None:
        challenge = self._challenges.get(node_id)
        return None if challenge is None else challenge.decided_at

    def _refusal(self, opened: ConnectionOpened, hello: Hello) -> Refused | None:
        if hello.run_id != self._door.run_id:
            return Refused(
                code="unknown_run",
                reason=f"this coordinator serves another run, {self._spec.name}; ask for a new invite",
            )
        verdict = self._admission.judge(opened.public_key, hello.proof)
        if not verdict.admitted:
            return Refused(code=verdict.code, reason=verdict.reason)
        if self._closed_to is not None:
            return Refused(code="run_over", reason=f"the run is over: {self._closed_to}")
        if hello.advertise in UNSPECIFIED_HOSTS or not 0 < hello.data_port < 65536:
            address = f"{hello.advertise or opened.host}:{hello.data_port}"
            return Refused(code="unreachable", reason=f"other nodes cannot dial {address}")
        return None

    def _refuse(self, opened: ConnectionOpened, hello: Hello, refusal: Refused, now: float) -> Outcome:
        outcome: Outcome = [
            Tell(connection=opened.connection, message=refusal),
            HangUp(connection=opened.connection, reason=refusal.reason),
        ]
        if self._refusals.is_news(opened.host, refusal.code, now):
            who = f"{clean_name(hello.name)} from {opened.host} ({opened.node_id})"
            outcome.append(Note(kind="refused", text=f"refused node {who}: {refusal.reason}", level="warning"))
        return outcome

    def _supersede(self, old: Member, opened: ConnectionOpened, hello: Hello, now: float) -> Outcome:
        same = old.incarnation == hello.incarnation
        reason = "it connected anew and messages may be lost" if same else "it was restarted"
        return [*self._drop(old, reason), *self._admit(opened, hello, now)]

    def _admit(self, opened: ConnectionOpened, hello: Hello, now: float) -> Outcome:
        member = Member(
            node_id=opened.node_id,
            name=self._names.take(clean_name(hello.name)),
            public_key=opened.public_key,
            endpoint=data_endpoint(hello.advertise or opened.host, hello.data_port),
            incarnation=hello.incarnation,
            device=usable_device(hello),
            control=opened.connection,
            heard_at=now,
        )
        self.members[member.node_id] = member
        self._silences.set(member.node_id)
        self._by_control[member.control] = member.node_id
        self._known[member.node_id] = Known(node_id=member.node_id, name=member.name, public_key=member.public_key)
        welcome = Welcome(
            run_id=self._door.run_id,
            spec=self._spec,
            name=member.name,
            pulse_port=self._door.pulse_port,
            bulk_port=self._door.bulk_port,
            pulse_interval_s=PULSE_INTERVAL_S,
            silence_limit_s=self._silence_limit_s,
        )
        stored = StoreNode(
            node_id=member.node_id,
            public_key=member.public_key,
            name=member.name,
            host=opened.host,
            device=member.device,
        )
        return [stored, Tell(connection=member.control, message=welcome), NodeJoined(member)]

    def _drop(self, member: Member, reason: str, *, polite: bool = False) -> Outcome:
        del self.members[member.node_id]
        self._names.give_back(member.name)
        outcome: Outcome = []
        if self._by_control.pop(member.control, None) is not None:
            outcome.append(HangUp(connection=member.control, reason=reason))
        return [*outcome, NodeGone(member, reason, polite)]
