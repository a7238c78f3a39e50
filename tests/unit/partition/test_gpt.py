"""The built-in language model is the one its documentation describes."""

import math

import pytest
import torch
from torch.nn import functional

from brigade.partition import gpt
from brigade.partition.chain import plain_model
from brigade.wire.errors import ConfigError
from brigade.wire.run_spec import GptSpec

KINDS = [
    {"position_embedding": position, "tie_word_embeddings": tied}
    for position in ("rope", "learned")
    for tied in (False, True)
]


def model(**changes):
    sizes = {
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 24,
    }
    return plain_model(GptSpec(**sizes | changes), 11)


@pytest.mark.parametrize("kind", KINDS)
def test_no_position_sees_what_comes_after_it(kind):
    net = model(**kind).eval()
    ids = torch.randint(0, 97, (2, 24))
    base = net(ids)
    for position in (0, 7, 23):
        changed = ids.clone()
        changed[:, position:] = (changed[:, position:] + 1) % 97
        out = net(changed)
        assert torch.equal(out[:, :position], base[:, :position])
        assert (out[:, position] != base[:, position]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_an_earlier_token_changes_every_later_position(kind):
    net = model(**kind).eval()
    ids = torch.randint(0, 97, (1, 24))
    changed = ids.clone()
    changed[0, 3] = (changed[0, 3] + 1) % 97
    differs = (net(ids) != net(changed)).any(-1)[0]
    assert differs.tolist() == [False] * 3 + [True] * 21


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_loss_is_that_of_guessing(kind):
    net = model(vocab_size=256, hidden_size=128, **kind)
    ids, targets = torch.randint(0, 256, (16, 24)), torch.randint(0, 256, (16, 24))
    loss = functional.cross_entropy(net(ids).flatten(0, 1), targets.flatten())
    assert loss.item() == pytest.approx(math.log(256), abs=0.1)


def test_word_order_matters_with_either_kind_of_position():
    for position in ("rope", "learned"):
        net = model(position_embedding=position).eval()
        forward, swapped = net(torch.tensor([[1, 2, 3]])), net(torch.tensor([[2, 1, 3]]))
        assert not torch.allclose(forward[0, 2], swapped[0, 2], atol=1e-6)


def test_rotary_positions_are_complex_rotations():
    attention = model()[1].attention
    x = torch.randn(1, 4, 24, 8)
    pairs = torch.complex(x[..., :4].double(), x[..., 4:].double())
    angles = torch.arange(24.0).double()[:, None] / 10_000 ** (torch.arange(4).double() / 4)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat((turned.real, turned.imag), -1).float()
    torch.testing.assert_close(attention._rotate(x), expected)


def test_rotary_scores_depend_on_the_distance_only():
    attention = model()[1].attention
    query, key = torch.randn(8), torch.randn(8)
    turned_query = attention._rotate(query.expand(1, 1, 24, 8))[0, 0]
    turned_key = attention._rotate(key.expand(1, 1, 24, 8))[0, 0]
    scores = turned_query @ turned_key.T
    for distance in range(24):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4, rtol=1e-4)


def test_attention_equals_its_definition():
    attention = model(position_embedding="learned")[1].attention
    x = torch.randn(2, 5, 32)
    q, k, v = (part.view(2, 5, 4, 8).transpose(1, 2) for part in attention.qkv(x).split(32, -1))
    scores = q @ k.transpose(-1, -2) / math.sqrt(8)
    scores = scores.masked_fill(torch.triu(torch.ones(5, 5, dtype=torch.bool), 1), float("-inf"))
    expected = attention.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 5, 32))
    torch.testing.assert_close(attention(x), expected)


def test_initial_weights_follow_gpt2():
    net = model(hidden_size=128, num_hidden_layers=8)
    for layer in list(net)[1:-1]:
        for weight in (layer.attention.qkv.weight, layer.feed_forward.up.weight):
            assert weight.std().item() == pytest.approx(0.02, rel=0.05)
        for weight in (layer.attention.out.weight, layer.feed_forward.down.weight):
            assert weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
        for linear in (layer.attention.qkv, layer.attention.out, layer.feed_forward.up, layer.feed_forward.down):
            assert not linear.bias.any()
    assert net[0].tokens.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert net[9].projection.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_parameter_count_is_the_closed_form():
    c, layers, v, t = 32, 3, 97, 24
    layer = 12 * c * c + 13 * c  # qkv, out, up, down with biases; two norms
    untied = v * c + layers * layer + 2 * c + c * v
    assert sum(p.numel() for p in model().parameters()) == untied
    assert sum(p.numel() for p in model(tie_word_embeddings=True).parameters()) == untied - v * c
    assert sum(p.numel() for p in model(position_embedding="learned").parameters()) == untied + t * c
    narrow = sum(p.numel() for p in model(intermediate_size=10).parameters())
    assert narrow == untied - layers * (2 * c * (4 * c - 10) + 4 * c - 10)


def test_dropout_is_decided_by_the_global_generator_alone():
    net = model(dropout=0.3)
    ids = torch.randint(0, 97, (2, 24))
    torch.manual_seed(5)
    one = net(ids)
    torch.manual_seed(5)
    again = net(ids)
    torch.manual_seed(6)
    other = net(ids)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    state = torch.get_rng_state()
    net.eval()
    assert torch.equal(net(ids), net(ids))
    assert torch.equal(torch.get_rng_state(), state)
    still = model()
    assert torch.equal(still(ids), still(ids))
    assert torch.equal(torch.get_rng_state(), state)


def test_every_dropout_of_the_model_drops():
    net = model(dropout=0.5)
    assert (net[0](torch.randint(0, 97, (4, 24))) == 0).float().mean().item() == pytest.approx(0.5, abs=0.1)
    layer, x = net[1], torch.randn(2, 24, 32)
    for part in (layer.attention, layer.feed_forward):
        assert (part(x) == 0).float().mean().item() == pytest.approx(0.5, abs=0.1)
    attention = layer.attention
    attention.dropout.p = 0.0  # leaves the dropout of attention weights
    assert not torch.equal(attention(x), attention(x))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_ids_of_any_integer_type(dtype):
    net = model()
    ids = torch.randint(0, 97, (2, 5))
    assert torch.equal(net(ids.to(dtype)), net(ids))


def test_too_long_a_row_is_named():
    with pytest.raises(ValueError, match="25 tokens in a row"):
        model()(torch.zeros(1, 25, dtype=torch.long))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ConfigError, match=r"model.hidden_size: 30 is no multiple"):
        gpt.build(GptSpec(hidden_size=30, num_attention_heads=4))
    with pytest.raises(ConfigError, match="even number of dimensions per head, found 3"):
        gpt.build(GptSpec(hidden_size=12, num_attention_heads=4))
    gpt.build(GptSpec(hidden_size=12, num_attention_heads=4, position_embedding="learned", num_hidden_layers=1))
