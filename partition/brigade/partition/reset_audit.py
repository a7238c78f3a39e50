"""Which blocks can be made alone: those whose `reset_parameters` repeats what their construction did.

A block is built on the meta device, where nothing has values. `reset_parameters` (torch's convention) gives it values
later, on its own. That is only the model its author meant if resetting writes what constructing wrote: a factory that
draws weights with `nn.init` after it made an `nn.Linear` would lose them without a word. So all in-place writes are
recorded while the model is built on meta, and recorded again while the blocks are reset on meta; a block with any
difference, or with a tensor that resetting leaves alone, has to be taken from a whole model that is built for real.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

_WRITES_WITHOUT_UNDERSCORE = {
    "__setitem__", "__set__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__ipow__",
}  # fmt: skip
_NO_WRITES = {"requires_grad_", "share_memory_", "rename_"}

Write = tuple[str, str]


class WriteRecorder(TorchFunctionMode):
    """While active, notes every in-place write to a tensor under the tensor's storage."""

    def __init__(self) -> None:
        super().__init__()
        self._writes: dict[StorageWeakRef, list[Write]] = defaultdict(list)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`, then note what it wrote to."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        in_place = (name.endswith("_") and not name.endswith("__")) or name in _WRITES_WITHOUT_UNDERSCORE
        target = kwargs.get("out")
        if target is None and in_place and name not in _NO_WRITES:
            target = args[0] if args else kwargs.get("tensor", kwargs.get("input"))
        if isinstance(target, Tensor):
            self._writes[_storage(target)].append((name, _describe(args[1:], kwargs)))
        return result

    def writes(self, tensor: Tensor) -> list[Write]:
        """Return the writes so far to the storage of `tensor`, in order."""
        return list(self._writes.get(_storage(tensor), ()))


def audit(blocks: Sequence[nn.Module], built: WriteRecorder, followers: Iterable[str]) -> list[tuple[str, ...]]:
    """Return, for each block on meta, why it cannot be made alone; an empty tuple when it can.

    `built` was active while the blocks were made. `followers` are keys `"<block>.<name>"` of tied parameters, whose
    values come from their owner.
    """
    ignored = set(followers)
    return [
        tuple(_audit_block(block, built, {key.partition(".")[2] for key in ignored if key.startswith(f"{index}.")}))
        for index, block in enumerate(blocks)
    ]


def _audit_block(original: nn.Module, built: WriteRecorder, ignored: set[str]) -> list[str]:
    expected = {name: built.writes(tensor) for name, tensor in owned_tensors(original).items()}
    block = copy.deepcopy(original)
    before = {name: tensor for name, tensor in owned_tensors(block).items() if tensor.is_meta}
    registered = {name for name, _ in (*_parameters(block), *_buffers(block))}
    recorder = WriteRecorder()
    try:
        with torch.device("meta"), recorder:
            reset(block)
    except Exception as error:  # noqa: BLE001 - reset_parameters is another person's code
        return [f"{type(original).__name__}.reset_parameters fails without values ({type(error).__name__}: {error})"]
    after = owned_tensors(block)
    reasons = []
    for name, tensor in before.items():
        if name in ignored:
            continue
        replaced = after.get(name) is not tensor
        repeated = name in registered and recorder.writes(tensor)
        if not replaced and not repeated:
            reasons.append(f"{_where(original, name)} is set by no reset_parameters")
        elif not replaced and repeated != expected[name]:
            reasons.append(f"{_where(original, name)} is set otherwise than reset_parameters does")
    return reasons


def reset(block: nn.Module) -> None:
    """Call `reset_parameters` of every module in `block` that has one, children before parents."""
    seen: set[nn.Module] = set()

    def visit(module: nn.Module) -> None:
        if module in seen:
            return
        seen.add(module)
        method = getattr(module, "reset_parameters", None)
        if method is None and isinstance(module, nn.MultiheadAttention):
            method = module._reset_parameters  # noqa: SLF001 - torch's one module that hides the convention
        if callable(method):
            method()

    block.apply(visit)


def owned_tensors(block: nn.Module) -> dict[str, Tensor]:
    """Return parameters, buffers and plain tensor attributes of `block` by dotted name, with shared ones repeated."""
    owned = dict((*_parameters(block), *_buffers(block)))
    for path, module in block.named_modules():
        for attribute, value in vars(module).items():
            if attribute in {"_parameters", "_buffers", "_modules"}:
                continue
            values = (
                value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
            )
            for position, tensor in enumerate(values):
                if isinstance(tensor, Tensor):
                    owned[f"{path}.{attribute}[{position}]".lstrip(".")] = tensor
    return owned


def _parameters(block: nn.Module) -> list[tuple[str, Tensor]]:
    return list(block.named_parameters(remove_duplicate=False))


def _buffers(block: nn.Module) -> list[tuple[str, Tensor]]:
    return list(block.named_buffers(remove_duplicate=False))


def _where(block: nn.Module, name: str) -> str:
    path = name.rpartition(".")[0]
    try:
        owner = block.get_submodule(path)
    except AttributeError:
        owner = block
    return f"{name} of {type(owner).__name__}"


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _describe(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    parts = [*args, *(value for key, value in sorted(kwargs.items()) if key not in {"out", "tensor", "input"})]
    return repr([tuple(part.shape) if isinstance(part, Tensor) else part for part in parts if part is not None])
