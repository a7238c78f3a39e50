"""What a node says of its codec: more work takes longer, and it says it of the largest boundary."""

import torch

from brigade.node.building import measure_device
from brigade.node.codec_times import time_codec
from brigade.wire.plan import Boundary, LeafSpec
from brigade.wire.run_spec import CompressionSpec, MlpSpec, RunSpec, TextData, TrainingSpec

ROWS = Boundary(structure=0, leaves=(LeafSpec(dtype="float32", fixed=(0, 6), per_sample=(1, 0)),))


def wide(width):
    return Boundary(structure=0, leaves=(LeafSpec(dtype="float32", fixed=(0, width), per_sample=(1, 0)),))


def test_a_larger_value_takes_longer():
    small, large = time_codec(wide(64), 4, "int8+zstd"), time_codec(wide(1 << 18), 4, "int8+zstd")
    assert 0 < small[0] < large[0]
    assert 0 < small[1] < large[1]


def test_a_node_reports_its_codec_unless_nothing_is_timed():
    spec = RunSpec(
        name="x",
        model=MlpSpec(input_size=6, hidden_sizes=(8, 16), num_labels=3),
        data=TextData(path="x"),
        training=TrainingSpec(max_steps=1, loss="mse"),
        compression=CompressionSpec(forward="int8+zstd"),
    )
    timed = measure_device(spec, ROWS, torch.device("cpu"))
    assert timed.encode_s > 0
    assert timed.decode_s > 0
    untimed = measure_device(spec, ROWS, torch.device("cpu"), timed=False)
    assert (untimed.encode_s, untimed.decode_s) == (0, 0)
    assert untimed.fingerprint == timed.fingerprint
    assert untimed.boundaries == timed.boundaries
