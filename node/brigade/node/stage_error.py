"""The error of a stage that cannot go on: where it happened, and the original text."""

from brigade.wire.errors import BrigadeError
from brigade.wire.harmless import harmless

MOST_WHAT_CHARACTERS = 400


class StageError(BrigadeError):
    """User code or the device failed in a stage; its fields are those of the message `NodeFailed`."""

    def __init__(self, *, stage: int, step: int, what: str, error: str) -> None:
        self.stage = stage
        self.step = step  # -1 outside a step
        self.what = harmless(what, MOST_WHAT_CHARACTERS)  # "forward of microbatch 3, block 4 (TransformerBlock)"
        self.error = harmless(error)  # it travels: a message has its limits, and screens are not for code to write on
        when = "" if step < 0 else f" in step {step}"
        where = f"{self.what} failed" if stage < 0 else f"stage {stage} failed{when}, {self.what}"
        super().__init__(f"{where}: {self.error}")

    @classmethod
    def of(cls, cause: BaseException, *, stage: int, step: int, what: str) -> "StageError":
        """Return the error that tells of `cause`."""
        text = str(cause).strip()
        name = type(cause).__name__
        return cls(stage=stage, step=step, what=what, error=f"{name}: {text}" if text else name)
