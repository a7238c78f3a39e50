"""What late gradients cost, and what helps: a tiny language model in one process, with a queue of old weights.

    python examples/delay/delay.py [--results delay.jsonl] [--steps 300] [--seeds 2] [--optim Muon] [--delays 0 1]

Update t takes the gradient of the weights of D updates ago, as an asynchronous pipeline with D + 1 versions of the
weights does; optimizers and compensations are those that nodes use. Finished settings are kept in the file of results,
so that a second call goes on where the first was interrupted; the table at the end is that of docs/results/delay.md.
"""

import argparse
import itertools
import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean

import msgspec
import torch
from torch import Tensor, nn
from torch.func import functional_call

from brigade.coordinator.learning_rate import learning_rate
from brigade.node.optimizer import StageOptimizer
from brigade.partition.chain import PlainModel, build_chain, plain_model
from brigade.partition.optimizers import hidden_matrices
from brigade.wire.run_spec import GptSpec, TrainingSpec

TEXT = Path(__file__).resolve().parents[1] / "shakespeare.txt"
LENGTH, BATCH, HELD_OUT = 64, 16, 128  # bytes of a sample; samples of a step; samples of the validation loss
MODEL = GptSpec(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=LENGTH)
RATES = {
    "SGD": (0.01, 0.03, 0.1, 0.3),
    "AdamW": (1e-3, 3e-3, 1e-2, 3e-2),
    "NAdamW": (1e-3, 3e-3, 1e-2),
    "Muon": (3e-3, 1e-2, 3e-2, 1e-1),
}
COMPENSATIONS = ("none", "predict", "extrapolate", "pipemare")
DELAYS = (0, 1, 2, 4)
AGAIN = (0, 1)  # what a second seed and others repeat


class Setting(msgspec.Struct, frozen=True):
    """One training run."""

    optim: str
    compensation: str
    delay: int
    rate: float
    steps: int
    seed: int


class Result(msgspec.Struct, frozen=True):
    """What came out of it: the mean validation loss in nats a byte, and the seconds it took."""

    setting: Setting
    loss: float | None  # None: not a number
    seconds: float


def settings(steps: int, seeds: int) -> Iterator[Setting]:
    """Yield all settings; a compensation that changes nothing at a delay is left out there."""
    for seed, optim in itertools.product(range(seeds), RATES):
        for rate, delay, compensation in itertools.product(RATES[optim], AGAIN if seed else DELAYS, COMPENSATIONS):
            idle = delay == 0 or (delay == 1 and compensation == "pipemare")
            if compensation == "none" or not idle:
                yield Setting(optim, compensation, delay, rate, steps, seed)


def train(setting: Setting, text: Tensor) -> float:
    """Return the validation loss of the newest weights after the last update."""
    arguments = {"momentum": 0.9} if setting.optim == "SGD" else {}
    training = TrainingSpec(
        max_steps=setting.steps,
        optim=setting.optim,
        optim_args=arguments,
        learning_rate=setting.rate,
        weight_decay=0.0 if setting.optim == "SGD" else 0.1,
        delay_compensation=setting.compensation,
        lr_scheduler_type="cosine",
        warmup_steps=setting.steps // 10,
        min_lr_ratio=0.1,
    )
    chain = build_chain(MODEL)
    model = plain_model(MODEL, setting.seed)
    parameters = dict(model.named_parameters())
    optimizer = StageOptimizer(parameters, training, hidden_matrices(chain.blocks, chain.tied))
    versions = deque([copies(parameters)], maxlen=setting.delay + 1)
    generator = torch.Generator().manual_seed(setting.seed)
    train_part = text[: -HELD_OUT * (LENGTH + 1)]
    for step in range(setting.steps):
        begins = torch.randint(len(train_part) - LENGTH, (BATCH,), generator=generator)
        used = {name: value.requires_grad_() for name, value in versions[0].items()}
        loss = loss_of(model, used, windows(train_part, begins))
        for name, gradient in zip(used, torch.autograd.grad(loss, list(used.values())), strict=True):
            parameters[name].grad = gradient
        optimizer.step(learning_rate(training, step), min(step, setting.delay))
        versions.append(copies(parameters))
        optimizer.forward_weights(versions[-1], setting.delay)
    held_out = windows(text, len(text) - torch.arange(1, HELD_OUT + 1) * (LENGTH + 1))
    with torch.no_grad():
        return mean(float(loss_of(model, parameters, part)) for part in held_out.split(BATCH))


