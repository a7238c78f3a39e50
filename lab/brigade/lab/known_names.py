"""What to say about a name that nobody knows: the one that was probably meant, or all that there are."""

from collections.abc import Sequence
from difflib import get_close_matches


def explain_unknown(name: str, known: Sequence[str]) -> str:
    """Return, for a person, that a name is not known, and which one may have been meant; empty when it is known."""
    if name in known:
        return ""
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
    return f"{name!r} is not known{hint}"
