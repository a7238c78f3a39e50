"""How large a simulated crowd is and how it behaves, and the run that it takes part in."""

from functools import cached_property

from msgspec import Struct

from brigade.lab.availability import Period, draw_periods
from brigade.lab.availability_spec import TraceSpec
from brigade.partition.batching import Batching
from brigade.wire.run_spec import GptSpec, PipelineSpec, RunSpec, TextData, TrainingSpec

TRAIN_SAMPLES = 1_000_000


class CrowdSpec(Struct, frozen=True, kw_only=True, dict=True):
    """A crowd; seconds are of the virtual clock."""

    nodes: int = 5000
    blocks: int = 64
    stages: int | None = None  # None: as many as the planner finds best
    seconds: float = 120.0
    step_s: float = 1.0
    compress: float = 60.0  # how many times faster than published the nodes come and go
    seed: int = 0
    memory_bytes: int = 2 << 30  # of each node: about four blocks

    @property
    def trace(self) -> TraceSpec:
        """Return whom to draw: volunteers in the evening."""
        hours = self.seconds * self.compress / 3600
        return TraceSpec(generator="volunteers", hours=hours, compress=self.compress, shortest_s=0.0)

    @cached_property
    def run(self) -> RunSpec:
        """Return the run file: without checkpoints and held-out data, whose files are the shell's work."""
        return RunSpec(
            name="crowd",
            model=GptSpec(),
            data=TextData(path="text.txt"),
            training=TrainingSpec(
                max_steps=1_000_000, batch_size=256, microbatches=32, save_steps=0, eval_steps=0, logging_steps=1000
            ),
            pipeline=PipelineSpec(nodes=min(self.nodes, 2 * self.blocks), stages=self.stages, gather_timeout_s=3600.0),
        )

    @cached_property
    def _batching(self) -> Batching:
        training = self.run.training
        return Batching(
            samples=TRAIN_SAMPLES,
            batch_size=training.batch_size,
            microbatches=training.microbatches,
            seed=self.run.seed,
            shuffle=training.shuffle,
        )

    def draw(self) -> list[Period]:
        """Return when volunteers are there: of as many as it takes for `nodes` to be there at the beginning."""
        periods: list[Period] = []
        there = number = 0
        while there < self.nodes:
            drawn = draw_periods(self.trace, [f"volunteer-{number}"], self.seed)
            there += any(period.start_s == 0.0 for period in drawn)
            periods += drawn
            number += 1
        return periods

    def sample_ids(self, step: int) -> list[int]:
        """Return the samples that belong to a step."""
        return [int(i) for i in self._batching.sample_ids(step)]
