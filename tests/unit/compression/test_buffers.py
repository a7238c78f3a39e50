"""Bytes of tensors and tensors over bytes, without copies."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from brigade.compression.buffers import bytes_of, check_shape, check_tensor, dtype_of, plain, tensor_over
from brigade.wire.errors import ConfigError, RemoteProtocolError


def test_bytes_of_a_contiguous_tensor_are_a_view() -> None:
    tensor = torch.zeros(4)
    view = bytes_of(plain(tensor))
    tensor[0] = 1.0
    assert bytes(view[:4]) == np.float32(1).tobytes()
    assert view.nbytes == len(view) == 16


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_tensor_over_any_buffer_at_any_address(kind: type, offset: int) -> None:
    values = np.arange(6, dtype=np.float32)
    buffer = memoryview(bytes(offset) + values.tobytes())[offset:]
    tensor = tensor_over(kind(buffer), torch.float32)
    assert tensor.tolist() == values.tolist()


def test_tensor_over_keeps_the_memory_alive() -> None:
    tensor = tensor_over(np.full(1 << 20, 7, dtype=np.uint8).tobytes(), torch.uint8)
    _ = [bytes(1 << 20) for _ in range(16)]
    assert int(tensor.min()) == int(tensor.max()) == 7


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse_coo"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "qint8"),
        (lambda: torch.empty(3, device="meta"), "meta"),
        (lambda: torch.ones([1] * 17), "17 dimensions"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    ],
)
def test_kinds_that_cannot_travel_are_refused_by_name(make: Callable[[], torch.Tensor], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_tensor(make())


@pytest.mark.parametrize("name", ["qint8", "Tensor", "__class__", "", "float32 ", "x" * 10_000])
def test_only_known_dtypes_are_looked_up(name: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        dtype_of(name)
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize(
    "shape", [(-1,), (2.0,), (True, 3), ("3",), (2**60,), (2**24, 2**24), (1,) * 17, (2**40, 2**40, 0)]
)
def test_shapes_that_no_tensor_has_are_refused(shape: tuple[object, ...]) -> None:
    if shape == (2**40, 2**40, 0):
        assert check_shape(shape) == 0  # type: ignore[arg-type]
        return
    with pytest.raises(RemoteProtocolError):
        check_shape(shape)  # type: ignore[arg-type]
