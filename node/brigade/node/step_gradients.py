"""Gradients by step: while the run still decides about one step, the backwards of the next may run."""

from collections.abc import Iterable

from torch import Tensor, nn


class StepGradients:
    """Puts the gradients of one step at a time into `grad` of all parameters, and keeps those of the others."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = tuple(parameters)
        self._kept: dict[int, list[Tensor | None]] = {}
        self._step: int | None = None

    def work_on(self, step: int) -> None:
        """Let backwards add to the gradients of this step, which are none at first."""
        if step == self._step:
            return
        if self._step is not None:
            self._kept[self._step] = [parameter.grad for parameter in self._parameters]
        gradients = self._kept.pop(step, None)
        for position, parameter in enumerate(self._parameters):
            parameter.grad = None if gradients is None else gradients[position]
        self._step = step

    def drop(self, step: int) -> None:
        """Forget the gradients of a step."""
        if step == self._step:
            for parameter in self._parameters:
                parameter.grad = None
        self._kept.pop(step, None)

    def drop_all(self) -> None:
        """Forget all gradients."""
        self._kept.clear()
        for parameter in self._parameters:
            parameter.grad = None
