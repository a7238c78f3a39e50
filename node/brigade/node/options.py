"""What a person may choose about one node daemon."""

from dataclasses import dataclass
from pathlib import Path

from brigade.node.emulated_speed import SpeedSource
from brigade.wire.endpoint import check_host, parse_endpoint
from brigade.wire.invite import Invite


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """The choices of `brigade join`; `None` and 0 leave the choice to the daemon.

    Raises ConfigError for an invite or an address that nobody can use, so that a slip of the hand is answered before
    torch is imported, which takes seconds.
    """

    invite: str  # the text that the coordinator printed
    name: str | None = None
    state_dir: Path | None = None  # None: the first free one below $XDG_STATE_HOME/brigade/nodes
    device: str = "auto"  # auto, cpu, cuda:N, mps
    listen: str = "0.0.0.0:0"
    advertise: str = ""  # host that other nodes shall use; empty: the address that the coordinator sees
    threads: int | None = None  # of torch; None: the cores that are free for this node
    memory_limit_bytes: int = 0  # 0: what the device has
    trusted: tuple[str, ...] = ()  # packages whose functions a run file may name
    patience_s: float = 600.0  # how long to look for a coordinator that has gone
    emulate: str = ""  # pretend to have a device of this speed: `2x`, `0.05 s/GFLOP`, or `@FILE` with one of them
    timeline: Path | None = None  # a file for what this node does when; None: nothing is recorded
    verbosity: int = 0  # -1 quiet, 0 warnings and milestones, 1 detail

    def __post_init__(self) -> None:
        Invite.parse(self.invite)
        if self.emulate:
            SpeedSource(self.emulate)
        parse_endpoint(self.listen)
        if self.advertise:
            check_host(self.advertise)
