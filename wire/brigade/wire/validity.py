"""What the fields of a message may hold, beyond their types: the same rules for what we send and what we receive.

Every rule raises RemoteProtocolError and allocates nothing to speak of; sizes are computed in Python integers, which
do not overflow.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from brigade.wire.costs import DeviceReport
from brigade.wire.endpoint import parse_endpoint
from brigade.wire.errors import ConfigError, RemoteProtocolError
from brigade.wire.keys import is_key, is_node_id
from brigade.wire.limits import DEFAULT_LIMITS, Limits
from brigade.wire.message_parts import FileSpec, StageStatistics, TensorHeader, ValueHeader
from brigade.wire.messages import (
    Activation,
    ApplyStep,
    FilePart,
    FileWanted,
    Gradient,
    GradientsReady,
    Hello,
    Leaving,
    LinkProbe,
    LoadStage,
    MeasureLinks,
    NodeFailed,
    Pulse,
    TiedGradient,
    TiedWeight,
    Welcome,
)
from brigade.wire.plan import LeafSpec, NodeContact, Plan

Buffer = bytes | bytearray | memoryview

# Names as torch prints them, without "torch.", and bytes per element.
ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "bool": 1,
}

MAX_INT = 2**53 - 1  # what every reader of JSON holds exactly; far below what a sum in SQLite or MessagePack can be
MOST_VERSIONS = 1024  # of weights, that a stage may be told to keep
_MAY_BE_MINUS_ONE = frozenset({("NodeFailed", "stage"), ("NodeFailed", "step"), ("Pulse", "step")})
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CODEC = re.compile(r"[\x21-\x7e]{1,256}")
_DRIVE = re.compile(r"[A-Za-z]:")


def check_message(message: Any, limits: Limits = DEFAULT_LIMITS) -> None:
    """Check every number and every part of a message; RemoteProtocolError says which field holds what."""
    kind: type = type(message)
    has_sizes = kind is LeafSpec  # they may be negative
    for name, least in _fields_of(kind):
        part = getattr(message, name)
        what: type = type(part)
        if what is int:
            if not has_sizes and not least <= part <= MAX_INT:
                raise RemoteProtocolError(f"{kind.__name__}.{name} is {part}, expected {least} or more, in 53 bits")
        elif what is tuple:
            inner: type = type(part[0]) if part else type(None)  # tuples hold one kind of item
            if inner is int:
                if not has_sizes and not 0 <= min(part) <= max(part) <= MAX_INT:
                    raise RemoteProtocolError(f"{kind.__name__}.{name} has a number below 0 or above 53 bits")
            elif _is_part(inner):
                for item in part:
                    check_message(item, limits)
        elif _is_part(what):
            check_message(part, limits)
    rule = _RULES.get(kind)  # last: it may rely on sound parts
    if rule is not None:
        rule(message, limits)


def check_frames(message: Any, frames: Sequence[Buffer], limits: Limits = DEFAULT_LIMITS) -> None:
    """Check that exactly the frames came that a (checked) message announces, none above the limits."""
    wanted = frame_count(message)
    name = type(message).__name__
    if len(frames) != wanted:
        raise RemoteProtocolError(f"{name} came with {len(frames)} frames and announces {wanted}")
    sizes = [memoryview(frame).nbytes for frame in frames]
    if sizes and max(sizes) > limits.max_frame_bytes:
        raise RemoteProtocolError(f"{name} has a frame of {max(sizes)} bytes, at most {limits.max_frame_bytes}")
    if sum(sizes) > limits.max_message_bytes:
        raise RemoteProtocolError(f"{name} has {sum(sizes)} bytes, at most {limits.max_message_bytes}")
    if isinstance(message, FilePart):
        if sizes[0] > limits.max_file_part_bytes:
            raise RemoteProtocolError(f"a FilePart of {sizes[0]} bytes, at most {limits.max_file_part_bytes}")
        if message.offset + sizes[0] > message.size:
            raise RemoteProtocolError(f"a FilePart runs beyond the {message.size} bytes of its file")


def frame_count(message: Any) -> int:
    """Return how many frames belong to a message."""
    match message:
        case Activation():
            return _frames_of(message.value) + _frames_of(message.targets)
        case Gradient():
            return _frames_of(message.value)
        case TiedGradient() | TiedWeight():
            return message.tensor.frames
        case FilePart() | LinkProbe():
            return 1
    return 0


def check_value_header(value: ValueHeader, limits: Limits = DEFAULT_LIMITS) -> None:
    """Check the tensors of a value: how many, and each of them."""
    check_message(value, limits)


def check_tensor_header(tensor: TensorHeader, limits: Limits = DEFAULT_LIMITS) -> None:
    """Check dtype name, shape, decoded size, codec text and frame count of one tensor."""
    item_bytes = ITEM_BYTES.get(tensor.dtype)
    _require(item_bytes is not None, "a tensor has the unknown dtype", tensor.dtype)
    shape = tensor.shape
    _require(len(shape) <= limits.max_dims, "a tensor has too many dimensions:", len(shape))
    _require(all(0 <= size <= limits.max_dim for size in shape), "a tensor has the shape", shape)
    # All at once: a zero among the sizes must not hide what the others claim beside it.
    claimed = math.prod(max(size, 1) for size in shape) * (item_bytes or 0)
    _require(claimed <= limits.max_tensor_bytes, "a tensor is too large, with the shape", shape)
    _require(_CODEC.fullmatch(tensor.codec) is not None, "a tensor has the codec text", tensor.codec)
    _require(0 <= tensor.frames <= limits.max_frames, "a tensor has a frame count of", tensor.frames)


def is_safe_name(name: str) -> bool:
    """Tell whether a file name stays below whatever directory it is joined to.

    Relative, forward slashes, no empty, `.` or `..` part, no backslash, drive or control character, parts of at most
    255 bytes of UTF-8.
    """
    try:
        sizes = [len(part.encode()) for part in name.split("/")]
    except UnicodeEncodeError:
        return False
    return (
        len(name) <= 1024
        and all(0 < size <= 255 for size in sizes)
        and not {".", ".."} & set(name.split("/"))
        and "\\" not in name
        and name.isprintable()
        and _DRIVE.match(name) is None
    )


def is_node_name(name: str) -> bool:
    """Tell whether a node may be called so: 1 to 64 printable characters without blanks around them."""
    return 1 <= len(name) <= 64 and name.isprintable() and name == name.strip()


@functools.cache
def _fields_of(kind: type) -> tuple[tuple[str, int], ...]:
    """Return the fields of a message or part, and the least number that each may hold."""
    names = [field.name for field in dataclasses.fields(kind)]
    return tuple((name, -1 if (kind.__name__, name) in _MAY_BE_MINUS_ONE else 0) for name in names)


@functools.cache
def _is_part(kind: type) -> bool:
    return dataclasses.is_dataclass(kind)


def _check_value(value: ValueHeader, limits: Limits) -> None:
    _require(len(value.tensors) <= limits.max_tensors, "a value has too many tensors:", len(value.tensors))
    _require(_frames_of(value) <= limits.max_frames, "a value has too many frames:", _frames_of(value))


def _frames_of(value: ValueHeader) -> int:
    return sum(tensor.frames for tensor in value.tensors)


def _check_activation(message: Activation, limits: Limits) -> None:
    _require(frame_count(message) <= limits.max_frames, "an Activation has too many frames:", frame_count(message))
    _check_samples(message, limits)


def _check_samples(message: Activation | GradientsReady, limits: Limits) -> None:
    count = len(message.samples)
    _require(count <= limits.max_samples, f"{type(message).__name__} has too many sample ids:", count)


def _check_leaf(leaf: LeafSpec, limits: Limits) -> None:
    _require(leaf.dtype in ITEM_BYTES, "a boundary has the unknown dtype", leaf.dtype)
    _require(len(leaf.fixed) == len(leaf.per_sample), "a boundary has shapes of different lengths:", len(leaf.fixed))
    _require(len(leaf.fixed) <= limits.max_dims, "a boundary has too many dimensions:", len(leaf.fixed))
    sizes = (*leaf.fixed, *leaf.per_sample)
    _require(all(abs(size) <= limits.max_dim for size in sizes), "a boundary has a size beyond", limits.max_dim)


def _check_gradients(message: GradientsReady, limits: Limits) -> None:
    _check_samples(message, limits)
    _require(not message.squared_norm < 0, "GradientsReady has a squared norm of", message.squared_norm)


def _check_statistics(statistics: StageStatistics, _: Limits) -> None:
    for name, _least in _fields_of(StageStatistics):
        number = getattr(statistics, name)
        _require(0 <= number <= MAX_INT, f"StageStatistics.{name} is", number)  # refuses what is not a number, too


def _check_failed(message: NodeFailed, limits: Limits) -> None:
    _check_text("NodeFailed.what", message.what, limits.max_label_characters)
    _check_text("NodeFailed.error", message.error, limits.max_reason_characters)


def _check_leaving(message: Leaving, limits: Limits) -> None:
    _check_text("Leaving.reason", message.reason, limits.max_reason_characters)


def _check_pulse(message: Pulse, limits: Limits) -> None:
    _check_text("Pulse.doing", message.doing, limits.max_label_characters)


def _check_device(device: DeviceReport, limits: Limits) -> None:
    for name in ("kind", "name", "host", "software"):
        _check_text(f"DeviceReport.{name}", getattr(device, name), limits.max_label_characters)


def _check_text(field: str, text: str, most: int) -> None:
    _require(len(text) <= most, f"{field} has more than {most} characters:", text)


def _check_contact(contact: NodeContact, _: Limits) -> None:
    _require(is_node_id(contact.node_id), "a node has the id", contact.node_id)
    _require(is_node_name(contact.name), "a node has the name", contact.name)
    _require(is_key(contact.public_key), "a node has the public key", contact.public_key)
    try:
        parse_endpoint(contact.endpoint, to_dial=True)
    except ConfigError as error:
        raise RemoteProtocolError(f"a node has no usable endpoint: {error}") from error


def _check_plan(plan: Plan, _: Limits) -> None:
    _require(len(plan.stages) >= 1, "a plan has too few stages:", len(plan.stages))
    _require(len(plan.boundaries) == len(plan.stages) - 1, "a plan has boundaries:", len(plan.boundaries))
    _require(plan.microbatches >= 1, "a plan has microbatches:", plan.microbatches)
    _require(len(plan.warm_ups) in {0, len(plan.stages)}, "a plan has warm-ups:", len(plan.warm_ups))
    falling = sorted(plan.warm_ups, reverse=True) == list(plan.warm_ups)
    _require(falling, "a plan has warm-ups that rise along the line:", plan.warm_ups)
    _require(plan.mode in {"exact", "async", "lowmem"}, "a plan has the mode", plan.mode)
    sound = plan.versions == 1 if plan.mode == "exact" else 2 <= plan.versions <= MOST_VERSIONS
    _require(sound, f"a plan of mode {plan.mode} has versions:", plan.versions)
    begins = (0, *(stage.end_block for stage in plan.stages))
    for stage, first in zip(plan.stages, begins[:-1], strict=True):
        sound = stage.first_block == first < stage.end_block
        _require(sound, "a plan has a stage of the blocks", (stage.first_block, stage.end_block))


def _check_load(message: LoadStage, _: Limits) -> None:
    _require(message.stage < len(message.plan.stages), "LoadStage names the stage", message.stage)


def _check_hello(message: Hello, _: Limits) -> None:
    _require(is_node_name(message.name), "Hello has the name", message.name)
    _check_port("Hello", message.data_port)


def _check_welcome(message: Welcome, _: Limits) -> None:
    _check_port("Welcome", message.pulse_port)
    _check_port("Welcome", message.bulk_port)
    _check_seconds("Welcome", message.pulse_interval_s)
    _check_seconds("Welcome", message.silence_limit_s)


def _check_measure(message: MeasureLinks, limits: Limits) -> None:
    _require(message.payload_bytes <= limits.max_frame_bytes, "MeasureLinks asks for bytes:", message.payload_bytes)
    _check_seconds("MeasureLinks", message.deadline_s)


def _check_apply(message: ApplyStep, _: Limits) -> None:
    for value in (message.learning_rate, message.gradient_scale):
        _require(math.isfinite(value) and value >= 0, "ApplyStep has a rate or a scale of", value)


def _check_file(file: FileSpec, _: Limits) -> None:
    _check_name(file.name)
    _require(_SHA256.fullmatch(file.sha256) is not None, "a file has the checksum", file.sha256)


def _check_wanted(message: FileWanted, _: Limits) -> None:
    _check_name(message.name)


def _check_part(message: FilePart, _: Limits) -> None:
    _check_name(message.name)
    _require(message.offset <= message.size, "a FilePart begins beyond its file, at", message.offset)


def _check_name(name: str) -> None:
    _require(is_safe_name(name), "a file has the unsafe name", name)


def _check_port(kind: str, port: int) -> None:
    _require(1 <= port <= 65535, f"{kind} has the port", port)


def _check_seconds(kind: str, seconds: float) -> None:
    _require(math.isfinite(seconds) and seconds > 0, f"{kind} has a time of seconds:", seconds)


def _require(condition: bool, what: str, found: object) -> None:
    if not condition:
        shown = repr(found[:80] if isinstance(found, str | tuple) else found)
        raise RemoteProtocolError(f"{what} {shown}")


_RULES: dict[type, Callable[[Any, Limits], None]] = {
    Activation: _check_activation,
    ApplyStep: _check_apply,
    DeviceReport: _check_device,
    FilePart: _check_part,
    FileSpec: _check_file,
    FileWanted: _check_wanted,
    GradientsReady: _check_gradients,
    Hello: _check_hello,
    LeafSpec: _check_leaf,
    Leaving: _check_leaving,
    LoadStage: _check_load,
    MeasureLinks: _check_measure,
    NodeContact: _check_contact,
    NodeFailed: _check_failed,
    Plan: _check_plan,
    Pulse: _check_pulse,
    StageStatistics: _check_statistics,
    TensorHeader: check_tensor_header,
    ValueHeader: _check_value,
    Welcome: _check_welcome,
}
