"""Reads a run file (TOML) into a `RunSpec`: a mistake names file, key, what was found and what was expected."""

import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import to_builtins

from brigade.compression.spec import CodecSpec
from brigade.coordinator.table_errors import explain
from brigade.partition.samples import Source, open_data
from brigade.wire.errors import ConfigError
from brigade.wire.limits import DEFAULT_LIMITS
from brigade.wire.run_spec import FactoryData, FactorySpec, GptSpec, RunSpec, TrainingSpec

# What a resume may not change: other values would make another training job of it.
FIXED_KEYS = (
    "seed",
    "model",
    "data",
    "training.batch_size",
    "training.shuffle",
    "training.loss",
    "training.optim",
    "training.weight_decay",
    "training.adam_beta1",
    "training.adam_beta2",
    "training.adam_epsilon",
    "training.optim_args",
    "training.freeze",
    "training.bf16",
)
_PATHS = frozenset({"data.path"})  # the same data may lie elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A run file that has been read and found sound."""

    path: Path
    text: str
    spec: RunSpec
    data_path: Path | None  # None: nodes open the data
    data: Source | None


def read_run_file(path: Path) -> RunFile:
    """Return the run that a file describes.

    Paths in it are relative to it. Raises ConfigError for anything that cannot be trained.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no run file {path}") from None
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a path with a null byte
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits, too
        raise ConfigError(f"{path} is not TOML: {error}{_quotes_hint(text, str(error))}") from error
    try:
        spec = msgspec.convert(table, RunSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {explain(RunSpec, table, str(error))}") from error
    for complaint in _unsound(spec):
        raise ConfigError(f"{path}: {complaint}")
    if isinstance(spec.data, FactoryData):
        return RunFile(path=path, text=text, spec=spec, data_path=None, data=None)
    data_path = path.parent / spec.data.path
    try:
        data = open_data(spec.data, data_path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return RunFile(path=path, text=text, spec=spec, data_path=data_path, data=data)


def _quotes_hint(text: str, complaint: str) -> str:
    """Return a hint when the line that tomllib complains of has a bare word after its equals sign."""
    place = re.search(r"at line (\d+)", complaint)
    line = text.splitlines()[int(place[1]) - 1] if place else ""
    found = re.fullmatch(r"\s*([\w.-]+)\s*=\s*([^\W\d][^\s\"'#,\[\]{}=]*)\s*(#.*)?", line)
    if found is None:
        return ""
    key, word = found[1], found[2]
    if word.lower() in ("true", "false"):
        return f"; write {key} = {word.lower()}"
    return f'; text needs quotes: {key} = "{word}"'


# --- what fits together ---------------------------------------------------------------------------------------------


def _unsound(spec: RunSpec) -> Iterator[str]:
    """Yield what is valid by itself and does not fit together."""
    training, model = spec.training, spec.model
    for key, value in _leaves(to_builtins(spec)):
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{key} is {value}, expected a finite number"
    if training.batch_size > DEFAULT_LIMITS.max_samples:
        yield (
            f"training.batch_size is {training.batch_size}, expected at most {DEFAULT_LIMITS.max_samples}:"
            " the samples of a step are told in one message"
        )
    if training.microbatches > training.batch_size:
        yield (
            f"training.microbatches is {training.microbatches}, expected at most training.batch_size"
            f" ({training.batch_size}): a microbatch has at least one sample"
        )
    if training.warmup_steps > training.max_steps:
        yield f"training.warmup_steps is {training.warmup_steps}, expected at most max_steps ({training.max_steps})"
    if training.decay_steps and training.lr_scheduler_type != "wsd":
        yield (
            f"training.decay_steps is {training.decay_steps}, but only lr_scheduler_type 'wsd' has a decay;"
            f" found {training.lr_scheduler_type!r}"
        )
    if training.warmup_steps + training.decay_steps > training.max_steps:
        yield (
            f"training.warmup_steps + decay_steps is {training.warmup_steps + training.decay_steps},"
            f" expected at most max_steps ({training.max_steps})"
        )
    remedy, mode = training.delay_compensation, spec.pipeline.mode
    if mode != "exact" and (remedy == "predict" or (remedy == "pipemare" and mode == "lowmem")):
        yield f"training.delay_compensation {remedy!r} is not carried out in a pipeline of mode {mode!r} yet"
    if spec.pipeline.versions is not None and spec.pipeline.mode != "async":
        yield f"pipeline.versions is for mode 'async', found mode {spec.pipeline.mode!r}"
    yield from _unused_by_the_compensation(training)
    if spec.pipeline.stages is not None and spec.pipeline.stages > spec.pipeline.nodes:
        yield f"pipeline.stages is {spec.pipeline.stages}, expected at most pipeline.nodes ({spec.pipeline.nodes})"
    for key in ("forward", "backward"):
        try:
            CodecSpec.parse(getattr(spec.compression, key))
        except ConfigError as error:
            yield f"compression.{key}: {error}"
    if isinstance(model, GptSpec):
        yield from _unsound_gpt(spec, model)
    if isinstance(model, FactorySpec) and not _is_plain(model.arguments):
        yield "model.arguments: expected numbers, texts, booleans, and lists and tables of them"


def _unused_by_the_compensation(training: TrainingSpec) -> Iterator[str]:
    owners = {
        "delay_extrapolation": "extrapolate",
        "delay_anneal_steps": "pipemare",
        "delay_discrepancy": "pipemare",
    }
    defaults = TrainingSpec(max_steps=training.max_steps)
    for key, owner in owners.items():
        value = getattr(training, key)
        if value != getattr(defaults, key) and training.delay_compensation != owner:
            yield (
                f"training.{key} is {value}, but only delay_compensation {owner!r} has it;"
                f" found {training.delay_compensation!r}"
            )


def _unsound_gpt(spec: RunSpec, model: GptSpec) -> Iterator[str]:
    head_size, rest = divmod(model.hidden_size, model.num_attention_heads)
    if rest:
        yield (
            f"model.hidden_size is {model.hidden_size},"
            f" expected a multiple of num_attention_heads ({model.num_attention_heads})"
        )
    if model.position_embedding == "rope" and head_size % 2:
        yield f"model.hidden_size / num_attention_heads is {head_size}, expected an even number for rope"
    length = getattr(spec.data, "sequence_length", None)
    if length is not None and length > model.max_position_embeddings:
        yield (
            f"data.sequence_length is {length},"
            f" expected at most model.max_position_embeddings ({model.max_position_embeddings})"
        )
    if spec.data.__struct_config__.tag == "text" and model.vocab_size < 256:
        yield f"model.vocab_size is {model.vocab_size}, expected at least 256: text is read as bytes"


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, bool | int | float | str)


# --- what a resume may change ---------------------------------------------------------------------------------------


def run_identity(spec: RunSpec, data_sha256: str = "") -> str:
    """Return a hash of what may not change from one attempt to the next, the content of the data included."""
    plain = to_builtins(spec)
    fixed = {key: _look_up(plain, key) for key in FIXED_KEYS}
    for path in _PATHS:
        table, _, key = path.partition(".")
        fixed[table] = {k: v for k, v in fixed[table].items() if k != key}
    return sha256(msgspec.json.encode([fixed, data_sha256], order="sorted")).hexdigest()


def changes(old: RunSpec, new: RunSpec) -> tuple[list[str], list[str]]:
    """Return, as sentences, what differs and may not, and what differs and may."""
    forbidden: list[str] = []
    allowed: list[str] = []
    before, after = dict(_leaves(to_builtins(old))), dict(_leaves(to_builtins(new)))
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) == after.get(key):
            continue
        sentence = f"{key} was {before.get(key)!r}, is {after.get(key)!r}"
        fixed = any(key == f or key.startswith(f"{f}.") for f in FIXED_KEYS) and key not in _PATHS
        (forbidden if fixed else allowed).append(sentence)
    return forbidden, allowed


def _leaves(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _look_up(table: dict[str, Any], path: str) -> Any:
    value: Any = table
    for key in path.split("."):
        value = value[key]
    return value
