"""Parameters that several blocks share: one update from the sum of all gradients, bit-equal copies everywhere.

Every block keeps its own leaf of a shared parameter, also when owner and followers are on one stage (there the leaves
share their memory). So gradients are always summed in the order of blocks, and no split changes a bit of the sum.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from brigade.wire.errors import LocalProtocolError, RemoteProtocolError
from brigade.wire.plan import TiedParameter


def split_key(key: str) -> tuple[int, str]:
    """Return block and name of a parameter key `"<block>.<name>"`."""
    block, _, name = key.partition(".")
    return int(block), name


class TiedWeights:
    """The part that one stage has in the tied parameters of a run."""

    def __init__(self, tied: Sequence[TiedParameter], blocks: Mapping[int, nn.Module]) -> None:
        self._parameters: dict[str, nn.Parameter] = {}
        self.owned: dict[str, tuple[str, ...]] = {}  # followers of each parameter owned here, in order of blocks
        self.followed: dict[str, str] = {}  # owner elsewhere of each parameter followed here
        self.aliases: dict[str, dict[str, nn.Parameter]] = {}  # of the first key here: the other leaves over its memory
        self._arrived: dict[str, Tensor] = {}
        for tie in tied:
            followers = tuple(sorted(tie.followers, key=split_key))
            here = [key for key in (tie.owner, *followers) if split_key(key)[0] in blocks]
            leaves = _own_leaves(here, blocks)
            self._parameters.update(leaves)
            if here:
                self.aliases[here[0]] = {key: leaves[key] for key in here[1:]}
            if tie.owner in here:
                self.owned[tie.owner] = followers
            else:
                self.followed.update(dict.fromkeys(here, tie.owner))

    @property
    def copies(self) -> frozenset[str]:
        """Keys on this stage that no optimizer may update."""
        return frozenset(self._parameters) - self.owned.keys()

    @property
    def awaited(self) -> frozenset[str]:
        """Keys of followers elsewhere whose gradients belong to a parameter owned here."""
        return frozenset(key for keys in self.owned.values() for key in keys if key not in self._parameters)

    def parameter(self, key: str) -> nn.Parameter:
        """Return the parameter here that goes by the follower's `key`; RemoteProtocolError when there is none."""
        names = (key, *(owner for owner, followers in self.owned.items() if key in followers))
        found = next((self._parameters[name] for name in names if name in self._parameters), None)
        if found is None:
            raise RemoteProtocolError(f"no tied parameter of this stage goes by {key[:80]!r}")
        return found

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradient of each parameter followed here, for its owner elsewhere; zeros where there is none."""
        return {key: _gradient_or_zeros(self._parameters[key]) for key in self.followed}

    def add_gradient(self, key: str, gradient: Tensor) -> None:
        """Keep the gradient of the follower `key`, to be summed when all are here."""
        if key not in self.awaited or key in self._arrived:
            raise LocalProtocolError(f"the gradient of the tied parameter {key} is not awaited")
        self._arrived[key] = gradient

    def sum_gradients(self) -> None:
        """Add the followers' gradients to their owner's, in the order of blocks."""
        missing = sorted(self.awaited - self._arrived.keys())
        if missing:
            raise LocalProtocolError(f"the gradient of the tied parameter {missing[0]} has not arrived")
        for owner_key, followers in self.owned.items():
            owner = self._parameters[owner_key]
            for key in followers:
                gradient = self._parameters[key].grad if key in self._parameters else self._arrived.pop(key)
                if gradient is None or not owner.requires_grad:
                    continue
                gradient = gradient.to(device=owner.device, dtype=owner.dtype)
                owner.grad = gradient.clone() if owner.grad is None else owner.grad.add_(gradient)
                if key in self._parameters:
                    self._parameters[key].grad = None

    def weights(self) -> dict[str, Tensor]:
        """Return the value of each parameter owned here, once for each follower elsewhere."""
        return {
            key: self._parameters[owner].detach()
            for owner, followers in self.owned.items()
            for key in followers
            if key not in self._parameters
        }

    def set_weight(self, key: str, value: Tensor) -> None:
        """Overwrite a parameter followed here with its owner's value, unseen by the graphs in flight."""
        if key not in self.followed:
            raise LocalProtocolError(f"the tied parameter {key} is not followed here")
        self._parameters[key].data.copy_(value)

    def drop(self) -> None:
        """Forget gradients that have arrived."""
        self._arrived.clear()


def _own_leaves(keys: Sequence[str], blocks: Mapping[int, nn.Module]) -> dict[str, nn.Parameter]:
    """Give every block after the first its own leaf over the same memory; return the leaves by key."""
    leaves: dict[str, nn.Parameter] = {}
    first: nn.Parameter | None = None
    for key in keys:
        index, name = split_key(key)
        shared = blocks[index].get_parameter(name)
        if first is None:
            leaves[key] = first = shared
            continue
        leaf = leaves[key] = nn.Parameter(first.detach(), requires_grad=first.requires_grad)
        for module in blocks[index].modules():
            for attribute, value in list(module.named_parameters(recurse=False, remove_duplicate=False)):
                if value is shared:
                    setattr(module, attribute, leaf)
    return leaves


def _gradient_or_zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
