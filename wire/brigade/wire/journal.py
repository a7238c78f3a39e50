"""Structured logs: one JSON object a line, bounded on disk, quiet on the terminal, never holding a secret."""

import json
import logging
import logging.handlers
from pathlib import Path

MAX_LOG_BYTES = 8 * 1024 * 1024
KEPT_LOGS = 2

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Format a record as one line of JSON; fields given as `extra=` stand beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        entry: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "from": record.name.removeprefix("brigade."),
            "message": record.getMessage(),
        }
        entry |= {key: value for key, value in vars(record).items() if key not in _PLAIN}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class QuietFileHandler(logging.handlers.RotatingFileHandler):
    """A rotating file that never takes the program down: a full or missing disk costs lines only."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the record: the log must not stop what it describes."""


def open_journal(state_dir: Path, *, verbosity: int = 0, file_name: str = "log.jsonl") -> None:
    """Send the program's log to `state_dir/log.jsonl` and its warnings to stderr.

    `verbosity`: -1 errors, 0 warnings, 1 information, 2 everything on stderr; the file holds information and more,
    and everything from 2 on.
    """
    root = logging.getLogger("brigade")
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.DEBUG if verbosity >= 2 else logging.INFO)
    root.propagate = False
    terminal = logging.StreamHandler()
    terminal.setLevel({-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))
    terminal.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    root.addHandler(terminal)
    try:
        file = QuietFileHandler(
            state_dir / file_name, maxBytes=MAX_LOG_BYTES, backupCount=KEPT_LOGS, encoding="utf-8", delay=False
        )
    except OSError as error:
        root.warning("cannot write the log %s: %s; going on without it", state_dir / file_name, error.strerror)
        return
    file.setFormatter(JsonLines())
    root.addHandler(file)
