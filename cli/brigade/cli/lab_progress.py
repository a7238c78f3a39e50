"""How an experiment goes, on a terminal: what happens as lines, and the steps as a bar or as a line now and then."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

LINES = 10  # of steps, where there is no terminal


class LabProgress:
    """Shows one experiment; see `brigade.lab.happenings.Watcher`."""

    def __init__(self, console: Console, max_steps: int) -> None:
        self._console = console
        self._every = max(1, max_steps // LINES)
        columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[facts]}"))
        self._bar = Progress(*columns, console=console, refresh_per_second=4, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=max_steps, facts="starting")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def said(self, at_s: float, text: str) -> None:
        """Show what has happened; times before training are those since the start."""
        moment = f"{at_s:8.1f} s" if at_s >= 0 else "         -"
        self._console.print(Text(f"{moment}  {text}"))

    def stepped(self, done: int, max_steps: int, loss: float | None, tokens_per_s: float) -> None:
        """Show how far it is."""
        facts = f"loss {'-' if loss is None else f'{loss:.3f}'}  {tokens_per_s:,.0f} tokens/s"
        self._bar.update(self._task, completed=done, facts=facts)
        if self._bar.disable and (done % self._every == 0 or done == max_steps):
            self._console.print(Text(f"            step {done}/{max_steps}  {facts}"))
