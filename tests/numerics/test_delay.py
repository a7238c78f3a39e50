"""Each remedy against late gradients equals its formula, written out slowly, with old weights in a queue.

The model is a small network in double precision; update t takes the gradient of the weights of `delay` updates ago.
"""

import math
from collections import deque

import pytest
import torch
from torch import nn

from brigade.node.optimizer import StageOptimizer
from brigade.node.state_files import optimizer_file, optimizer_state_file, optimizer_states, read, write
from brigade.wire.errors import ConfigError
from brigade.wire.run_spec import TrainingSpec

STEPS = 12
DELAYS = (0, 1, 2, 4)
OPTIMIZERS = {
    "SGD": {"optim": "SGD", "weight_decay": 0.01, "optim_args": {"momentum": 0.9}},
    "Adam": {"optim": "Adam", "weight_decay": 0.01},
    "AdamW": {"optim": "AdamW", "weight_decay": 0.1, "adam_beta2": 0.95},
    "NAdamW": {"optim": "NAdamW", "weight_decay": 0.1},
    "RMSprop": {"optim": "RMSprop"},
}


def rate(step):
    return 0.02 * (1 + step % 3)


def initial():
    torch.manual_seed(3)
    return {"0.matrix": torch.randn(5, 4, dtype=torch.float64), "1.vector": torch.randn(4, dtype=torch.float64)}


def gradients(weights, step):
    """Return the gradients of a loss that depends on the step, as batches do."""
    generator = torch.Generator().manual_seed(step)
    rows = torch.randn(6, 5, dtype=torch.float64, generator=generator)
    leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    output = torch.tanh(rows @ leaves["0.matrix"]) @ leaves["1.vector"]
    (output - rows.sum(dim=1)).square().mean().backward()
    return {name: leaf.grad for name, leaf in leaves.items()}


def spec(**values):
    return TrainingSpec(max_steps=STEPS, learning_rate=0.5, **values)


def train(training, delay, steps=STEPS):
    """Return the weights after each update, as a stage makes them that keeps one set of weights for each version."""
    parameters = {name: nn.Parameter(value) for name, value in initial().items()}
    optimizer = StageOptimizer(parameters, training)
    history = []
    versions = deque([copies(parameters)], maxlen=delay + 1)
    for step in range(steps):
        for name, gradient in gradients(versions[0], step).items():
            parameters[name].grad = gradient
        optimizer.step(rate(step), min(step, delay))
        history.append(copies(parameters))
        versions.append(copies(parameters))
        optimizer.forward_weights(versions[-1], delay)
    return history


def copies(tensors):
    return {name: value.detach().clone() for name, value in tensors.items()}


class Slow:
    """An optimizer and its prediction from the formulas, on one tensor at a time; what a gradient is late by is given."""

    def __init__(self, training):
        self.training = training
        self.kind = training.optim
        self.t, self.moments, self.mu_product = 0, {}, 1.0
        self.beta1 = 0.99 if self.kind == "NAdamW" else 0.9
        self.beta2 = training.adam_beta2 or 0.999

    def update(self, weights, grads, lr):
        """Return W(t+1) of every tensor."""
        self.t += 1
        return {name: self._one(name, weights[name], grads[name], lr) for name in weights}

    def _one(self, name, w, g, lr):
        decay = self.training.weight_decay if w.dim() >= 2 else 0.0
        m, v = self.moments.get(name, (torch.zeros_like(w), torch.zeros_like(w)))
        if self.kind == "SGD":
            m = 0.9 * m + (g + decay * w)
            self.moments[name] = (m, v)
            return w - lr * m
        if self.kind == "RMSprop":
            v = 0.99 * v + 0.01 * g * g
            self.moments[name] = (m, v)
            return w - lr * g / (v.sqrt() + 1e-8)
        if self.kind == "Adam":
            g = g + decay * w
        else:
            w = w - lr * decay * w
        m = self.beta1 * m + (1 - self.beta1) * g
        v = self.beta2 * v + (1 - self.beta2) * g * g
        self.moments[name] = (m, v)
        scale = (v / (1 - self.beta2**self.t)).sqrt() + 1e-8
        if self.kind != "NAdamW":
            return w - lr * m / (1 - self.beta1**self.t) / scale
        mus = [self.beta1 * (1 - 0.5 * 0.96 ** (i * 0.004)) for i in range(1, self.t + 2)]
        past, coming = math.prod(mus[:-1]), math.prod(mus)
        return w - lr * ((1 - mus[-2]) * g / (1 - past) + mus[-1] * m / (1 - coming)) / scale

    def direction(self, name, w, lr):
        """Return what W changes by in the coming updates, for one of them."""
        if self.t == 0:
            return torch.zeros_like(w)
        m, v = self.moments[name]
        if self.kind == "SGD":
            return -lr * m
        decay = self.training.weight_decay if w.dim() >= 2 and self.kind != "Adam" else 0.0
        scale = (v / (1 - self.beta2**self.t)).sqrt() + 1e-8
        return -lr * (m / (1 - self.beta1**self.t) / scale + decay * w)


