"""How numbers and durations read on every screen of a run."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes a plain s in the plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def steps_are_done(number: int) -> str:
    """Return the start of a sentence: `4 steps are done`."""
    return f"{counted(number, 'step')} {'is' if number == 1 else 'are'} done"


def block_range(first: int, last: int) -> str:
    """Return consecutive blocks: `block 3`, `blocks 3-5`."""
    return f"block {first}" if first == last else f"blocks {first}-{last}"


def show_duration(seconds: float | None) -> str:
    """Return seconds as `1:02:03` or `2:03`; a dash for what is not known."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
