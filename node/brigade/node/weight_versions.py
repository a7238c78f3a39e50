"""The weights of a stage in several versions: the newest, which the optimizer makes, and older ones still in use.

Blocks keep their parameters; `use` lets these point at the memory of a version. The optimizer works on parameters of
its own over the same memory, so that an update is no change in place to the graphs of microbatches in flight.
"""

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from brigade.wire.errors import CheckpointError, LocalProtocolError


class WeightVersions:
    """`copies` versions at most of `parameters`, by key; the optimizer makes new ones of those that are `trained`.

    `aliases` are further leaves over the memory of one of them. With one copy nothing is ever moved: an update changes
    what everybody uses.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        trained: Collection[str],
        aliases: Mapping[str, Mapping[str, nn.Parameter]],
        *,
        copies: int,
        version: int,
    ) -> None:
        self._leaves = {key: {key: parameter} | dict(aliases.get(key, {})) for key, parameter in parameters.items()}
        self._copies = copies
        self._held = {version: {key: parameter.data for key, parameter in parameters.items()}}
        self._in_use = version
        self.newest = version
        self.masters = {  # what the optimizer updates: the newest version
            key: nn.Parameter(parameter.data) for key, parameter in parameters.items() if key in trained
        }

    @property
    def held(self) -> tuple[int, ...]:
        """Return the versions that are there, oldest first."""
        return tuple(sorted(self._held))

    def use(self, version: int) -> None:
        """Let all blocks compute with this version; with one copy there is only one to use."""
        if self._copies == 1 or version == self._in_use:
            return
        if version not in self._held:
            raise LocalProtocolError(f"version {version} of the weights is gone: there are {self.held}")
        for key, data in self._held[version].items():
            for leaf in self._leaves[key].values():
                leaf.data = data
        self._in_use = version

    def begin_update(self) -> None:
        """Make the next version, as yet a copy of the newest, in the memory of one that nobody uses any more."""
        if self._copies > 1:
            newest = self._held[self.newest]
            if len(self._held) < self._copies:
                self._held[self.newest + 1] = {key: data.clone() for key, data in newest.items()}
            else:
                oldest = min(self._held)
                memory = self._held.pop(oldest)
                if oldest == self._in_use:
                    self._in_use = -1
                for key, data in newest.items():
                    memory[key].copy_(data)
                self._held[self.newest + 1] = memory
            for key, master in self.masters.items():
                master.data = self._held[self.newest + 1][key]
        else:
            self._held = {self.newest + 1: self._held[self.newest]}
        self.newest += 1

    def older(self) -> list[dict[str, Tensor]]:
        """Return the older versions, those of one update ago first, by the keys of all leaves."""
        return [
            {key: data for name, data in self._held[version].items() for key in self._leaves[name]}
            for version in reversed(self.held)
            if version != self.newest
        ]

    def load_older(self, age: int, values: Mapping[str, Tensor]) -> None:
        """Take the weights of `age` updates ago; CheckpointError when they do not fit."""
        held = {}
        for key, data in self._held[self.newest].items():
            if key not in values or (values[key].dtype, values[key].shape) != (data.dtype, data.shape):
                raise CheckpointError(f"the weights of {age} updates ago have no {key} that fits the model")
            held[key] = values[key].to(data.device, copy=True)
        self._held[self.newest - age] = held
