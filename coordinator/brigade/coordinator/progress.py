"""Shows a run to the person who started it: a bar on a terminal, plain lines elsewhere, JSON lines on request."""

import json
import sys
from typing import IO, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from brigade.coordinator.run_events import Note
from brigade.coordinator.run_state import RunState, Tally
from brigade.wire.harmless import harmless

Mode = Literal["bar", "lines", "json", "quiet"]

_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}


def choose_mode(*, quiet: bool, json_lines: bool) -> Mode:
    """Return how to show a run on this process's standard output."""
    if json_lines:
        return "json"
    if quiet:
        return "quiet"
    return "bar" if sys.stdout.isatty() else "lines"


class Display:
    """What is shown of one run; `look` is called after everything that happens."""

    def __init__(
        self, mode: Mode, *, show_info: bool = True, output: IO[str] | None = None, errors: IO[str] | None = None
    ) -> None:
        self._mode = mode
        self._show_info = show_info  # False: the log shows them already
        self._output = Console(file=output, highlight=False, soft_wrap=True)
        self._errors = Console(file=errors, stderr=errors is None, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
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
        text = Text(harmless(note.text), style=_STYLES[note.level])
        if note.level != "info":
            console = self._bar.console if self._bar else self._errors
            console.print(Text(f"{note.level}: ", style=_STYLES[note.level]) + text)
        elif self._mode != "quiet" and self._show_info:
            (self._bar.console if self._bar else self._output).print(text)

    def look(self, run: RunState) -> None:
        """Show how far the run has come, if that is news."""
        tally, training = run.tally, run.spec.training
        if tally.last_commit is not None and tally.steps_done != self._shown_steps:
            self._shown_steps = tally.steps_done
            self._show_step(tally, training.max_steps, training.logging_steps)
        evaluation = tally.last_evaluation
        if evaluation is not None and evaluation.step != self._shown_evaluation:
            self._shown_evaluation = evaluation.step
            if self._mode == "json":
                self._write_json("evaluation", step=evaluation.step + 1, loss=evaluation.loss)
            elif self._mode != "quiet" and evaluation.loss is not None:
                console = self._bar.console if self._bar else self._output
                console.print(Text(f"validation loss {evaluation.loss:.4f} after {evaluation.step + 1} steps"))

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show_step(self, tally: Tally, max_steps: int, every: int) -> None:
        commit = tally.last_commit
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
        rate, left = f"{tally.tokens_per_s:,.0f} tokens/s", f"{show_duration(left_s)} left"
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


def show_duration(seconds: float | None) -> str:
    """Return seconds as `1:02:03` or `2:03`; a dash for what is not known."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
