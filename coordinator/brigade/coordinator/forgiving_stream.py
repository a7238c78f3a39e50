"""A screen that may go away: a reader that has gone, a full device or a closed stream costs lines, never the run."""

import contextlib
import os
from typing import IO, TextIO


class ForgivingStream:
    """Writes to a stream until that fails once, and then to nothing."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:
        """Return the stream's encoding."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Tell whether there is a terminal at the end of the stream."""
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def fileno(self) -> int:
        """Return the stream's descriptor; OSError when there is none."""
        if self._stream is None:
            raise OSError("there is no stream")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write, or drop the text."""
        if self._stream is not None:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._give_up()
        return len(text)

    def flush(self) -> None:
        """Flush, if there is still somebody to see it."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._give_up()

    def _give_up(self) -> None:
        stream, self._stream = self._stream, None
        # Python flushes its streams at the end, and would fail then with what is still in the buffer.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            assert stream is not None
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)


def forgiving(stream: TextIO | None) -> IO[str]:
    """Return the stream as one that never fails."""
    return ForgivingStream(stream)  # type: ignore[return-value]  # all that rich asks of a file
