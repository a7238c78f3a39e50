"""Which parameters a run leaves as they are: those that match a pattern of the run file, under any of their names."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from brigade.wire.errors import ConfigError
from brigade.wire.plan import TiedParameter


def freeze(blocks: Mapping[int, nn.Module], patterns: Sequence[str], tied: Iterable[TiedParameter]) -> None:
    """Turn off gradients of the parameters in `blocks` whose key `"<block>.<name>"` matches a pattern.

    A parameter that is tied to one with a matching key is frozen too, wherever that one is.
    """
    also = {key: (tie.owner, *tie.followers) for tie in tied for key in (tie.owner, *tie.followers)}
    for index, block in blocks.items():
        for name, parameter in block.named_parameters(remove_duplicate=False):
            key = f"{index}.{name}"
            if any(fnmatchcase(each, pattern) for each in also.get(key, (key,)) for pattern in patterns):
                parameter.requires_grad_(False)


def check_patterns(blocks: Sequence[nn.Module], patterns: Sequence[str]) -> None:
    """Raise ConfigError for a pattern that matches no parameter of the whole chain."""
    keys = [
        f"{index}.{name}"
        for index, block in enumerate(blocks)
        for name, _ in block.named_parameters(remove_duplicate=False)
    ]
    for pattern in patterns:
        if not any(fnmatchcase(key, pattern) for key in keys):
            examples = ", ".join(keys[:3])
            raise ConfigError(f"training.freeze: {pattern!r} matches no parameter; names look like {examples}")
