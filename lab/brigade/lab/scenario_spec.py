"""What a scenario is: the typed content of a scenario file. Frozen; unknown keys are refused."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from brigade.lab.availability_spec import TraceSpec
from brigade.lab.quantities import (
    RATE_DESCRIPTION,
    RATE_PATTERN,
    UNLIMITED,
    Milliseconds,
    Seconds,
    Seed,
    SomeMilliseconds,
    SomeSeconds,
)
from brigade.wire.run_spec import Fraction, Name

COORDINATOR = "coordinator"  # as the name of a host in events and pairs
MOST_HOSTS = 250  # each has an address of its own in one network

LinksKind = Literal["relay", "namespaces"]
Rate = Annotated[str, Meta(pattern=RATE_PATTERN, description=RATE_DESCRIPTION)]
Memory = Annotated[
    str, Meta(pattern=r"^([0-9]+(\.[0-9]+)? ?[KMGT]i?B)?$", description="an amount of memory such as '4 GiB'")
]
MOST_STEP = 10**9
Slowdown = Annotated[float, Meta(ge=1.0, le=1000.0)]


class LinkSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a host hangs on the internet. A link's latency is the sum of those of its two hosts."""

    up: Rate = UNLIMITED
    down: Rate = UNLIMITED
    pipe: Literal["separate", "shared"] = "separate"  # shared: up and down together have the rate `up`, as on radio
    latency_ms: Milliseconds = 0.0  # one way
    jitter_ms: Milliseconds = 0.0  # one way, at most this much more or less
    loss: Fraction = 0.0  # of packets: each one stalls its connection, as TCP repeats it
    queue_ms: SomeMilliseconds = 20.0  # how much of its time the uplink may have before it: a router's buffer


class HostSpec(LinkSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine with one node; `count` of them are named `name-1`, `name-2`, ..."""

    name: Name
    count: Annotated[int, Meta(ge=1, le=MOST_HOSTS)] = 1
    site: str = ""  # hosts of one site share the pairs that name it
    emulate: str = ""  # a speed such as "2x" (twice as slow as here) or "0.5 s/GFLOP"; that of this machine when empty
    device: str = ""  # a named device instead: laptop-cpu, rtx-3060, ...
    memory: Memory = ""  # what a node may use; as much as there is when empty


class PairSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is special between two hosts or two sites, in both directions."""

    between: tuple[str, str]
    latency_ms: Milliseconds | None = None  # one way, instead of the sum of both hosts
    rate: Rate = UNLIMITED  # each way, shared by everything that passes between the two


class Moment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When: seconds after training began, or once so many steps are committed."""

    at_s: Seconds | None = None
    at_step: Annotated[int, Meta(ge=0, le=MOST_STEP)] | None = None


class Join(Moment, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="join"):
    """A host starts its node; one whose first event this is does not take part from the beginning."""

    host: str


class Leave(Moment, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="leave"):
    """A node is asked to go (SIGTERM)."""

    host: str


class Kill(Moment, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="kill"):
    """A node ends without a word (SIGKILL)."""

    host: str


class Suspend(Moment, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="suspend"):
    """A node stands still (SIGSTOP), as a laptop whose lid is closed."""

    host: str


class Resume(Moment, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="resume"):
    """A suspended node goes on."""

    host: str


class Slow(Moment, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="slow"):
    """From now on a node computes `factor` times slower than it would by itself; 1 undoes it."""

    host: str
    factor: Slowdown


class LinkDown(Moment, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="link_down"):
    """Nothing passes between a host and `other` (all others when empty): silence, or a reset of every connection."""

    host: str
    other: str = ""
    reset: bool = False


class LinkDownOneWay(
    Moment, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="link_down_one_way"
):
    """What a host sends is accepted and not delivered; what is sent to it arrives."""

    host: str
    other: str = ""


class LinkUp(Moment, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="link_up"):
    """What was cut is whole again, in both directions."""

    host: str
    other: str = ""


class LinkRate(Moment, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="link_rate"):
    """A host's uplink or downlink has another rate; what is not given stays."""

    host: str
    up: Rate | None = None
    down: Rate | None = None


class CoordinatorKill(
    Moment, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="coordinator_kill"
):
    """The coordinator ends without a word and is started again with --resume after a while."""

    back_after_s: Seconds = 1.0


NodeEvent = Join | Leave | Kill | Suspend | Resume | Slow
LinkEvent = LinkDown | LinkDownOneWay | LinkUp | LinkRate
EventSpec = NodeEvent | LinkEvent | CoordinatorKill


class ScenarioSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One experiment: a job, a fleet, and what happens to it."""

    name: Name
    seed: Seed = 0  # of everything that is drawn: jitter, loss, who is there when; not the job's
    run: str = "run.toml"  # the run file of the job, relative to this file
    links: LinksKind = "relay"  # namespaces: real TCP over shaped devices; needs root
    costs: Literal["assumed", "measured"] = "assumed"  # what plans are made of: this file, or what nodes measure
    limit_s: SomeSeconds = (
        600.0  # of training, recoveries included: then the step under way is done, saved, and the end
    )
    start_limit_s: SomeSeconds = 600.0  # before it: from the start of the first process until training begins
    resume: bool = True  # take the run up again when it fails because of a node, as long as enough hosts are there
    host: tuple[HostSpec, ...]
    coordinator: LinkSpec = LinkSpec()
    pair: tuple[PairSpec, ...] = ()
    event: tuple[EventSpec, ...] = ()
    trace: TraceSpec | None = None