def assert_same(found, expected, tolerance=1e-9):
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=tolerance, atol=1e-11)


def tolerance_of(training):
    return 1e-6 if training.optim == "NAdamW" else 1e-9  # torch keeps a product of its moments in single precision


@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_none_takes_the_gradients_as_they_come(optimizer, delay):
    training = spec(**OPTIMIZERS[optimizer])
    slow, weights, history = Slow(training), initial(), [initial()]
    for step in range(STEPS):
        grads = gradients(history[max(0, step - delay)], step)
        weights = slow.update(weights, grads, rate(step))
        history.append(weights)
    assert_same(train(training, delay), history[1:], tolerance_of(training))


@pytest.mark.parametrize("delay", [0, 1, 2, 4, 6])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_predict_computes_with_the_weights_to_come(optimizer, delay):
    training = spec(delay_compensation="predict", **OPTIMIZERS[optimizer])
    slow, weights, used, history = Slow(training), initial(), [initial()], []
    for step in range(STEPS):
        grads = gradients(used[max(0, step - delay)], step)
        new = slow.update(weights, grads, rate(step))
        predicted = {}
        for name, w in new.items():
            last = w - weights[name]
            along = last if optimizer == "RMSprop" else slow.direction(name, w, rate(step))
            predicted[name] = w + min(delay, 4) * along
        weights = new
        used.append(predicted)
        history.append(weights)
    assert_same(train(training, delay), history, tolerance_of(training))


@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_extrapolate_adds_what_an_update_differs_from_the_one_before(optimizer, delay):
    training = spec(delay_compensation="extrapolate", delay_extrapolation=0.7, **OPTIMIZERS[optimizer])
    slow, history, updates = Slow(training), [initial()], []
    for step in range(STEPS):
        weights = history[-1]
        grads = gradients(history[max(0, step - delay)], step)
        new = slow.update(weights, grads, rate(step))
        updates.append({name: new[name] - weights[name] for name in new})
        late = 0.7 if delay and step > 0 else 0.0
        history.append({n: w + late * (updates[-1][n] - updates[max(0, step - 1)][n]) for n, w in new.items()})
    assert_same(train(training, delay), history[1:], tolerance_of(training))


@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize(("anneal", "total"), [(None, 3), (8, 8), (0, 0)])
def test_pipemare_divides_the_learning_rate_by_a_power_of_the_delay(delay, anneal, total):
    training = spec(delay_compensation="pipemare", delay_anneal_steps=anneal, **OPTIMIZERS["AdamW"])
    slow, history = Slow(training), [initial()]
    for step in range(STEPS):
        late = max(1, min(step, delay))
        power = 1 - min(step / total, 1) if total else 0
        grads = gradients(history[max(0, step - delay)], step)
        history.append(slow.update(history[-1], grads, rate(step) / late**power))
    assert_same(train(training, delay), history[1:], tolerance_of(training))


@pytest.mark.parametrize("delay", [1, 3])
def test_pipemare_tells_old_weights_by_a_moving_average_of_the_updates(delay):
    parameters = {name: nn.Parameter(value) for name, value in initial().items()}
    training = spec(delay_compensation="pipemare", delay_anneal_steps=0, delay_discrepancy=0.2, optim="SGD")
    optimizer = StageOptimizer(parameters, training)
    drift = {name: torch.zeros_like(value) for name, value in initial().items()}
    for step in range(STEPS):
        before = copies(parameters)
        for name, gradient in gradients(parameters, step).items():
            parameters[name].grad = gradient
        optimizer.step(rate(step), delay)
        keep = 0.2 ** (1 / delay)
        drift = {n: keep * d + (1 - keep) * (parameters[n].detach() - before[n]) for n, d in drift.items()}
        found = copies(parameters)
        optimizer.backward_weights(found, delay)
        assert_same([found], [{n: parameters[n].detach() - delay * d for n, d in drift.items()}])