def copies(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in parameters.items()}


def windows(text: Tensor, begins: Tensor) -> Tensor:
    return text[begins[:, None] + torch.arange(LENGTH + 1)]


def loss_of(model: PlainModel, weights: dict[str, Tensor], rows: Tensor) -> Tensor:
    logits = functional_call(model, weights, (rows[:, :-1],))
    return nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def finished(path: Path) -> list[Result]:
    """Return what the file of results holds."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Result) for line in lines]


def tables(results: Iterable[Result]) -> str:
    """Return two tables in Markdown: the best learning rate of each, and all of them at a delay of one."""
    losses: Losses = defaultdict(dict)
    for each in results:
        s = each.setting
        losses[s.optim, s.compensation, s.delay, s.rate][s.seed] = math.inf if each.loss is None else each.loss
    lines = ["| optimizer | compensation | " + " | ".join(f"D = {d}" for d in DELAYS) + " |", "| --- " * 6 + "|"]
    for optim, compensation in itertools.product(RATES, COMPENSATIONS):
        cells = [_best(losses, optim, compensation, delay) for delay in DELAYS]
        lines.append(f"| {optim} | {compensation} | " + " | ".join(cells) + " |")
    lines += ["", "| optimizer | learning rate | D = 0 | none | predict | extrapolate |", "| --- " * 6 + "|"]
    for optim, rates in RATES.items():
        for rate in rates:
            cells = [_cell(losses.get((optim, c, d, rate))) for c, d in _AT_ONE]
            lines.append(f"| {optim} | {rate:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


Losses = dict[tuple[str, str, int, float], dict[int, float]]  # by seed, by all else
_AT_ONE = (("none", 0), ("none", 1), ("predict", 1), ("extrapolate", 1))


def _best(losses: Losses, optim: str, compensation: str, delay: int) -> str:
    """Return the loss of the best learning rate, and its distance from the best without delay, of the same seeds."""
    found = {
        r: losses[optim, compensation, delay, r] for r in RATES[optim] if (optim, compensation, delay, r) in losses
    }
    exact = {r: losses[optim, "none", 0, r] for r in RATES[optim] if (optim, "none", 0, r) in losses}
    if not found or not exact:
        return ""
    rate, best = min(found.items(), key=lambda item: mean(item[1].values()))
    _, reference = min(exact.items(), key=lambda item: mean(item[1].values()))
    loss = mean(best.values())
    gap = loss / mean(reference[seed] for seed in best) - 1.0
    return f"{loss:.3f} ({rate:g}" + (f", {100 * gap:+.1f} %)" if delay else ")")


def _cell(losses: dict[int, float] | None) -> str:
    if not losses:
        return ""
    loss = mean(losses.values())
    return f"{loss:.3f}" if math.isfinite(loss) else "diverges"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("delay.jsonl"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--optim", nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--delays", nargs="+", type=int, choices=DELAYS, default=DELAYS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    text = torch.tensor(list(TEXT.read_bytes()))
    everything = settings(options.steps, options.seeds)
    wanted = [each for each in everything if each.optim in options.optim and each.delay in options.delays]
    done = {each.setting: each for each in finished(options.results)}
    for setting in wanted:
        if setting in done:
            continue
        start = time.process_time()
        loss = train(setting, text)
        done[setting] = Result(setting, loss if math.isfinite(loss) else None, time.process_time() - start)
        with options.results.open("ab") as stream:
            stream.write(msgspec.json.encode(done[setting]) + b"\n")
        print(f"{len(done)}/{len(wanted)} {setting}: {loss:.4f}", flush=True)
    print(tables(done[setting] for setting in wanted))


if __name__ == "__main__":
    main()
