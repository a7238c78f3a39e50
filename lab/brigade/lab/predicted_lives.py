"""What a simulated run did, as the timelines that nodes would have written: the same reports read both."""

from collections import Counter

from brigade.lab.predicted_plan import RUN_ID, PredictedPlan
from brigade.node.timeline import Action, Kind, StageBegan, StageLife

KINDS: dict[str, Kind] = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "evaluation": "evaluate",
    "encode_activation": "encode_activation",
    "encode_gradient": "encode_gradient",
    "decode_activation": "decode_activation",
    "decode_gradient": "decode_gradient",
    "sent_activation": "sent_activation",
    "sent_gradient": "sent_gradient",
    "arrived_activation": "arrived_activation",
    "arrived_gradient": "arrived_gradient",
}


class Notes:
    """Takes down what one plan does on paper, in the numbers of its own; `lives` gives it in those of the run."""

    def __init__(self) -> None:
        self._watched: list[tuple[str, int, int, float, float]] = []

    def watch(self, kind: str, stage: int, index: int, begin_s: float, end_s: float) -> None:
        """Note an action."""
        self._watched.append((kind, stage, index, begin_s, end_s))

    def lives(
        self, formed: PredictedPlan, begin_s: float, first_step: int, held_out: int, *, last: bool
    ) -> list[StageLife]:
        """Return the life of each stage; `held_out` is the number of microbatches of one evaluation."""
        made = formed.plan
        count, per_step = len(made.stages), made.microbatches
        actions: list[list[Action]] = [[Action("begun", first_step, -1, begin_s, begin_s)] for _ in range(count)]
        updates: Counter[int] = Counter()
        end_s = begin_s
        for kind, stage, index, began, ended in sorted(self._watched, key=lambda each: (each[3], each[4])):
            begins, ends = begin_s + began, begin_s + ended
            end_s = max(end_s, ends)
            if kind == "optimizer":
                actions[stage].append(Action("optimizer", first_step + updates[stage], -1, begins, ends))
                updates[stage] += 1
                continue
            evaluation = index < 0
            step, number = divmod(-1 - index, held_out) if evaluation else divmod(index, per_step)
            other, size = _other_end(formed, kind, stage)
            actions[stage].append(Action(KINDS[kind], first_step + step, number, begins, ends, evaluation, other, size))
            if kind == "backward" and number == per_step - 1:
                actions[stage].append(Action("sum", first_step + step, -1, ends, ends))
        if not last:
            for done in actions:
                done.append(Action("dropped", done[-1].step, -1, end_s, end_s))
        return [
            StageLife(
                StageBegan(
                    run_id=RUN_ID,
                    generation=made.generation,
                    stage=stage,
                    node=made.stages[stage].contact.name,
                    stages=count,
                    at_s=begin_s,
                ),
                done,
            )
            for stage, done in enumerate(actions)
        ]


def _other_end(formed: PredictedPlan, kind: str, stage: int) -> tuple[int, int]:
    """Return which stage is at the other end of a link, and how many bytes pass; -1 and 0 for what is no link."""
    direction, _, what = kind.partition("_")
    if direction not in ("sent", "arrived"):
        return -1, 0
    forward = what == "activation"
    other = stage + 1 if forward == (direction == "sent") else stage - 1
    sizes = formed.activation_bytes if forward else formed.gradient_bytes
    return other, round(sizes[min(stage, other)])
