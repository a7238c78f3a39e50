"""Checkpoints on their way: which stage still owes files, and when a checkpoint may be sealed.

A core without I/O. A checkpoint is sealed only when all its files are here and its last step is committed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from brigade.coordinator.checkpoint_manifest import Manifest, block_of, missing_blocks
from brigade.coordinator.run_events import CollectParts, DropCheckpoint, OpenCheckpoint, RunCommand, SealCheckpoint
from brigade.coordinator.wording import block_range
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.message_parts import FileSpec
from brigade.wire.messages import StateSaved
from brigade.wire.plan import Plan

ManifestMaker = Callable[[int, int, tuple[FileSpec, ...]], Manifest]  # (steps done, tokens seen, files)


@dataclass(slots=True)
class _Save:
    files: dict[int, tuple[FileSpec, ...]] = field(default_factory=dict)  # by stage
    stored: set[int] = field(default_factory=set)
    tokens_seen: int | None = None  # known once the step is committed
    sealing: bool = False
    received_bytes: int = 0
    moved_at: float = 0.0  # when its step was committed or something of it came, whatever was later

    @property
    def awaits_files(self) -> bool:
        """Tell whether it waits for nothing but files."""
        return self.tokens_seen is not None and not self.sealing


class SaveRounds:
    """The checkpoints of one plan that have been ordered and are neither sealed nor given up."""

    def __init__(self, plan: Plan, keep: int, make_manifest: ManifestMaker) -> None:
        self._plan = plan
        self._keep = keep
        self._make_manifest = make_manifest
        self._saves: dict[int, _Save] = {}

    # --- questions ----------------------------------------------------------------------------------------------

    @property
    def pending(self) -> list[int]:
        """Return the checkpoints on their way, as numbers of steps done."""
        return sorted(self._saves)

    def owing(self, steps_done: int) -> list[int]:
        """Return the stages whose files are not all here."""
        save = self._saves.get(steps_done)
        return [] if save is None else [k for k in range(len(self._plan.stages)) if k not in save.stored]

    def received_bytes(self, steps_done: int) -> int:
        """Return how much of a checkpoint has come in."""
        save = self._saves.get(steps_done)
        return save.received_bytes if save else 0

    def still_since(self) -> float | None:
        """Return since when nothing has come of a checkpoint whose step is committed; None when none is awaited."""
        return min((save.moved_at for save in self._saves.values() if save.awaits_files), default=None)

    def stuck(self, since: float) -> list[int]:
        """Return the checkpoints whose step is committed and of which nothing has come since then."""
        return [number for number, save in self._saves.items() if save.awaits_files and save.moved_at <= since]

    # --- what happens -------------------------------------------------------------------------------------------

    def open(self, steps_done: int) -> list[RunCommand]:
        """Make room for the checkpoint that has just been ordered."""
        self._saves[steps_done] = _Save()
        nodes = {stage.contact.node_id: range(stage.first_block, stage.end_block) for stage in self._plan.stages}
        return [OpenCheckpoint(steps_done=steps_done, nodes=nodes)]

    def take_files(self, message: StateSaved, now: float) -> list[RunCommand]:
        """Take a stage's announcement of its files.

        Raises RemoteProtocolError for files that are not those of the stage's blocks.
        """
        steps_done = message.step + 1
        save = self._saves.get(steps_done)
        if save is None or message.stage in save.files:
            return []  # given up in the meantime
        stage = self._plan.stages[message.stage]
        files = tuple(FileSpec(name=f.name.rpartition("/")[2], size=f.size, sha256=f.sha256) for f in message.files)
        blocks = {block_of(file.name) for file in files}  # None for a file of no block
        if blocks != set(range(stage.first_block, stage.end_block)) or len({f.name for f in files}) != len(files):
            names = ", ".join(file.name for file in files)
            raise RemoteProtocolError(
                f"stage {message.stage} has {block_range(stage.first_block, stage.end_block - 1)}, but saved {names}"
            )
        save.files[message.stage] = files
        save.moved_at = now
        return [CollectParts(steps_done=steps_done, stage=message.stage, files=files)]

    def progressed(self, steps_done: int, received_bytes: int, now: float) -> None:
        """Take note of how much has come in."""
        save = self._saves.get(steps_done)
        if save is not None and received_bytes > save.received_bytes:
            save.received_bytes = received_bytes
            save.moved_at = now

    def parts_stored(self, steps_done: int, stage: int, now: float) -> list[RunCommand]:
        """Take note that all files of a stage are here."""
        if (save := self._saves.get(steps_done)) is not None:
            save.stored.add(stage)
            save.moved_at = now
        return self._seal(steps_done)

    def committed(self, steps_done: int, tokens_seen: int, now: float) -> list[RunCommand]:
        """Take note that the last step of a checkpoint is safe in the ledger."""
        if (save := self._saves.get(steps_done)) is not None:
            save.tokens_seen = tokens_seen
            save.moved_at = now
        return self._seal(steps_done)

    def closed(self, steps_done: int) -> None:
        """Take note that a checkpoint is sealed or has failed."""
        self._saves.pop(steps_done, None)

    def give_up(self, stage: int) -> list[RunCommand]:
        """Drop every checkpoint to which this stage still owes files: its node has gone."""
        lost = [steps_done for steps_done, save in self._saves.items() if stage not in save.stored]
        for steps_done in lost:
            del self._saves[steps_done]
        return [DropCheckpoint(steps_done=steps_done) for steps_done in lost]

    def give_up_older(self, steps_done: int) -> list[RunCommand]:
        """Drop what still waits for files of checkpoints before this one, which is sealed."""
        lost = [number for number, save in self._saves.items() if number < steps_done and not save.sealing]
        for number in lost:
            del self._saves[number]
        return [DropCheckpoint(steps_done=number) for number in lost]

    def give_up_uncommitted(self, except_for: int | None) -> list[RunCommand]:
        """Drop every checkpoint whose last step will never be committed; one that is being stored is spared."""
        lost = [
            steps_done
            for steps_done, save in self._saves.items()
            if save.tokens_seen is None and steps_done != except_for
        ]
        for steps_done in lost:
            del self._saves[steps_done]
        return [DropCheckpoint(steps_done=steps_done) for steps_done in lost]

    def _seal(self, steps_done: int) -> list[RunCommand]:
        save = self._saves.get(steps_done)
        if save is None or save.sealing or save.tokens_seen is None or self.owing(steps_done):
            return []
        files = tuple(file for stage in sorted(save.files) for file in save.files[stage])
        if missing_blocks(files, self._plan.stages[-1].end_block):  # the stages' checks make this impossible
            raise AssertionError(f"checkpoint {steps_done} lacks blocks {missing_blocks(files, len(files))}")
        save.sealing = True
        return [SealCheckpoint(manifest=self._make_manifest(steps_done, save.tokens_seen, files), keep=self._keep)]
