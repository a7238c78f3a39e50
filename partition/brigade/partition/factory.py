"""Model specs as lists of blocks: the built-in models, and functions that a person names in the run file."""

import difflib
import importlib
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from brigade.partition import classifiers, gpt
from brigade.wire.errors import ConfigError
from brigade.wire.run_spec import CnnSpec, FactorySpec, GptSpec, MlpSpec, ModelSpec

# The name comes from the run file, so another person chose it. Model code lives in packages that this machine's owner
# installed for that purpose, never in the standard library or in our own dependencies (`os:system`).
_CLOSED_PACKAGES = sys.stdlib_module_names | {
    "brigade", "hatchling", "msgpack", "msgspec", "numpy", "pip", "psutil", "rich", "safetensors", "setuptools",
    "torch", "typer", "zmq", "zstandard",
}  # fmt: skip


def build_blocks(spec: ModelSpec) -> list[nn.Module]:
    """Return the blocks of a model on the current default device, with tied parameters shared by identity."""
    match spec:
        case GptSpec():
            return gpt.build(spec)
        case MlpSpec():
            return classifiers.build_mlp(spec)
        case CnnSpec():
            return classifiers.build_cnn(spec)
        case FactorySpec():
            return _call_factory(spec)


def load_function(name: str, key: str) -> Callable[..., Any]:
    """Import `package.module:function`, named in the run file under `key`; ConfigError says what is missing."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise ConfigError(f"{key}: found {name!r}, expected package.module:function")
    if module_name.partition(".")[0] in _CLOSED_PACKAGES:
        raise ConfigError(f"{key}: {name!r} is not model code: name a function of a package of your own")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise ConfigError(
                f"{key}: no module {error.name!r} on this machine; install it on every node (`pip install`, or a"
                " PYTHONPATH that leads to it: the working directory is not searched)"
            ) from error
        raise ConfigError(f"{key}: module {module_name!r} needs {error.name!r}, which is not installed") from error
    except Exception as error:
        raise ConfigError(f"{key}: importing {module_name!r} failed: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if function is None:
        names = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        near = difflib.get_close_matches(function_name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{key}: module {module_name!r} has no function {function_name!r}{hint}")
    if not callable(function):
        raise ConfigError(f"{key}: {name!r} is a {type(function).__name__}, expected a function")
    return function  # type: ignore[no-any-return]


def _call_factory(spec: FactorySpec) -> list[nn.Module]:
    function = load_function(spec.factory, "model.factory")
    try:
        blocks = function(**spec.arguments)
    except ConfigError:
        raise
    except Exception as error:
        hint = ""
        if "meta" in str(error):
            hint = " (the model is built without values first: compute numbers that shape it without tensors)"
        raise ConfigError(f"model.factory: {spec.factory} failed: {type(error).__name__}: {error}{hint}") from error
    if isinstance(blocks, (nn.Sequential, nn.ModuleList, tuple)):
        blocks = list(blocks)
    if not isinstance(blocks, list) or not blocks:
        found = "an empty list" if isinstance(blocks, list) else f"a {type(blocks).__name__}"
        raise ConfigError(f"model.factory: {spec.factory} returned {found}, expected a list of nn.Module blocks")
    for index, block in enumerate(blocks):
        if not isinstance(block, nn.Module):
            raise ConfigError(
                f"model.factory: block {index} of {spec.factory} is a {type(block).__name__}, expected an nn.Module"
            )
    return blocks
