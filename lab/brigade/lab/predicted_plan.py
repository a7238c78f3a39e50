"""One plan of a predicted run: made by the planner as the coordinator would, and laid out for the simulator."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from brigade.compression.spec import ratio
from brigade.coordinator.costs import Costs, GivenCosts
from brigade.partition.cost_tables import Measurements
from brigade.partition.fixed_order import Split
from brigade.partition.line import Line
from brigade.partition.prediction import MESSAGE_BYTES, Handling, lay_line, lay_round
from brigade.partition.simulation.run import UpdateRound
from brigade.partition.solve import plan
from brigade.wire.costs import ChainReport, DeviceReport
from brigade.wire.plan import NodeContact, Plan
from brigade.wire.run_spec import RunSpec

RUN_ID = "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPlan:
    """A plan, and the line that it makes; bytes are of one microbatch, by hop, as they travel."""

    plan: Plan
    line: Line
    update_round: UpdateRound
    activation_bytes: tuple[float, ...]
    gradient_bytes: tuple[float, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes that hold a stage, in order."""
        return tuple(stage.contact.name for stage in self.plan.stages)


def form(
    costs: Costs,
    names: Sequence[str],
    spec: RunSpec,
    samples: tuple[int, int],
    generation: int,
    handling: Handling,
) -> PredictedPlan:
    """Return the plan that these costs make for these nodes, and what it will be like with such handling.

    `samples` are those to train and those held out. Raises PlanError when no plan is possible.
    """
    given = GivenCosts(costs, "the scenario")
    contacts = tuple(NodeContact(node_id=name, name=name, public_key="", endpoint="") for name in names)
    paper = ChainReport(fingerprint=costs.fingerprint, blocks=(), boundaries=(), tied=())
    chains = {name: given.chain(name, paper) for name in names}
    device = DeviceReport(kind="cpu", name="", memory_bytes=0, host="", threads=1, software="")
    devices = {name: given.device(name, device) for name in names}
    links = given.links(contacts)
    around = replace(given.surroundings(contacts), message_bytes=MESSAGE_BYTES)
    made = plan(RUN_ID, generation, contacts, devices, chains, links, spec, *samples, ratio, around)
    ordered = sorted(contacts, key=lambda contact: (contact.name, contact.node_id))
    measured = Measurements(ordered, devices, chains, links, spec, made.microbatches, ratio)
    split = split_of(made, [contact.node_id for contact in ordered])
    around = replace(around, handling=handling)
    sizes = [measured.blocks[0][cut - 1].output_bytes for cut in split.cuts[1:-1]]
    return PredictedPlan(
        plan=made,
        line=lay_line(measured, split, around),
        update_round=lay_round(measured, split, around),
        activation_bytes=tuple(size / ratio(spec.compression.forward) for size in sizes),
        gradient_bytes=tuple(size / ratio(spec.compression.backward) for size in sizes),
    )


def split_of(made: Plan, node_ids: Sequence[str]) -> Split:
    """Return a plan as numbers of nodes and blocks; what the solver thought of it is left out."""
    order = tuple(node_ids.index(stage.contact.node_id) for stage in made.stages)
    return Split(order, (0, *(stage.end_block for stage in made.stages)), 0.0, 0.0, 0.0)
