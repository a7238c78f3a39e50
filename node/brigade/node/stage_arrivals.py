"""What has come to a stage and waits there; what comes twice or too late is counted and dropped."""

from collections import Counter
from collections.abc import Callable, Mapping

from brigade.node.stage_events import ActivationArrived, GradientArrived, TiedGradientArrived, TiedWeightArrived
from brigade.node.tied import TiedRoles
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.message_parts import Slot
from brigade.wire.plan import Plan

Arrival = ActivationArrived | GradientArrived | TiedGradientArrived | TiedWeightArrived


class StageArrivals:
    """Arrivals of one stage; `is_past(slot, what)` tells that a slot's activation or gradient was used already."""

    def __init__(
        self,
        plan: Plan,
        stage: int,
        tied: TiedRoles,
        count_of: Callable[[Slot], int],
        is_past: Callable[[Slot, str], bool],
    ) -> None:
        self.activations: set[Slot] = set()
        self.gradients: set[Slot] = set()
        self.tied_gradients: set[tuple[int, str]] = set()
        self.tied_weights: set[tuple[int, str]] = set()
        self.dropped: Counter[str] = Counter()
        self._stage = stage
        self._ends = {"activation": stage == 0, "gradient": stage == len(plan.stages) - 1}
        # Whoever has begun step g knows the decision about step g - V, for which this stage has run all of that step,
        # with weights after g - 2 V + 1 updates at least.
        self._ahead = 2 * plan.versions - 1
        self._tied = tied
        self._count_of = count_of
        self._is_past = is_past

    def take(self, event: Arrival, step: int, *, over: bool) -> None:
        """Keep what has arrived while `step` is the oldest that is not applied here; `over`: the stage rests.

        Raises RemoteProtocolError for what no neighbour can have sent.
        """
        match event:
            case ActivationArrived(slot):
                self._take(slot, self.activations, "activation", step, over)
            case GradientArrived(slot):
                self._take(slot, self.gradients, "gradient", step, over)
            case TiedGradientArrived(of_step, parameter):
                self._take_tied((of_step, parameter), self.tied_gradients, self._tied.owned, step, over)
            case TiedWeightArrived(of_step, parameter):
                self._take_tied((of_step, parameter), self.tied_weights, self._tied.followed, step, over)

    def forget_before(self, step: int, evaluation: int) -> None:
        """Drop what belongs to earlier steps, and to evaluations after earlier steps than `evaluation`."""
        self.activations = {s for s in self.activations if s.step >= (evaluation if s.evaluation else step)}
        self.gradients = {slot for slot in self.gradients if slot.step >= step}
        self.tied_gradients = {key for key in self.tied_gradients if key[0] >= step}
        self.tied_weights = {key for key in self.tied_weights if key[0] >= step}

    def _take(self, slot: Slot, arrived: set[Slot], what: str, step: int, over: bool) -> None:
        if slot.evaluation and what == "gradient":
            raise RemoteProtocolError(f"a gradient arrived for evaluation microbatch {slot.index}")
        known = slot.step <= step + self._ahead and 0 <= slot.index < self._count_of(slot)
        if not known or self._ends[what]:
            raise RemoteProtocolError(
                f"stage {self._stage} in step {step} got an unexpected {what} of microbatch {slot.index} "
                f"of step {slot.step}"
            )
        if over or slot in arrived or self._is_past(slot, what):
            self.dropped[f"repeated or stale {what}"] += 1
        else:
            arrived.add(slot)

    def _take_tied(
        self, key: tuple[int, str], arrived: set[tuple[int, str]], allowed: Mapping[str, int], step: int, over: bool
    ) -> None:
        of_step, parameter = key
        if parameter not in allowed:
            raise RemoteProtocolError(f"stage {self._stage} has no part in the tied parameter {parameter!r}")
        if over or of_step < step or key in arrived:
            self.dropped["repeated or stale tied parameter"] += 1
            return
        if of_step > step + self._ahead:
            raise RemoteProtocolError(f"tied parameter {parameter!r} of step {of_step} arrived in step {step}")
        arrived.add(key)
