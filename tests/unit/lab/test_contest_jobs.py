import pytest

from brigade.coordinator.run_file import read_run_file
from brigade.lab.contest_jobs import boundary_bytes, check, variant, write_run_file
from brigade.lab.yardstick import contender
from brigade.wire.errors import ConfigError
from brigade.wire.plan import Boundary, LeafSpec, Plan

RUN_FILE = """
name = "job"
output_dir = "elsewhere"

[model]
kind = "gpt"
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
tie_word_embeddings = {tied}

[data]
kind = "text"
path = "text.txt"
sequence_length = 8
validation_fraction = 0.2

[training]
max_steps = 400
warmup_steps = 30
batch_size = 8
microbatches = {microbatches}
eval_batches = 0
save_steps = 50
bf16 = {bf16}

[compression]
forward = "int8:block=64"
"""


@pytest.fixture
def read(tmp_path):
    def read(*, tied="false", microbatches=4, bf16="false"):
        (tmp_path / "text.txt").write_bytes(bytes(range(250)) * 4)
        path = tmp_path / "job.toml"
        path.write_text(RUN_FILE.format(tied=tied, microbatches=microbatches, bf16=bf16))
        return read_run_file(path)

    return read


def test_a_variant_that_is_shorter_than_the_warm_up_can_be_read(tmp_path, read):
    run = read()
    path = tmp_path / "shorter.toml"
    for steps in (12, 30, 50):
        write_run_file(path, variant(run, contender("plain"), 2, steps=steps))
        assert read_run_file(path).spec.training.warmup_steps == min(30, steps)


def test_a_variant_is_a_run_file_that_says_the_same(tmp_path, read):
    spec = variant(read(), contender("brigade-1f1b"), 3, steps=12)
    write_run_file(tmp_path / "variant.toml", spec)
    assert read_run_file(tmp_path / "variant.toml").spec == spec
    assert (spec.training.max_steps, spec.training.save_steps, spec.pipeline.stages) == (12, 0, 3)
    assert spec.compression.forward == spec.compression.backward == "raw"


def test_who_trains_as_configured_keeps_the_codecs(read):
    spec = variant(read(), contender("configured"), 2, steps=12, eval_every=4)
    assert spec.compression == read().spec.compression
    assert (spec.training.eval_steps, spec.training.eval_batches) == (4, 0)


@pytest.mark.parametrize(
    ("changes", "stages", "steps", "named"),
    [
        ({"microbatches": 3}, [2], 5, "training.microbatches"),
        ({"microbatches": 2}, [4], 5, "training.microbatches"),
        ({"bf16": "true"}, [2], 5, "training.bf16"),
        ({"tied": "true"}, [2], 5, "tie_word_embeddings"),
        ({}, [2], 500, "whole batches"),
    ],
)
def test_what_not_everybody_can_do_is_refused(read, changes, stages, steps, named):
    with pytest.raises(ConfigError, match=named):
        check(read(**changes), stages, steps)


def test_bytes_on_paper():
    """Two boundaries of 16 numbers in fp32 for each of 8 tokens, one of them with a mask that has no gradient."""
    numbers = LeafSpec(dtype="float32", fixed=(0, 8, 16), per_sample=(1, 0, 0))
    mask = LeafSpec(dtype="bool", fixed=(0, 8), per_sample=(1, 0))
    boundaries = (Boundary(structure=0, leaves=(numbers,)), Boundary(structure=[0, 1], leaves=(numbers, mask)))
    plan = Plan(
        run_id="r", generation=1, stages=(), schedule="1f1b", microbatches=4, train_samples=8, validation_samples=0,
        boundaries=boundaries,
    )  # fmt: skip
    assert boundary_bytes(plan, 2 * 8, 2) == (2 * 64 + 1, 2 * 64)
