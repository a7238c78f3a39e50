"""State files continue a run to the bit, with the same or another split."""

import pytest
import torch
from tests.numerics.comparison import assert_same_bits, run_spec, warm_up
from tests.numerics.models import tokens, vectors
from tests.numerics.pipeline import Pipeline

from brigade.wire.run_spec import FactorySpec, GptSpec

OPTIMIZERS = {
    "AdamW": {"optim": "AdamW", "weight_decay": 0.1},
    "SGD momentum": {"optim": "SGD", "optim_args": {"momentum": 0.9}},
    "NAdam": {"optim": "NAdam"},
    "Adafactor": {"optim": "Adafactor"},
    "ASGD": {"optim": "ASGD"},
    "Rprop": {"optim": "Rprop"},
    "AMSGrad": {"optim": "Adam", "optim_args": {"amsgrad": True}},
    "NAdamW extrapolated": {"optim": "NAdamW", "delay_compensation": "extrapolate"},
    "Muon predicted": {"optim": "Muon", "weight_decay": 0.1, "delay_compensation": "predict"},
}


class Counting(torch.optim.Optimizer):
    """SGD whose state holds no tensor but an int, a float and None, as optimizers outside torch do."""

    def __init__(self, params, lr=1e-3, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["updates"] = state.get("updates", 0) + 1
                    state["rate"] = group["lr"] / (1.0 + state["updates"])
                    state["nothing"] = None
                    with torch.no_grad():
                        p.add_(p.grad, alpha=-state["rate"])


@pytest.mark.parametrize("optim", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_another_split_continues_to_the_bit(optim, tmp_path):
    model = GptSpec(
        vocab_size=64, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, max_position_embeddings=16,
        tie_word_embeddings=True, dropout=0.1,
    )  # fmt: skip
    _check(run_spec(model, **optim), tokens(), tmp_path)


def test_state_that_is_no_tensor_continues_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.optim, "Counting", Counting, raising=False)
    _check(run_spec(FactorySpec(factory="tests.numerics.models:passed_through"), optim="Counting"), vectors(), tmp_path)


def test_buffers_continue_to_the_bit(tmp_path):
    _check(run_spec(FactorySpec(factory="tests.numerics.models:counting")), vectors(), tmp_path)


def _check(spec, source, directory):
    rate = warm_up(1e-2, steps=8)
    straight = Pipeline(spec, source, [0, 2, 4, 6], learning_rate=rate)
    rows = straight.run(range(6))
    stopped = Pipeline(spec, source, [0, 2, 4, 6], learning_rate=rate)
    stopped.run(range(3))
    stopped.save(directory)
    for cuts in ([0, 6], [0, 1, 5, 6]):
        resumed = Pipeline(spec, source, cuts, learning_rate=rate, files=directory)
        assert_same_bits(resumed.state(), stopped.state())
        again = resumed.run(range(3, 6))
        assert [row.loss for row in again] == [row.loss for row in rows[3:]]
        assert_same_bits(resumed.state(), straight.state())
        for stage in resumed.stages:
            rates = stage._optimizer.learning_rates()
            assert rates == [rate(5)] * len(rates)
