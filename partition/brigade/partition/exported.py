"""A trained model from its exported files, `model.safetensors` and `model.json`, as a plain torch module."""

from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file

from brigade.partition.chain import PlainModel, plain_model
from brigade.wire.errors import CheckpointError, ConfigError
from brigade.wire.run_spec import ExportFacts


def load_plain(path: Path | str) -> PlainModel:
    """Return the model exported to `path`, on the CPU, in evaluation mode; every name and shape must match.

    The same path ending in `.json` says how to build it; a model of a factory is built by calling that function, which
    has to be installed here. Raises ConfigError when it cannot be built, CheckpointError when the weights do not fit.
    """
    path = Path(path)
    facts = read_facts(path.with_suffix(".json"))
    model = plain_model(facts.model, facts.seed)
    try:
        model.load_state_dict(load_file(path), strict=True)
    except FileNotFoundError:
        raise ConfigError(f"there is no exported model {path}") from None
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not hold the weights of the model: {error}") from error
    return model.eval()


def read_facts(path: Path) -> ExportFacts:
    """Return what `model.json` says; ConfigError when it is missing or of another version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ExportFacts)
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}; `brigade export` writes it beside the weights") from None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
