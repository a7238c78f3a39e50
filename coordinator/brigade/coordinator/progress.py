"""Shows a run to the person who started it: a bar on a terminal, plain lines elsewhere, JSON lines on request."""

import json
import sys
import time
from collections.abc import Callable
from typing import IO, Literal

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from brigade.coordinator.forgiving_stream import forgiving
from brigade.coordinator.run_events import Note
from brigade.coordinator.run_state import RunState, Tally
from brigade.coordinator.run_table import State
from brigade.coordinator.wording import counted, show_duration
from brigade.wire.harmless import harmless
from brigade.wire.run_spec import RunSpec

Mode = Literal["bar", "lines", "json", "quiet"]

_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}


def choose_mode(*, quiet: bool, json_lines: bool) -> Mode:
    """Return how to show a run on this process's standard output."""
    if json_lines:
        return "json"
    if quiet:
        return "quiet"
    return "bar" if forgiving(sys.stdout).isatty() else "lines"


class Display:
    """What is shown of one run; `look` is called after everything that happens."""

    def __init__(
        self,
        mode: Mode,
        *,
        show_info: bool = True,
        output: IO[str] | None = None,
        errors: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,  # that of the run core
    ) -> None:
        self._mode = mode
        self._clock = clock
        self._show_info = show_info  # False: the log shows them already
        self._output = Console(file=output or forgiving(sys.stdout), highlight=False, soft_wrap=True)
        self._errors = Console(file=errors or forgiving(sys.stderr), highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._countdown: Live | None = None
        self._awaited: tuple[str, float] = ("", 0.0)  # whom the run waits for, and until when
        self._shown_causes: list[str] = []
        self._shown_steps = -1
        self._shown_evaluation = -1

    def greet(self, name: str, endpoint: str, invite: str) -> None:
        """Show where the run listens and the line that starts a node."""
        if self._mode == "json":
            self._write_json("listening", run=name, endpoint=endpoint, invite=invite)
        elif self._mode != "quiet":
            self._output.print(Text(f"Run {name} listens at {endpoint}. Start each node with:"))
            self._output.print(Text(f"\n  brigade join {invite}\n", style="bold"))

    def note(self, note: Note) -> None:
        """Show something that has happened; warnings and errors also in quiet."""
        if self._mode == "json":
            self._write_json("note", kind=note.kind, text=harmless(note.text), node=note.node, level=note.level)
            return
        if note.kind == "waiting" and self._countdown is not None:
            return
        text = Text(harmless(self._without_shown_cause(note.text)), style=_STYLES[note.level])
        if note.cause:
            self._shown_causes.append(note.cause)
        if note.level != "info":
            console = self._output if self._bar or self._countdown else self._errors  # one that moves the bar away
            console.print(Text(f"{note.level}: ", style=_STYLES[note.level]) + text)
        elif self._mode != "quiet" and self._show_info:
            self._output.print(text)

    def look(self, run: RunState) -> None:
        """Show how far the run has come, if that is news."""
        if self._mode == "bar":
            self._count_down(run)
        tally = run.tally
        if tally.last_commit is not None and tally.steps_done != self._shown_steps:
            self._shown_steps = tally.steps_done
            self._show_step(tally, run.spec)
        if run.state is not State.TRAINING:
            self._stop_bar()  # what follows is about the end
        evaluation = tally.last_evaluation
        if evaluation is not None and evaluation.step != self._shown_evaluation:
            self._shown_evaluation = evaluation.step
            if self._mode == "json":
                self._write_json("evaluation", step=evaluation.step + 1, loss=evaluation.loss)
            elif self._mode != "quiet" and evaluation.loss is not None:
                self._output.print(
                    Text(f"validation loss {evaluation.loss:.4f} after {counted(evaluation.step + 1, 'step')}")
                )

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._stop_bar()
        if self._countdown is not None:
            self._countdown.stop()
            self._countdown = None

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _without_shown_cause(self, text: str) -> str:
        """Return what is new in a text that begins with what was shown before."""
        for cause in self._shown_causes:
            if text.startswith(cause):
                rest = text.removeprefix(cause).lstrip(";, ")
                return f"the run ends: {rest}" if rest else "the run ends"
        return text

    def _count_down(self, run: RunState) -> None:
        """Keep a last line with the time that is left for nodes to come, while the run waits for them."""
        if run.state is not State.GATHERING or run.limit is None:
            if self._countdown is not None:
                self._countdown.stop()
                self._countdown = None
            return
        self._awaited = f"{len(run.membership.members)} of {run.spec.pipeline.nodes}", run.limit.at
        if self._countdown is None:
            self._countdown = Live(
                get_renderable=self._show_awaited, console=self._output, refresh_per_second=1, transient=True
            )
            self._countdown.start()

    def _show_awaited(self) -> Text:
        nodes, until = self._awaited
        left = show_duration(max(0.0, until - self._clock()))
        return Text(f"waiting for nodes ({nodes}, giving up in {left})", style="dim")

    def _show_step(self, tally: Tally, spec: RunSpec) -> None:
        commit, max_steps, every = tally.last_commit, spec.training.max_steps, spec.training.logging_steps
        assert commit is not None
        left_s = tally.time_left_s(max_steps)
        if self._mode == "json":
            self._write_json(
                "step",
                step=tally.steps_done,
                max_steps=max_steps,
                loss=commit.loss,
                gradient_norm=commit.gradient_norm,
                learning_rate=commit.learning_rate,
                tokens=tally.tokens_seen,
                tokens_per_s=round(tally.tokens_per_s, 1),
                time_left_s=None if left_s is None else round(left_s, 1),
            )
            return
        loss = "-" if commit.loss is None else f"{commit.loss:.4f}"
        per_s, unit = tally.throughput(spec)
        rate, left = f"{per_s:,.0f} {unit}/s", f"{show_duration(left_s)} left"
        if self._mode == "bar":
            self._move_bar(tally.steps_done, max_steps, f"loss {loss}  {rate}  {left}")
        elif self._mode == "lines" and (tally.steps_done % every == 0 or tally.steps_done in (1, max_steps)):
            self._output.print(Text(f"step {tally.steps_done}/{max_steps}  loss {loss}  {rate}  {left}"))

    def _move_bar(self, steps_done: int, max_steps: int, facts: str) -> None:
        if self._bar is None:
            columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[facts]}"))
            self._bar = Progress(*columns, console=self._output, refresh_per_second=4)
            self._bar.add_task("", total=max_steps, facts=facts)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=steps_done, facts=facts)

    def _write_json(self, event: str, **facts: object) -> None:
        self._output.out(json.dumps({"event": event, **facts}), highlight=False)
