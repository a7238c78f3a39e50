"""The optimizer of one stage: what updates its parameters and what it does about late gradients, by parameter name."""

from collections.abc import Container, Mapping
from typing import Any

from torch import Tensor, nn

from brigade.partition.delay import compensate
from brigade.partition.optimizers import build_optimizers
from brigade.wire.errors import CheckpointError
from brigade.wire.run_spec import TrainingSpec

State = dict[str, Any]  # of one parameter: tensors, and numbers or other plain values
_DELAY = "delay."  # before the keys of what compensates delay


class StageOptimizer:
    """Updates named parameters; a stage without trainable parameters has nothing to update."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], training: TrainingSpec, matrices: Container[str] = ()
    ) -> None:
        """Take what is trained here, by `"<block>.<name>"`; `matrices` as in `build_optimizers`."""
        self.name = training.optim
        self._optimizers = build_optimizers(parameters, training, matrices)
        self._delay = compensate(self._optimizers, training)
        names: dict[Tensor, str] = {p: name for name, p in parameters.items()}
        self._parameters = {names[p]: p for p in self._delay.parameters}  # in the order of the groups

    @property
    def names(self) -> frozenset[str]:
        """Names of the parameters that are trained here."""
        return frozenset(self._parameters)

    def step(self, learning_rate: float, delay: int = 0) -> None:
        """Make one update from the parameters' gradients; a parameter without a gradient is left alone.

        `delay` is how many updates the weights have seen since those that the gradients are of.
        """
        self._delay.step(learning_rate, delay)

    def forward_weights(self, into: Mapping[str, Tensor], distance: int) -> None:
        """Write to `into`, by name, the weights for gradients that will be applied `distance` updates from now.

        The parameters must hold the newest weights, and their optimizer must have made all updates up to these.
        """
        self._delay.forward_weights({self._parameters[name]: each for name, each in into.items()}, distance)

    def backward_weights(self, into: Mapping[str, Tensor], distance: int) -> None:
        """Write to `into`, by name, the weights for a backward whose forward was `distance` updates ago."""
        self._delay.backward_weights({self._parameters[name]: each for name, each in into.items()}, distance)

    def learning_rates(self) -> list[float]:
        """Return what the parameter groups hold now."""
        return [float(group["lr"]) for optimizer in self._optimizers for group in optimizer.param_groups]

    def states(self) -> dict[str, State]:
        """Return the live state of every parameter that has one, by name."""
        of_torch = {p: state for optimizer in self._optimizers for p, state in optimizer.state.items()}
        of_delay = self._delay.states()
        states = {
            name: {**of_torch.get(p, {}), **{f"{_DELAY}{key}": value for key, value in of_delay.get(p, {}).items()}}
            for name, p in self._parameters.items()
        }
        return {name: state for name, state in states.items() if state}

    def load(self, states: Mapping[str, State]) -> None:
        """Replace all state by `states`; tensors move to their parameter's device.

        Raises CheckpointError when a name is not that of a parameter trained here.
        """
        strangers = sorted(states.keys() - self._parameters.keys())
        if strangers:
            raise CheckpointError(f"the checkpoint has optimizer state of {strangers[0]}, which is not trained here")
        names = {p: name for name, p in self._parameters.items()}
        for optimizer in self._optimizers:
            groups = optimizer.state_dict()["param_groups"]
            members = [names[p] for group in optimizer.param_groups for p in group["params"]]
            of_torch = {i: _without_delay(states[name]) for i, name in enumerate(members) if name in states}
            by_position = {i: state for i, state in of_torch.items() if state}
            optimizer.load_state_dict({"state": by_position, "param_groups": groups})
            for i, state in by_position.items():
                _keep_dtypes(optimizer.state[self._parameters[members[i]]], state)
        self._delay.load({self._parameters[name]: _of_delay(state) for name, state in states.items()})


def _keep_dtypes(loaded: State, saved: Mapping[str, Any]) -> None:
    # torch gives all but the step the dtype of the parameter; NAdam's product of moments had one of its own.
    for key, value in saved.items():
        if isinstance(value, Tensor) and value.dtype != loaded[key].dtype:
            loaded[key] = value.to(loaded[key].device)


def _without_delay(state: State) -> State:
    return {key: value for key, value in state.items() if not key.startswith(_DELAY)}


def _of_delay(state: State) -> State:
    return {key.removeprefix(_DELAY): value for key, value in state.items() if key.startswith(_DELAY)}
