import math

import pytest
import torch
from torch import nn

from brigade.partition.chain import build_chain
from brigade.partition.optimizers import build_optimizers, check_optimizer, hidden_matrices, optimizer_class
from brigade.wire.errors import ConfigError
from brigade.wire.plan import TiedParameter
from brigade.wire.run_spec import GptSpec, MlpSpec, TrainingSpec


def parameters():
    torch.manual_seed(0)
    return {"0.weight": nn.Parameter(torch.randn(3, 2)), "0.bias": nn.Parameter(torch.randn(3))}


def training(**values):
    return TrainingSpec(max_steps=1, **values)


def test_an_optimizer_is_checked_without_a_model():
    check_optimizer(training(optim="AdamW", weight_decay=0.1, optim_args={"amsgrad": True}))
    check_optimizer(training(optim="Muon", adam_beta2=0.95, optim_args={"momentum": 0.9}))
    with pytest.raises(ConfigError, match=r"training\.optim: found 'Adamm'.*did you mean Adam"):
        check_optimizer(training(optim="Adamm"))
    with pytest.raises(ConfigError, match=r"training\.optim_args\.momentun: SGD takes .*did you mean momentum"):
        check_optimizer(training(optim="SGD", optim_args={"momentun": 0.9}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optim": "adamw"}, r"training\.optim: found 'adamw', .*did you mean AdamW\?"),
        ({"optim": "Optimizer"}, r"training\.optim: found 'Optimizer'"),
        ({"optim": "lr_scheduler"}, r"training\.optim: found 'lr_scheduler'"),
        ({"optim": "LBFGS"}, r"training\.optim: LBFGS evaluates the model many times"),
        ({"optim": "SGD", "adam_beta1": 0.5}, r"training\.adam_beta1.*SGD has no betas"),
        ({"optim": "SGD", "adam_epsilon": 0.5}, r"training\.adam_epsilon: SGD has no single eps"),
        ({"optim": "Rprop", "weight_decay": 0.1}, r"training\.weight_decay: Rprop has no weight decay"),
        ({"optim": "NadamW"}, r"training\.optim: found 'NadamW', .*did you mean NAdamW\?"),
        ({"optim": "Muon", "optim_args": {"ns_step": 3}}, r"training\.optim_args\.ns_step: .*did you mean ns_steps\?"),
        ({"optim": "Muon", "optim_args": {"betas": 1}}, r"training\.optim_args\.betas: Muon takes"),
        (
            {"optim": "SGD", "optim_args": {"momentun": 0.9}},
            r"training\.optim_args\.momentun: .*did you mean momentum\?",
        ),
        ({"optim_args": {"lr": 0.9}}, r"training\.optim_args\.lr: .*use training\.learning_rate"),
        ({"adam_epsilon": 0.5, "optim_args": {"eps": 0.9}}, r"training\.optim_args\.eps: given twice"),
        ({"optim": "SGD", "optim_args": {"momentum": -1.0}}, r"torch\.optim\.SGD refuses .*momentum"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(values, message):
    with pytest.raises(ConfigError, match=message):
        build_optimizers(parameters(), training(**values))


def test_every_optimizer_of_torch_is_found_or_refused_with_a_reason():
    names = [n for n, v in vars(torch.optim).items() if isinstance(v, type) and issubclass(v, torch.optim.Optimizer)]
    refused = []
    for name in names:
        try:
            optimizer_class(name)
        except ConfigError:
            refused.append(name)
    assert sorted(refused) == ["LBFGS", "Optimizer"]


def test_nothing_to_update_needs_no_optimizer():
    assert build_optimizers({}, training(optim="Muon")) == []


def test_nadamw_is_nadam_with_decoupled_decay_and_a_high_moment():
    (optimizer,) = build_optimizers(parameters(), training(optim="NAdamW", weight_decay=0.1))
    first, second = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.NAdam)
    assert (first["betas"], first["decoupled_weight_decay"], first["weight_decay"]) == ((0.99, 0.999), True, 0.1)
    assert second["weight_decay"] == 0.0
    (other,) = build_optimizers(parameters(), training(optim="NAdamW", adam_beta2=0.9))
    assert other.param_groups[0]["betas"] == (0.99, 0.9)


def test_an_old_torch_has_no_muon(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ConfigError, match=r"training\.optim: Muon needs torch 2\.9 or newer, this is torch"):
        check_optimizer(training(optim="Muon"))


def test_muon_takes_the_matrices_and_adamw_the_rest():
    named = parameters() | {"1.weight": nn.Parameter(torch.randn(2, 2))}
    spec = training(optim="Muon", weight_decay=0.1, adam_beta2=0.95, adam_epsilon=1e-6, optim_args={"momentum": 0.8})
    muon, adamw = build_optimizers(named, spec, {"0.weight"})
    (matrices,) = muon.param_groups
    assert isinstance(muon, torch.optim.Muon)
    assert matrices["params"] == [named["0.weight"]]
    assert (matrices["momentum"], matrices["weight_decay"], matrices["eps"]) == (0.8, 0.1, 1e-7)
    decaying, others = adamw.param_groups
    assert isinstance(adamw, torch.optim.AdamW)
    assert ([decaying["params"], others["params"]]) == ([[named["1.weight"]], [named["0.bias"]]])
    assert (decaying["betas"], decaying["eps"]) == ((0.9, 0.95), 1e-6)
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)


def test_a_share_without_members_makes_no_optimizer():
    (adamw,) = build_optimizers(parameters(), training(optim="Muon"))
    (muon,) = build_optimizers({"0.weight": nn.Parameter(torch.randn(3, 2))}, training(optim="Muon"), {"0.weight"})
    assert (type(adamw), type(muon)) == (torch.optim.AdamW, torch.optim.Muon)


def test_updates_of_muon_are_as_large_as_those_of_adamw():
    """The root mean square of an update is 0.2 times the learning rate (arXiv 2502.16982), whatever the shape."""
    for shape in [(64, 64), (256, 64), (64, 256)]:
        torch.manual_seed(1)
        matrix = nn.Parameter(torch.zeros(shape))
        matrix.grad = torch.randn(shape)
        (muon,) = build_optimizers({"0.w": matrix}, training(optim="Muon", learning_rate=0.01), {"0.w"})
        muon.step()
        assert math.sqrt(float(matrix.detach().square().mean())) == pytest.approx(0.2 * 0.01, rel=0.25)


SIZES = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_matrices_are_those_of_hidden_layers():
    chain = build_chain(GptSpec(**SIZES, position_embedding="learned"))
    assert hidden_matrices(chain.blocks, chain.tied) == {
        "1.attention.qkv.weight",
        "1.attention.out.weight",
        "1.feed_forward.up.weight",
        "1.feed_forward.down.weight",
    }
    mlp = build_chain(MlpSpec(input_size=4, hidden_sizes=(5, 5)))
    assert hidden_matrices(mlp.blocks, mlp.tied) == {"0.linear.weight", "1.linear.weight"}


def test_a_tied_matrix_is_hidden_everywhere_or_nowhere():
    blocks = [nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)]
    with_head = TiedParameter(owner="0.weight", followers=("3.weight",))
    among_layers = TiedParameter(owner="1.weight", followers=("2.weight",))
    assert hidden_matrices(blocks, [with_head, among_layers]) == {"1.weight", "2.weight"}
    tied = build_chain(GptSpec(**SIZES, tie_word_embeddings=True))
    assert "0.tokens.weight" not in hidden_matrices(tied.blocks, tied.tied)
