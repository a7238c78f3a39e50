"""The job of a contest in the words of each contender, and which jobs all of them can do alike."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
from msgspec.structs import replace

from brigade.compression.dtypes import DTYPES
from brigade.coordinator.run_file import RunFile
from brigade.lab.scenario import Scenario
from brigade.lab.scenario_spec import HostSpec, ScenarioSpec
from brigade.lab.yardstick import Contender
from brigade.wire.errors import ConfigError
from brigade.wire.plan import Plan
from brigade.wire.run_spec import FactoryData, RunSpec

PATIENCE_S = 3600.0  # of a run with nodes that stand still while others have their turn
SPEED = "0.03 s/GFLOP"  # of every node when plans are made on paper: an even cut is the same everywhere


def check(run: RunFile, stages: Sequence[int], steps: int) -> None:
    """Raise ConfigError for a job that the contenders cannot all do, or not alike."""
    spec, training = run.spec, run.spec.training
    if training.batch_size % training.microbatches:
        raise ConfigError(
            f"{run.path}: training.microbatches: a batch of {training.batch_size} in {training.microbatches} parts; "
            "the yardstick needs equal ones"
        )
    if training.microbatches < max(stages):
        raise ConfigError(f"{run.path}: training.microbatches: {max(stages)} stages need at least as many for 1F1B")
    if training.bf16:
        raise ConfigError(f"{run.path}: training.bf16: the yardstick compares fp32 only")
    if run.data is not None and steps > (whole := run.data.train_count // training.batch_size):
        raise ConfigError(f"{run.path}: the data has {whole} whole batches, but {steps} steps are to be measured")
    if getattr(spec.model, "tie_word_embeddings", False):
        raise ConfigError(f"{run.path}: model.tie_word_embeddings: torch.distributed.pipelining ties no parameters")


def variant(run: RunFile, contender: Contender, stages: int, *, steps: int, eval_every: int = 0) -> RunSpec:
    """Return the run of one contender: nothing but the schedule, the codecs and the length differ from the file."""
    spec = run.spec
    warm_up = min(spec.training.warmup_steps, steps)  # of the learning rate
    training = replace(spec.training, max_steps=steps, warmup_steps=warm_up, eval_steps=eval_every, save_steps=0)
    if not eval_every:
        training = replace(training, eval_batches=1)
    pipeline = replace(spec.pipeline, nodes=stages, stages=stages, silence_limit_s=PATIENCE_S)
    if contender.schedule:
        pipeline = replace(pipeline, schedule=contender.schedule)
    compression = spec.compression
    if contender.codecs is not None:
        compression = replace(compression, forward=contender.codecs[0], backward=contender.codecs[1])
    data = spec.data
    if not isinstance(data, FactoryData) and run.data_path is not None:
        data = replace(data, path=str(run.data_path.absolute()))
    return replace(spec, training=training, pipeline=pipeline, compression=compression, data=data, output_dir=None)


def write_run_file(path: Path, spec: RunSpec) -> None:
    """Write a run file; what has no value is left out."""
    path.write_bytes(tomli_w.dumps(_without_none(msgspec.to_builtins(spec))).encode())


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value


def even_scenario(run: RunFile, stages: int) -> Scenario:
    """Return a fleet of equal nodes on one machine, for a plan on paper that nothing else on the machine disturbs."""
    hosts = tuple(HostSpec(name=f"node-{number + 1}", emulate=SPEED) for number in range(stages))
    return Scenario(path=run.path, spec=ScenarioSpec(name=run.spec.name, host=hosts), hosts=hosts, events=(), run=run)


def at_own_speed(scenario: Scenario) -> Scenario:
    """Return a scenario whose devices are this machine's, equal on paper: torch emulates none."""
    hosts = tuple(replace(host, emulate=SPEED, device="") for host in scenario.hosts)
    return Scenario(path=scenario.path, spec=scenario.spec, hosts=hosts, events=(), run=scenario.run)


def boundary_bytes(plan: Plan, tokens: int, samples: int) -> tuple[float, float]:
    """Return the bytes a token, forwards and backwards, that cross all boundaries of a plan as they are.

    `tokens` are those of a microbatch with `samples` samples.
    """
    forward = backward = 0
    for boundary in plan.boundaries:
        for leaf in boundary.leaves:
            dtype = DTYPES[leaf.dtype]
            size = dtype.item_bytes * math.prod(leaf.shape(samples))
            forward += size
            backward += size if dtype.kind in {"float", "complex"} else 0
    return forward / tokens, backward / tokens
