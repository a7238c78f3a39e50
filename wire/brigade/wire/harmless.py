"""Text that somebody else wrote, made harmless for a terminal and for whoever reads a log."""

import re

MOST_CHARACTERS = 2000

_BREAK = re.compile(r"\s*[^\S ]\s*")  # white space with anything but blanks in it
_WIDEST_ESCAPE = 10


def harmless(text: str, most: int = MOST_CHARACTERS) -> str:
    r"""Return `text` on one line, of at most about `most` characters, with nothing that a terminal would obey.

    Line ends and the like become a blank, other characters that cannot be printed their escapes, as in `\x1b`.
    """
    line = _BREAK.sub(" ", text[: most * _WIDEST_ESCAPE]).strip()
    if not line.isprintable():
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line if len(line) <= most else f"{line[:most]}... (of {len(text)} characters)"
