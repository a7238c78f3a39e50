"""Simulates an experiment instead of carrying it out, and leaves the same files for whatever reads them."""

from collections import defaultdict
from pathlib import Path

from brigade.coordinator.costs import COSTS_NAME, Costs
from brigade.lab.assumed import TYPICAL, Assumption
from brigade.lab.calibration import calibrate
from brigade.lab.examine import examine_prediction
from brigade.lab.predict import predict
from brigade.lab.result import Result
from brigade.lab.runner import NODES_DIR
from brigade.lab.scenario import Scenario
from brigade.node.datasets import open_source
from brigade.node.timeline import Entry, to_lines
from brigade.partition.prediction import Handling
from brigade.wire.errors import ConfigError


def simulate_experiment(
    scenario: Scenario, directory: Path, seed: int | None = None, handling: Handling | None = None
) -> Result:
    """Return what a scenario would come to; costs and timelines lie in the directory afterwards.

    `handling` is what everything beside the arithmetic costs on the machine that would carry it out; None: this one,
    where it is measured. Raises BrigadeError when its nodes could make no plan.
    """
    assumption = Assumption(scenario)
    source = scenario.run.data or open_source(scenario.run.spec.data)
    if handling is None:
        handling = measure_handling(scenario, assumption.costs())
    prediction = predict(scenario, source, assumption, handling, seed)
    costs = assumption.costs(handling=handling)
    (directory / COSTS_NAME).write_bytes(costs.to_json())
    entries: defaultdict[str, list[Entry]] = defaultdict(list)
    for life in prediction.lives:
        entries[life.began.node] += [life.began, *life.actions]
    nodes = directory / NODES_DIR
    nodes.mkdir(parents=True, exist_ok=True)
    for node, noted in entries.items():
        (nodes / f"{node}.timeline").write_bytes(to_lines(noted))
    return examine_prediction(scenario, prediction, costs)


def measure_handling(scenario: Scenario, costs: Costs) -> Handling:
    """Return what handling the largest value between two blocks costs here; what is usual where a lab cannot run."""
    blocks = next(iter(costs.nodes.values())).blocks
    sizes = [block.output_bytes for block in blocks[:-1]]
    if not sizes:
        return TYPICAL
    boundary = costs.boundaries[sizes.index(max(sizes))]
    try:
        return calibrate(boundary, costs.microbatch_samples, scenario.run.spec.compression.forward)
    except ConfigError:
        return TYPICAL
