"""How optimizers are made from a run file: which class, with which arguments, for which parameters.

Parameters with two or more dimensions decay, others (biases, gains of norms) do not. `optim` names a class of
`torch.optim`, or `NAdamW`: NAdam with decoupled weight decay and a first moment of 0.99, what Nesterov's method for
pipelines uses (Ajanthan et al. 2025, arXiv 2505.01099). `Muon` (Jordan et al. 2024) updates matrices of hidden layers
and leaves the rest to AdamW; its updates have the root mean square of AdamW's (Liu et al. 2025, arXiv 2502.16982), so
that one learning rate and one weight decay fit both.
"""

import difflib
import inspect
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn

from brigade.wire.errors import ConfigError
from brigade.wire.plan import TiedParameter
from brigade.wire.run_spec import TrainingSpec

NADAMW, MUON = "NAdamW", "Muon"
OUR_DEFAULTS: dict[str, dict[str, Any]] = {
    NADAMW: {"betas": (0.99, 0.999), "decoupled_weight_decay": True},
    MUON: {"adjust_lr_fn": "match_rms_adamw"},
}


class _Recipe(NamedTuple):
    name: str  # as in the run file
    cls: type[torch.optim.Optimizer]
    arguments: dict[str, Any]


def hidden_matrices(blocks: Sequence[nn.Module], tied: Iterable[TiedParameter]) -> frozenset[str]:
    """Return the keys `"<block>.<name>"` of the parameters that Muon updates.

    Those with two dimensions that are neither a table of `nn.Embedding` or `nn.EmbeddingBag` nor in the last block, the
    head. A tied parameter is one of them if it is one wherever it is used. `blocks` is the whole model, on any device.
    """
    found: set[str] = set()
    for index, block in enumerate(blocks[:-1]):
        tables = {id(each.weight) for each in block.modules() if isinstance(each, (nn.Embedding, nn.EmbeddingBag))}
        named = block.named_parameters()
        found.update(f"{index}.{name}" for name, p in named if p.dim() == 2 and id(p) not in tables)
    for tie in tied:
        keys = {tie.owner, *tie.followers}
        if not keys <= found:
            found -= keys
    return frozenset(found)


def build_optimizers(
    parameters: Mapping[str, nn.Parameter], training: TrainingSpec, matrices: Container[str] = ()
) -> list[torch.optim.Optimizer]:
    """Return the optimizers that update these parameters, one or two; none when there is nothing to update.

    `matrices` are the keys of `hidden_matrices`; what matters with Muon only. Raises ConfigError naming the key of the
    run file that does not fit.
    """
    first, *others = _recipes(training)
    shares = [(first, dict(parameters))]
    if others:
        mine = {key: p for key, p in parameters.items() if key in matrices}
        rest = {key: p for key, p in parameters.items() if key not in matrices}
        shares = [(first, mine), (others[0], rest)]
    return [_build(recipe, share, training.weight_decay) for recipe, share in shares if share]


def check_optimizer(training: TrainingSpec) -> None:
    """Raise ConfigError when torch has no such optimizer, or it does not take these arguments; needs no model."""
    _recipes(training)


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """Return the class of `torch.optim` behind this name; ConfigError with the nearest name when there is none."""
    known = {
        key: value
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }
    if name == MUON and MUON not in known:
        raise ConfigError(f"training.optim: Muon needs torch 2.9 or newer, this is torch {torch.__version__}")
    known[NADAMW] = known["NAdam"]
    if name not in known:
        near = difflib.get_close_matches(name.lower(), [key.lower() for key in known], n=1)
        hint = "".join(f"; did you mean {key}?" for key in known if key.lower() in near)
        raise ConfigError(f"training.optim: found {name!r}, expected a class of torch.optim or {NADAMW}{hint}")
    closure = inspect.signature(known[name].step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(f"training.optim: {name} evaluates the model many times in one step; a pipeline cannot")
    return known[name]


def _recipes(training: TrainingSpec) -> list[_Recipe]:
    if training.optim != MUON:
        return [_recipe(training)]
    # The keys of Adam belong to AdamW here, and `optim_args` to Muon.
    matrices = msgspec.structs.replace(training, adam_beta1=None, adam_beta2=None, adam_epsilon=None)
    rest = msgspec.structs.replace(training, optim="AdamW", optim_args={})
    return [_recipe(matrices), _recipe(rest)]


def _recipe(training: TrainingSpec) -> _Recipe:
    name = training.optim
    cls = optimizer_class(name)
    taken = inspect.signature(cls).parameters
    ours = OUR_DEFAULTS.get(name, {})
    arguments: dict[str, Any] = {}
    if training.weight_decay and "weight_decay" not in taken:
        raise ConfigError(f"training.weight_decay: {name} has no weight decay; leave it out")
    betas = (training.adam_beta1, training.adam_beta2)
    if betas != (None, None):
        if "betas" not in taken:
            raise ConfigError(f"training.adam_beta1, training.adam_beta2: {name} has no betas; leave them out")
        default = ours.get("betas", taken["betas"].default)
        arguments["betas"] = tuple(d if b is None else b for b, d in zip(betas, default, strict=True))
    if training.adam_epsilon is not None:
        if "eps" not in taken or not isinstance(taken["eps"].default, float):
            raise ConfigError(f"training.adam_epsilon: {name} has no single eps; leave it out")
        arguments["eps"] = training.adam_epsilon
    _check_names(training, taken)
    for key, value in training.optim_args.items():
        if key in arguments:
            raise ConfigError(f"training.optim_args.{key}: given twice, here and as training.adam_*")
        arguments[key] = value
    return _Recipe(name, cls, {"lr": training.learning_rate, **ours, **arguments})


def _check_names(training: TrainingSpec, taken: Mapping[str, inspect.Parameter]) -> None:
    elsewhere = {"params": "", "lr": "training.learning_rate", "weight_decay": "training.weight_decay"}
    for key in training.optim_args:
        if key not in taken or key in elsewhere:
            usable = sorted(taken.keys() - elsewhere.keys())
            near = difflib.get_close_matches(key, usable, n=1)
            hint = f"; use {elsewhere[key]}" if elsewhere.get(key) else f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"training.optim_args.{key}: {training.optim} takes {', '.join(usable)}{hint}")


def _build(recipe: _Recipe, parameters: Mapping[str, nn.Parameter], decay: float) -> torch.optim.Optimizer:
    decaying = [p for p in parameters.values() if p.dim() >= 2]
    others = [p for p in parameters.values() if p.dim() < 2]
    groups = [
        {"params": members, "weight_decay": each} for members, each in ((decaying, decay), (others, 0.0)) if members
    ]
    if "weight_decay" not in inspect.signature(recipe.cls).parameters:
        groups = [{"params": group["params"]} for group in groups]
    try:
        return recipe.cls(groups, **recipe.arguments)
    except (TypeError, ValueError) as error:
        where = f"torch.optim.{recipe.cls.__name__}"
        raise ConfigError(f"training.optim: {where} refuses this model or its arguments: {error}") from error
