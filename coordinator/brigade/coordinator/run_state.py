"""What a run remembers: everything that the reactions of the run core read and change."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from brigade.coordinator.checkpoint_manifest import Manifest
from brigade.coordinator.costs import GivenCosts
from brigade.coordinator.run_events import Commit, Evaluation, Note, RunCommand, Tell
from brigade.coordinator.run_members import Member
from brigade.coordinator.run_membership import Membership
from brigade.coordinator.run_pacing import Pacing
from brigade.coordinator.run_saves import SaveRounds
from brigade.coordinator.run_steps import StepRounds
from brigade.coordinator.run_survey import Survey
from brigade.coordinator.run_table import State, Trigger
from brigade.coordinator.wording import block_range
from brigade.partition.batching import Batching
from brigade.wire.encoding import Message
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.message_parts import FileSpec, StageStatistics
from brigade.wire.plan import Boundary, Plan
from brigade.wire.run_spec import RunSpec, TextData, TokenData
from brigade.wire.validity import MAX_INT

SAVING_LIMIT_S = 300.0  # without a byte of an awaited checkpoint
RECENT_STEPS = 20
RECENT_NOTES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where this life of the coordinator takes the run up."""

    run_id: str
    spec: RunSpec
    identity: str  # of what may not change in the run file
    attempt: int  # counts the times that training was taken up from a checkpoint or from nothing
    generation: int  # of the newest plan that any life of the coordinator made; -1: none
    checkpoint: Manifest | None  # None: initial weights
    data: FileSpec | None  # None: nodes open the data themselves
    inputs: Boundary | None
    train_samples: int | None  # None: the nodes tell
    validation_samples: int | None
    costs: GivenCosts | None = None  # None: blocks and links are measured

    @property
    def first_step(self) -> int:
        """Return the step that is trained first."""
        return self.checkpoint.steps_done if self.checkpoint else 0