def constant_gradients(optimizer, parameters, steps, learning_rate=0.1):
    for _ in range(steps):
        for p in parameters.values():
            p.grad = torch.full_like(p, 0.5)
        optimizer.step(learning_rate, 3)


def test_pipemare_is_exact_once_updates_have_been_equal_for_long():
    parameters = {"0.vector": nn.Parameter(torch.zeros(3, dtype=torch.float64))}
    optimizer = StageOptimizer(parameters, spec(delay_compensation="pipemare", delay_anneal_steps=0, optim="SGD"))
    constant_gradients(optimizer, parameters, 60)
    past = copies(parameters)
    constant_gradients(optimizer, parameters, 3)
    found = copies(parameters)
    optimizer.backward_weights(found, 3)
    assert_same([found], [past])


@pytest.mark.parametrize("optim", ["SGD", "AdamW"])
def test_predictions_are_exact_under_constant_gradients(optim):
    """With momentum once the velocity is steady; with Adam from the first update on."""
    parameters = {"0.vector": nn.Parameter(torch.ones(3, dtype=torch.float64))}
    changes = {"optim_args": {"momentum": 0.5}} if optim == "SGD" else {"adam_epsilon": 1e-30}
    optimizer = StageOptimizer(parameters, spec(delay_compensation="predict", optim=optim, **changes))
    constant_gradients(optimizer, parameters, 60 if optim == "SGD" else 1)
    for distance in range(1, 5):
        predicted = copies(parameters)
        optimizer.forward_weights(predicted, distance)
        present, saved = copies(parameters), optimizer.states()
        saved = {
            name: {k: v.clone() if torch.is_tensor(v) else v for k, v in each.items()} for name, each in saved.items()
        }
        constant_gradients(optimizer, parameters, distance)
        assert_same([copies(parameters)], [predicted])
        with torch.no_grad():
            parameters["0.vector"].copy_(present["0.vector"])
        optimizer.load(saved)


def test_predictions_reach_no_further_than_four_updates():
    parameters = {"0.vector": nn.Parameter(torch.ones(3))}
    optimizer = StageOptimizer(parameters, spec(delay_compensation="predict"))
    constant_gradients(optimizer, parameters, 2)
    found = []
    for distance in (3, 4, 5, 50):
        found.append(copies(parameters))
        optimizer.forward_weights(found[-1], distance)
    assert torch.equal(found[1]["0.vector"], found[2]["0.vector"])
    assert torch.equal(found[1]["0.vector"], found[3]["0.vector"])
    assert not torch.equal(found[0]["0.vector"], found[1]["0.vector"])


