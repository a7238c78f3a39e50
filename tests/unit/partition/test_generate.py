"""Generated text follows the model and the seed."""

import torch
from torch import nn

from brigade.partition.chain import PlainModel, plain_model
from brigade.partition.generate import sample_text
from brigade.wire.run_spec import GptSpec

SPEC = GptSpec(hidden_size=32, num_hidden_layers=1, max_position_embeddings=16, dropout=0.5)


class Successor(nn.Module):
    """Says that byte b is followed by b + 1, surely; remembers how much it was shown."""

    def __init__(self, vocabulary=256, sharpness=100.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(sharpness))
        self.vocabulary = vocabulary
        self.max_position_embeddings = 4
        self.shown = 0

    def forward(self, ids):
        self.shown = max(self.shown, ids.shape[1])
        logits = nn.functional.one_hot((ids + 1) % 256, self.vocabulary) * self.scale
        logits[..., 256:] = 1e6  # tokens that are no bytes
        return logits


def test_a_sure_model_counts():
    for temperature in (0.0, 1.0):
        assert sample_text(PlainModel(Successor()), b"abc", 5, temperature, 0) == b"defgh"
    assert sample_text(PlainModel(Successor()), b"", 2, 1.0, 0) == bytes([11, 12])
    assert sample_text(PlainModel(Successor()), b"\xff", 2, 1.0, 0) == bytes([0, 1])


def test_no_more_is_shown_than_the_model_has_positions():
    block = Successor()
    assert len(sample_text(PlainModel(block), b"abcdefgh", 20, 1.0, 0)) == 20
    assert block.shown == 4
    assert len(sample_text(plain_model(SPEC, 0), b"x" * 30, 40, 1.0, 0)) == 40


def test_tokens_beyond_bytes_are_never_chosen():
    assert sample_text(PlainModel(Successor(300)), b"a", 3, 1.0, 0) == b"bcd"


def test_the_seed_decides_and_nothing_else_changes():
    model = plain_model(SPEC, 0)
    torch.manual_seed(9)
    expected = torch.rand(1)
    torch.manual_seed(9)
    one, again, other = (sample_text(model, b"to be", 30, 1.0, seed) for seed in (1, 1, 2))
    assert one == again  # dropout is off
    assert one != other
    assert torch.equal(torch.rand(1), expected)
    assert model.training


def test_temperature_weighs_chances():
    model = PlainModel(Successor(sharpness=3.0))
    cold, hot = (sample_text(model, b"a", 400, t, 3) for t in (0.3, 10.0))

    def hits(text):
        return sum(b == (a + 1) % 256 for a, b in zip(b"a" + text, text, strict=False)) / len(text)

    assert hits(cold) > 0.95  # softmax: e^10 against 255
    assert hits(hot) < 0.1  # e^0.3 against 255
