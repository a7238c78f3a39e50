"""Structured logs: one JSON object a line, bounded on disk, quiet on the terminal, never holding a secret."""

import json
import logging
import logging.handlers
from pathlib import Path

from brigade.wire.harmless import harmless

MAX_LOG_BYTES = 8 * 1024 * 1024
KEPT_LOGS = 2
MOST_CHARACTERS = 8000  # of one message in the file

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Format a record as one line of JSON; fields given as `extra=` stand beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        entry: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "from": record.name.removeprefix("brigade."),
            "message": harmless(record.getMessage(), MOST_CHARACTERS),
        }
        entry |= {key: value for key, value in vars(record).items() if key not in _PLAIN}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class PlainLines(logging.Formatter):
    """Format a record for a person, on one line: information as it is, anything graver with its level in front."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        prefix = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return prefix + harmless(record.getMessage())


class QuietFileHandler(logging.handlers.RotatingFileHandler):
    """A rotating file that never takes the program down: a full or missing disk costs lines only."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of the standard library
        """Drop the record: the log must not stop what it describes."""


def open_journal(state_dir: Path, *, verbosity: int = 0, file_name: str = "log.jsonl") -> None:
    """Send the program's log to `state_dir/log.jsonl` and what a person should see to stderr.

    `verbosity` on stderr: -1 warnings and errors, 0 milestones as well (information), 1 and more everything.
    """
    root, foreign = logging.getLogger("brigade"), logging.getLogger("asyncio")
    for handler in list(root.handlers):
        root.removeHandler(handler)
        foreign.removeHandler(handler)
        handler.close()
    root.setLevel(logging.DEBUG if verbosity >= 1 else logging.INFO)
    foreign.setLevel(logging.WARNING)  # a bug in a callback: its traceback is for the file, not for the screen
    root.propagate = foreign.propagate = False
    terminal = logging.StreamHandler()
    terminal.setLevel({-1: logging.WARNING, 0: logging.INFO}.get(verbosity, logging.DEBUG))
    terminal.setFormatter(PlainLines())
    handlers: list[logging.Handler] = [terminal]
    try:
        file = QuietFileHandler(
            state_dir / file_name, maxBytes=MAX_LOG_BYTES, backupCount=KEPT_LOGS, encoding="utf-8", delay=False
        )
        file.setFormatter(JsonLines())
        handlers.append(file)
        problem = None
    except OSError as error:
        problem = error
    for handler in handlers:
        root.addHandler(handler)
        foreign.addHandler(handler)
    if problem is not None:
        root.warning("cannot write the log %s: %s; going on without it", state_dir / file_name, problem.strerror)
