"""What a lab says of a run that has failed and is taken up again."""

from collections.abc import Sequence

ADVICE = "; `brigade up --resume`"  # for owners; a lab does it by itself


def without_advice(text: str) -> str:
    """Return what the coordinator says of an end, without how its owner goes on."""
    return text.partition(ADVICE)[0]


def tell_taken_up(step: int, names: Sequence[str], needed: int) -> str:
    """Return from where a run is taken up again, with whom, and for how many others it waits."""
    start = f"last checkpoint (step {step})" if step else "beginning (no checkpoint yet)"
    who = f" with {', '.join(names)}" if names else ""
    missing = needed - len(names)
    return f"the run is taken up again from its {start}{who}" + (
        f"; it waits for {missing} more" if missing > 0 else ""
    )