@pytest.mark.parametrize("compensation", ["predict", "extrapolate", "pipemare"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_without_delay_nothing_changes_a_bit(optimizer, compensation):
    plain = train(spec(**OPTIMIZERS[optimizer]), 0)
    found = train(spec(delay_compensation=compensation, **OPTIMIZERS[optimizer]), 0)
    for mine, theirs in zip(found, plain, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("compensation", ["none", "predict", "extrapolate"])
def test_a_remedy_mends_what_delay_breaks(compensation):
    """On w^2 / 2 with this step, one update of delay makes updates grow; with a remedy they shrink."""
    w = {"0.w": nn.Parameter(torch.ones(1, dtype=torch.float64))}
    training = spec(delay_compensation=compensation, optim="SGD", optim_args={"momentum": 0.9})
    optimizer = StageOptimizer(w, training)
    versions = deque([copies(w)], maxlen=2)
    for step in range(400):
        w["0.w"].grad = versions[0]["0.w"].clone()
        optimizer.step(0.2, min(step, 1))
        versions.append(copies(w))
        optimizer.forward_weights(versions[-1], 1)
    end = abs(float(w["0.w"].detach()))
    assert end > 1e3 if compensation == "none" else end < 1e-3


# --- what a checkpoint keeps ----------------------------------------------------------------------------------------


def stages(training, weights, split):
    """Return the optimizers of one stage, or of two."""
    parameters = {name: nn.Parameter(value.clone()) for name, value in weights.items()}
    parts = [{name: parameters[name]} for name in reversed(parameters)] if split else [parameters]
    return parameters, [StageOptimizer(part, training, {"0.matrix"}) for part in parts]


def go_on(parameters, optimizers, delay, begin, end):
    """Update with gradients of the predicted present weights; return the weights that are computed with last."""
    used = copies(parameters)
    for step in range(begin, end):
        for optimizer in optimizers:
            optimizer.forward_weights({name: used[name] for name in used if name in optimizer.names}, delay)
        for name, gradient in gradients(used, step).items():
            parameters[name].grad = gradient
        for optimizer in optimizers:
            optimizer.step(rate(step), delay)
    return used


@pytest.mark.parametrize("compensation", ["none", "predict", "extrapolate", "pipemare"])
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "Muon"])
def test_a_checkpoint_continues_to_the_bit_under_another_split(optimizer, compensation, tmp_path):
    training = spec(delay_compensation=compensation, **OPTIMIZERS.get(optimizer, {"optim": "Muon"}))
    parameters, whole = stages(training, initial(), split=False)
    go_on(parameters, whole, 2, 0, 5)
    saved = {0: {}, 1: {}}
    for key, state in whole[0].states().items():
        block, _, name = key.partition(".")
        saved[int(block)][name] = {k: v.clone() if torch.is_tensor(v) else v for k, v in state.items()}
    write(tmp_path, {optimizer_file(i): optimizer_state_file(each, training.optim, i) for i, each in saved.items()})
    others, parts = stages(training, parameters, split=True)
    for part in parts:
        for i in (0, 1):
            found = optimizer_states(read(tmp_path / optimizer_file(i)), training.optim, "file")
            mine = {f"{i}.{name}": state for name, state in found.items() if f"{i}.{name}" in part.names}
            if mine:
                part.load(mine)
    one, other = go_on(parameters, whole, 2, 5, 9), go_on(others, parts, 2, 5, 9)
    for name in one:
        assert torch.equal(one[name], other[name])
        assert torch.equal(parameters[name], others[name])


def test_what_another_remedy_has_left_is_not_taken():
    first, (extrapolating,) = stages(spec(delay_compensation="extrapolate"), initial(), split=False)
    go_on(first, [extrapolating], 1, 0, 3)
    _, (plain,) = stages(spec(), first, split=False)
    plain.load(extrapolating.states())
    assert set(plain.states()["0.matrix"]) == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("compensation", ["predict", "extrapolate", "pipemare"])
def test_a_parameter_without_a_gradient_is_left_alone(compensation):
    parameters, (optimizer,) = stages(spec(delay_compensation=compensation, optim="RMSprop"), initial(), split=False)
    go_on(parameters, [optimizer], 1, 0, 3)
    before = copies(parameters)
    parameters["0.matrix"].grad = None
    optimizer.step(0.1, 1)
    assert torch.equal(parameters["0.matrix"], before["0.matrix"])
    assert not torch.equal(parameters["1.vector"], before["1.vector"])


def test_muon_and_adamw_move_as_torch_moves_them():
    training = spec(optim="Muon", weight_decay=0.1)
    parameters, (optimizer,) = stages(training, initial(), split=False)
    plain = {name: nn.Parameter(value) for name, value in initial().items()}
    muon = torch.optim.Muon([plain["0.matrix"]], weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW([plain["1.vector"]], weight_decay=0.0)
    for step in range(STEPS):
        for name, gradient in gradients(plain, step).items():
            plain[name].grad, parameters[name].grad = gradient, gradient.clone()
        for each in (muon, adamw):
            each.param_groups[0]["lr"] = rate(step)
            each.step()
        optimizer.step(rate(step))
    assert all(torch.equal(parameters[name], plain[name]) for name in plain)


def test_muon_is_predicted_along_its_last_update():
    training = spec(optim="Muon", delay_compensation="predict")
    parameters, (optimizer,) = stages(training, initial(), split=False)
    for step in range(3):
        before = copies(parameters)
        for name, gradient in gradients(parameters, step).items():
            parameters[name].grad = gradient
        optimizer.step(rate(step), 1)
    found = copies(parameters)
    optimizer.forward_weights(found, 3)
    present = parameters["0.matrix"].detach()
    torch.testing.assert_close(found["0.matrix"], present + 3 * (present - before["0.matrix"]))
    assert set(optimizer.states()["0.matrix"]) == {"momentum_buffer", "delay.update", "delay.learning_rate"}
    assert set(optimizer.states()["1.vector"]) == {"step", "exp_avg", "exp_avg_sq", "delay.learning_rate"}


def test_complex_parameters_are_not_predicted():
    with pytest.raises(ConfigError, match="complex"):
        StageOptimizer({"0.w": nn.Parameter(torch.ones(2, dtype=torch.complex64))}, spec(delay_compensation="predict"))
