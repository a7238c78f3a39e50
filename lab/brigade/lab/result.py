"""What came out of an experiment, as one value and as JSON with stable keys; the README of the lab documents them."""

from msgspec import DecodeError, Struct, ValidationError, field, json

from brigade.lab.relay_orders import RouteCount
from brigade.wire.errors import ConfigError

RESULT_VERSION = 1


class Point(Struct, frozen=True):
    """One point of the loss curve."""

    step: int  # counts from 1
    at_s: float  # after training began; of the attempt that counts
    tokens: int  # trained by then
    loss: float | None


class Losses(Struct, frozen=True, kw_only=True):
    """Nats per target token."""

    first: float | None
    last: float | None
    validation: float | None  # the last held-out loss
    curve: tuple[Point, ...]
    held_out: tuple[tuple[int, float | None], ...]  # step, loss


class Wire(Struct, frozen=True, kw_only=True):
    """What the links carried."""

    activation_bytes_per_token: float  # payload, over all links between stages
    gradient_bytes_per_token: float
    bytes: int  # everything that the relay delivered: encryption, heartbeats, checkpoints and measurements included
    routes: tuple[RouteCount, ...]


class StageWaits(Struct, frozen=True, kw_only=True):
    """Where the seconds of a stage went, over the whole run: `forward_s` to `recovery_s` add up to `wall_s`."""

    stage: int
    node: str  # that held it last
    wall_s: float
    covered: float = 1.0  # the share of the run of which something is known; the rest is not in `wall_s`
    forward_s: float
    backward_s: float
    optimizer_s: float  # sums of gradients included
    evaluation_s: float = 0.0
    starved_s: float = 0.0  # its input was not computed yet
    blocked_s: float = 0.0  # it could have run a forward, but the order wanted a backward first
    gated_s: float = 0.0  # from its last microbatch of a step until the next step may begin
    encoding_s: float = 0.0  # its input was being encoded or decoded
    sending_s: float = 0.0  # its input was on its way: time on the line and latency
    overhead_s: float = 0.0  # its input was there; snapshots, and the node's own work between two actions
    recovery_s: float = 0.0  # no plan was at work
    encode_s: float  # beside the computing, on threads of their own
    decode_s: float


class LinkUse(Struct, frozen=True, kw_only=True):
    """What passed from one stage to a neighbour."""

    source: str = field(name="from")
    target: str = field(name="to")
    bytes: int  # payload
    busy_share: (
        float | None
    )  # of the time, for which it kept the narrowest line on its way busy; None: no line is known
    sending_s: float  # from being handed over until whole, summed over values
    waiting_s: float  # of the target's device for that


class Ledger(Struct, frozen=True, kw_only=True):
    """Samples that contributed to committed steps; `lost` and `repeated` are 0 in any sound run."""

    committed: int
    lost: int
    repeated: int


class Result(Struct, frozen=True, kw_only=True):
    """See the module."""

    version: int
    predicted: bool = False  # nothing ran
    scenario: str
    seed: int
    exit_code: int | None
    reason: str
    steps_committed: int
    max_steps: int
    tokens: int
    seconds: float  # from the beginning of training to the last committed step, recoveries included
    tokens_per_s: float
    bound_tokens_per_s: float | None
    best_bound_tokens_per_s: float | None = None  # over all choices, orders and cuts of nodes
    efficiency: float | None
    limited_by: str
    loss: Losses
    wire: Wire
    link_kind: str | None = None  # relay or namespaces; None: nothing ran, or a result without it
    waits: tuple[StageWaits, ...]
    links: tuple[LinkUse, ...] = ()
    stages: tuple[str, ...]  # "node: first block-last block"
    recoveries: int
    replayed_steps: int | None = None  # commits of steps that had been committed before; None: a result without it
    moves: int
    ledger: Ledger
    events: tuple[tuple[float, str], ...]
    relay_late_mean_s: float
    relay_late_most_s: float

    def to_json(self) -> bytes:
        """Return the result as indented JSON."""
        return json.format(json.encode(self), indent=2) + b"\n"


class _Head(Struct):
    version: int


def parse_result(data: bytes, where: str) -> Result:
    """Return the result that a file holds. Raises ConfigError, which names `where`, for anything else."""
    try:
        version = json.decode(data, type=_Head).version
        if version != RESULT_VERSION:
            raise ConfigError(f"{where}: version {version} of results; this version of brigade reads {RESULT_VERSION}")
        return json.decode(data, type=Result)
    except ValidationError as error:
        raise ConfigError(f"{where} is not the result of an experiment: {error}") from error
    except DecodeError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error