@dataclass(frozen=True, slots=True)
class News:
    """What has happened, sorted by membership: of which node, and with which event or message."""

    trigger: Trigger
    content: object = None
    member: Member | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run will end."""

    state: State
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Limit:
    """Until when something must have happened, and why the run fails if it has not."""

    at: float
    reason: str


@dataclass(slots=True, kw_only=True)
class Line:
    """What belongs to one plan: its stages, steps and checkpoints. Another plan means another line."""

    plan: Plan
    rounds: StepRounds
    saves: SaveRounds
    pacing: Pacing
    microbatch_count: Callable[[int], int]  # of a step
    stage_of: dict[str, int]  # by node id
    parameters: dict[int, int] = field(default_factory=dict)  # count by stage, once it stands
    storing: Commit | None = None
    totals: list[StageStatistics] = field(default_factory=list)  # by stage, over all steps of this plan
    steps: int = 0  # in `totals`

    def name_stage(self, stage: int) -> str:
        """Return, for a person, who holds which blocks."""
        held = self.plan.stages[stage]
        return f"{held.contact.name} (stage {stage}, {block_range(held.first_block, held.end_block - 1)})"


@dataclass(slots=True, kw_only=True)
class Tally:
    """How far the run has come, for status and progress."""

    steps_done: int = 0
    tokens_seen: int = 0
    sealed_steps: int | None = None  # of the newest checkpoint
    last_commit: Commit | None = None
    last_evaluation: Evaluation | None = None
    durations_s: list[float] = field(default_factory=list)  # of the newest steps
    tokens: list[int] = field(default_factory=list)  # of the same steps
    samples: list[int] = field(default_factory=list)
    export_path: str = ""

    def add(self, commit: Commit) -> None:
        """Count a committed step."""
        self.steps_done = commit.step + 1
        self.tokens_seen = min(self.tokens_seen + commit.tokens, MAX_INT)  # whatever is reported, it can be told on
        self.last_commit = commit
        self.durations_s = [*self.durations_s, commit.duration_s][-RECENT_STEPS:]
        self.tokens = [*self.tokens, commit.tokens][-RECENT_STEPS:]
        self.samples = [*self.samples, len(commit.samples)][-RECENT_STEPS:]

    @property
    def tokens_per_s(self) -> float:
        """Return the rate over the newest steps; 0 when nothing is known."""
        seconds = sum(self.durations_s)
        return sum(self.tokens) / seconds if seconds > 0 else 0.0

    def throughput(self, spec: RunSpec) -> tuple[float, str]:
        """Return what is trained in a second and what it is: tokens where targets are tokens, samples elsewhere."""
        seconds = sum(self.durations_s)
        if isinstance(spec.data, TextData | TokenData):
            return self.tokens_per_s, "tokens"
        return (sum(self.samples) / seconds if seconds > 0 else 0.0), "samples"

    @property
    def usual_step_s(self) -> float | None:
        """Return what a step took lately; None when nothing is known."""
        return usual(self.durations_s)

    def time_left_s(self, max_steps: int) -> float | None:
        """Return the seconds that the remaining steps will take at the pace of the newest ones."""
        step_s = self.usual_step_s
        return None if step_s is None else (max_steps - self.steps_done) * step_s


def usual(durations_s: Sequence[float]) -> float | None:
    """Return the upper median, which forgives a step that held an evaluation; None of nothing."""
    return sorted(durations_s)[len(durations_s) // 2] if durations_s else None


class RunState:
    """The mutable state of a run; only the reactions touch it."""

    def __init__(self, beginning: Beginning, membership: Membership) -> None:
        self.beginning = beginning
        self.spec = beginning.spec
        self.membership = membership
        self.state = State.GATHERING
        self.generation = beginning.generation
        self.attempt = beginning.attempt
        self.survey: Survey | None = None
        self.line: Line | None = None
        self.closing: Ending | None = None  # why the next step is the last one
        self.ending: Ending | None = None  # what awaits the last checkpoint
        self.exporting = False
        self.limit: Limit | None = None
        self.watch_at: float | None = None  # when a step counts as slow
        self.watch_interval_s = 0.0
        self.save_warned_at: float | None = None
        self.save_failure: tuple[int, str] = (-1, "")  # steps done of the newest checkpoint that failed, and why
        self.notes: deque[tuple[float, Note]] = deque(maxlen=RECENT_NOTES)  # with the moment of each
        checkpoint = beginning.checkpoint
        self.tally = Tally(
            steps_done=beginning.first_step,
            tokens_seen=checkpoint.tokens_seen if checkpoint else 0,
            sealed_steps=checkpoint.steps_done if checkpoint else None,
        )

    # --- whom to tell -------------------------------------------------------------------------------------------

    def tell_all(self, message: Message) -> list[RunCommand]:
        """Return the commands that send a message to every node that takes part."""
        return [Tell(connection=m.control, message=message) for m in self.membership.members.values()]

    def tell_line(self, message: Message) -> list[RunCommand]:
        """Return the commands that send a message to every stage of the plan."""
        assert self.line is not None
        members = self.membership.members
        contacts = (stage.contact.node_id for stage in self.line.plan.stages)
        return [Tell(connection=members[i].control, message=message) for i in contacts if i in members]

    def stage_of(self, member: Member) -> int | None:
        """Return the stage that a node holds; None for a spare."""
        return None if self.line is None else self.line.stage_of.get(member.node_id)

    def check_sender(self, news: News, stage: int) -> None:
        """Raise RemoteProtocolError unless this message is of the node that holds the stage."""
        assert news.member is not None
        if self.stage_of(news.member) != stage:
            raise RemoteProtocolError(f"{type(news.content).__name__} of stage {stage}, which it does not hold")

    # --- what a line needs --------------------------------------------------------------------------------------

    def make_line(self, plan: Plan, first_step: int) -> Line:
        """Return the line of a new plan, which starts at `first_step`."""
        training = self.spec.training
        batching = Batching(
            samples=plan.train_samples,
            batch_size=training.batch_size,
            microbatches=training.microbatches,
            seed=self.spec.seed,
            shuffle=training.shuffle,
        )

        def sample_ids(step: int) -> Sequence[int]:
            return [int(i) for i in batching.sample_ids(step)]

        def make_manifest(steps_done: int, tokens_seen: int, files: tuple[FileSpec, ...]) -> Manifest:
            return Manifest(
                run_id=self.beginning.run_id,
                identity=self.beginning.identity,
                steps_done=steps_done,
                attempt=self.attempt,
                generation=plan.generation,
                tokens_seen=tokens_seen,
                blocks=plan.stages[-1].end_block,
                files=files,
                tied=plan.tied,
            )

        return Line(
            plan=plan,
            rounds=StepRounds(training, plan, attempt=self.attempt, first_step=first_step, sample_ids=sample_ids),
            saves=SaveRounds(plan, training.save_total_limit, make_manifest),
            pacing=Pacing(plan, {} if self.survey is None else self.survey.links),
            microbatch_count=batching.microbatch_count,
            stage_of={stage.contact.node_id: index for index, stage in enumerate(plan.stages)},
            totals=[StageStatistics() for _ in plan.stages],
        )
