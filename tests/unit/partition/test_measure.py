"""Bytes are exact, seconds are plausible, and equal blocks are measured once."""

import gc
import weakref

import pytest
import torch
from torch import nn

from brigade.partition import chain as chain_module
from brigade.partition import measure
from brigade.partition.chain import build_chain
from brigade.partition.measure import measure_chain
from brigade.wire.errors import ConfigError
from brigade.wire.plan import Boundary, LeafSpec
from brigade.wire.run_spec import CnnSpec, FactorySpec, GptSpec, MlpSpec, TrainingSpec

B, T, C, V, HEADS, LAYERS = 4, 16, 32, 50, 4, 3
SIZES = {
    "vocab_size": V, "hidden_size": C, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "max_position_embeddings": 20,
}  # fmt: skip
LEARNED = GptSpec(**SIZES, position_embedding="learned")


def toy(name, **arguments):
    return FactorySpec(factory=f"tests.unit.partition.toy_models:{name}", arguments=arguments)


def rows(dtype, *shape):
    return Boundary(
        structure=0, leaves=(LeafSpec(dtype=dtype, fixed=(0, *shape), per_sample=(1, *(0 for _ in shape))),)
    )


def training(**changes):
    return TrainingSpec(max_steps=1, **changes)


def report(spec, inputs, samples=B, **changes):
    return measure_chain(build_chain(spec), inputs, training(**changes), samples, "cpu")


def test_a_linear_chain_in_closed_form():
    n, size = 5, 6
    one = report(toy("drawn_afterwards"), rows("float32", size), n, loss="mse").blocks
    parameters = 4 * (size * size + size)
    for index, block in enumerate(one):
        assert block.parameter_bytes == block.gradient_bytes == parameters
        assert block.optimizer_bytes == 2 * parameters + 2 * 4  # two moments, a step counter for weight and bias each
        # the input; at the end the loss keeps its two operands: the output, which is no block's input, and the target
        assert block.saved_bytes == 4 * n * size + (4 * n * size if index == 2 else 0)
        assert block.output_bytes == (0 if index == 2 else 4 * n * size)


def test_a_gpt_in_closed_form():
    blocks = report(LEARNED, rows("int64", T)).blocks
    stream, position, attention = 4 * B * T * C, 4 * B * T, 4 * B * HEADS * T
    embedding, *layers, head = blocks
    assert embedding.parameter_bytes == 4 * (V * C + 20 * C)
    assert embedding.saved_bytes == 8 * B * T + 8 * T  # token ids, position numbers
    for layer in layers:
        assert layer.parameter_bytes == layer.gradient_bytes == 4 * (12 * C * C + 13 * C)
        assert layer.optimizer_bytes == 2 * layer.parameter_bytes + 4 * 12
        # input, two norms' outputs, query-key-value, attention's output, the stream between, 4x before and after GELU;
        # mean and deviation of two norms; attention's log-sum-exp
        assert layer.saved_bytes == (1 + 2 + 3 + 1 + 1 + 4 + 4) * stream + 4 * position + attention
        assert layer.output_bytes == stream
    assert head.parameter_bytes == 4 * (2 * C + C * V)
    # input, the norm's output and statistics; log-probabilities, targets and the loss's total weight
    assert head.saved_bytes == 2 * stream + 2 * position + 4 * B * T * V + 8 * B * T + 4
    assert head.output_bytes == 0


def test_buffers_are_memory_but_have_no_gradient():
    (layer,) = report(GptSpec(**SIZES), rows("int64", T)).blocks[1:2]
    assert layer.parameter_bytes - layer.gradient_bytes == 2 * 4 * 20 * (C // HEADS // 2)  # cosines and sines
    norm = report(MlpSpec(input_size=6, hidden_sizes=(8,), batch_norm=True), rows("float32", 6)).blocks[0]
    assert norm.parameter_bytes - norm.gradient_bytes == 4 * 8 + 4 * 8 + 8  # mean, variance, counter


@pytest.mark.parametrize(
    ("optim", "arguments", "per_parameter", "per_tensor"),
    [
        ("SGD", {}, 0, 0),
        ("SGD", {"momentum": 0.9}, 4, 0),
        ("AdamW", {}, 8, 4),
        ("Adagrad", {}, 4, 4),
        ("RMSprop", {}, 4, 4),
    ],
)
def test_optimizer_bytes_are_those_of_the_class_itself(optim, arguments, per_parameter, per_tensor):
    block = report(LEARNED, rows("int64", T), optim=optim, optim_args=arguments).blocks[1]
    assert block.optimizer_bytes == per_parameter * (12 * C * C + 13 * C) + per_tensor * 12


@pytest.mark.parametrize(
    ("changes", "per_parameter", "per_tensor"),
    [
        ({"optim": "AdamW", "delay_compensation": "predict"}, 4 * (2 + 1), 4),  # moments; what passes while predicting
        ({"optim": "NAdamW", "delay_compensation": "extrapolate"}, 4 * (2 + 1 + 1), 8),  # and the update before
        ({"optim": "SGD", "delay_compensation": "pipemare"}, 4, 0),
        ({"optim": "SGD", "delay_compensation": "predict"}, 4 * (1 + 1), 0),
    ],
)
def test_what_compensates_delay_is_counted(changes, per_parameter, per_tensor):
    block = report(LEARNED, rows("int64", T), **changes).blocks[1]
    assert block.optimizer_bytes == per_parameter * (12 * C * C + 13 * C) + per_tensor * 12


def test_muon_keeps_one_tensor_for_matrices_and_two_for_the_rest():
    embedding, layer, _, _, head = report(LEARNED, rows("int64", T), optim="Muon").blocks
    assert layer.optimizer_bytes == 4 * 12 * C * C + (
        8 * 13 * C + 4 * 8
    )  # four matrices; eight vectors, a counter each
    assert embedding.optimizer_bytes == 2 * embedding.parameter_bytes + 4 * 2
    assert head.optimizer_bytes == 2 * head.parameter_bytes + 4 * 3


def test_saved_bytes_grow_with_the_microbatch_alone():
    small, large = (report(GptSpec(**SIZES, dropout=0.1), rows("int64", T), n).blocks for n in (2, 6))
    for a, b in zip(small[1:-1], large[1:-1], strict=True):
        assert b.saved_bytes == 3 * a.saved_bytes
        assert b.output_bytes == 3 * a.output_bytes
        assert b.parameter_bytes == a.parameter_bytes


def test_recompute_keeps_the_inputs_only():
    blocks = report(LEARNED, rows("int64", T), gradient_checkpointing=True).blocks
    assert [block.saved_bytes for block in blocks] == [8 * B * T] + [4 * B * T * C] * (LAYERS + 1)


def test_frozen_parameters_have_neither_gradient_nor_state():
    blocks = report(LEARNED, rows("int64", T), freeze=("0.*", "2.attention.*")).blocks
    assert blocks[0].gradient_bytes == blocks[0].optimizer_bytes == 0
    assert blocks[0].backward_s < blocks[1].backward_s
    attention = 4 * (4 * C * C + 4 * C)
    assert blocks[2].gradient_bytes == blocks[1].gradient_bytes - attention
    assert blocks[3] == blocks[1]
    assert blocks[2].parameter_bytes == blocks[1].parameter_bytes


def test_followers_of_a_tie_have_a_gradient_but_no_state():
    blocks = report(GptSpec(**SIZES, tie_word_embeddings=True), rows("int64", T)).blocks
    assert blocks[-1].gradient_bytes == 4 * (C * V + 2 * C)
    assert blocks[-1].optimizer_bytes == 2 * 4 * 2 * C + 2 * 4
    assert blocks[0].optimizer_bytes == 2 * 4 * C * V + 4


def test_the_report_names_boundaries_ties_and_fingerprint():
    spec = GptSpec(**SIZES, tie_word_embeddings=True)
    found, chain = report(spec, rows("uint8", T)), build_chain(spec)
    assert found.fingerprint == chain.fingerprint
    assert found.tied == chain.tied
    assert found.boundaries == (rows("float32", T, C),) * (LAYERS + 1)
    assert len(found.blocks) == LAYERS + 2
    assert all(block.forward_s > 0 and block.backward_s > 0 and block.optimizer_s > 0 for block in found.blocks)


def test_autocast_decides_about_the_dtype_of_boundaries():
    mlp = MlpSpec(input_size=6, hidden_sizes=(8, 8))
    found = report(mlp, rows("float32", 6), bf16=True)
    assert [b.leaves[0].dtype for b in found.boundaries] == ["bfloat16", "bfloat16"]
    assert [b.output_bytes for b in found.blocks] == [2 * B * 8, 2 * B * 8, 0]
    assert [b.leaves[0].dtype for b in report(mlp, rows("float32", 6)).boundaries] == ["float32", "float32"]


def test_equal_blocks_are_measured_once_and_never_two_live(monkeypatch):
    original = chain_module.Chain.materialise
    made, alive = [], weakref.WeakSet()

    def counting(self, first, end, seed, device):
        gc.collect()
        assert not alive
        blocks = original(self, first, end, seed, device)
        made.append(first)
        alive.update(blocks)
        return blocks

    monkeypatch.setattr(chain_module.Chain, "materialise", counting)
    report(GptSpec(**SIZES), rows("int64", T))
    assert made == [0, 1, LAYERS + 1]
    made.clear()
    report(MlpSpec(input_size=8, hidden_sizes=(8, 8, 8, 16)), rows("float32", 8))
    assert made == [0, 1, 3, 4]  # the first block owes nobody a gradient, so it is a case of its own


def test_settings_that_no_shape_shows_make_another_case():
    def case(block):
        place = measure._Case(0, False, False, rows("float32", 4), frozenset(), frozenset(), frozenset())
        return measure._signature(block, place)

    class Window(nn.Linear):
        def __init__(self, width):
            super().__init__(4, 4)
            self.width = width

    assert case(nn.Dropout(0.1)) != case(nn.Dropout(0.2))
    assert case(Window(1)) != case(Window(2))
    assert case(Window(1)) == case(Window(1))
    assert case(nn.Linear(4, 4)) != case(nn.Linear(4, 4, bias=False))


def test_nested_boundaries_and_blocks_without_parameters():
    found = report(toy("nested"), rows("float32", 4))
    assert [block.parameter_bytes for block in found.blocks] == [0, 0, 0, 4 * 20]
    assert [block.optimizer_s for block in found.blocks[:3]] == [0, 0, 0]
    assert found.blocks[0].output_bytes == B * 4 * (4 + 1 + 8)


def test_the_time_of_a_larger_block_is_larger():
    blocks = report(CnnSpec(hidden_channels=(4, 64), batch_norm=False), rows("float32", 1, 28, 28), 16).blocks
    assert blocks[1].parameter_bytes > blocks[0].parameter_bytes
    small, large = (report(toy("drawn_afterwards", size=s), rows("float32", s), 64).blocks[1] for s in (8, 512))
    assert large.forward_s > small.forward_s
    assert large.backward_s > small.backward_s


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optim": "Adamw"}, "training.optim: found 'Adamw', expected a class of torch.optim"),
        ({"optim": "Optimizer"}, "training.optim: found 'Optimizer', expected a class of torch.optim"),
        ({"optim": "lr_scheduler"}, "expected a class of torch.optim"),
        ({"optim_args": {"momentum": 0.9}}, "training.optim_args.momentum: AdamW takes"),
        ({"optim": "LBFGS"}, "training.optim: LBFGS evaluates the model many times"),
        ({"optim": "SparseAdam"}, "training.optim: SparseAdam cannot update: .*dense"),
    ],
)
def test_optimizers_that_cannot_be_used(changes, message):
    with pytest.raises(ConfigError, match=message):
        report(toy("drawn_afterwards"), rows("float32", 6), **changes)


def test_a_block_that_fails_with_values_only_is_named():
    class Fails(nn.Module):
        def forward(self, x):
            if not x.is_meta:
                raise RuntimeError("no kernel")
            return x

    chain = build_chain(toy("raw", blocks=2))
    broken = chain_module.Chain(
        spec=chain.spec, blocks=[chain.blocks[0], Fails()], tied=(), obstacles=((), ()), fingerprint=""
    )
    with pytest.raises(ConfigError, match=r"model: block 1 \(Fails\) fails on cpu: RuntimeError: no kernel"):
        measure_chain(broken, rows("float32", 6), training(), 2, "cpu")


def test_measuring_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    report(GptSpec(**SIZES, dropout=0.1), rows("int64", T))
    assert torch.equal(torch.rand(2), expected)
