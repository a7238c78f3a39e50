"""Steps that overlap equal their references bit for bit, in every order of events; a resume equals what it resumes."""

import pytest
import torch
from tests.numerics.comparison import assert_same_bits, run_spec
from tests.numerics.delayed_reference import DelayedReference, LateBackwardReference
from tests.numerics.models import tokens
from tests.numerics.pipeline import even_splits
from tests.numerics.stage_line import StageLine, same_losses

from brigade.coordinator.learning_rate import learning_rate
from brigade.wire.run_spec import GptSpec

ADAMW = {"optim": "AdamW", "weight_decay": 0.1, "adam_beta2": 0.95, "learning_rate": 3e-3}
SGD = {"optim": "SGD", "weight_decay": 0.01, "optim_args": {"momentum": 0.9}, "learning_rate": 0.3}
STEPS = 7

# stages, microbatches, versions, tied, dropout, recompute, optimizer, clipping
CASES = [
    (1, 4, 2, False, 0.0, False, ADAMW, 0.5),
    (2, 4, 2, True, 0.2, False, SGD, 0.5),
    (3, 8, 2, True, 0.2, True, ADAMW, 0.5),
    (6, 8, 2, False, 0.2, False, SGD, 0.0),
    (6, 4, 3, True, 0.0, True, ADAMW, 0.5),
    (3, 1, 3, True, 0.2, False, SGD, 0.5),
    (2, 1, 6, False, 0.0, True, ADAMW, 0.0),
]


def make_spec(microbatches, tied, dropout, recompute, optimizer, clip, **more):
    model = GptSpec(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=tied,
        dropout=dropout,
    )
    settings = optimizer | {"warmup_steps": 3, "max_grad_norm": clip, "gradient_checkpointing": recompute}
    return run_spec(model, microbatches=microbatches, **(settings | {"max_steps": STEPS} | more))


def warm_ups(stages):
    return [2 * (stages - 1 - k) for k in range(stages)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(each)[:8] for each in case))
def test_async_equals_the_loop_with_older_weights(case):
    stages, microbatches, versions, *rest = case
    spec, source, cuts = make_spec(microbatches, *rest), tokens(), even_splits(6, stages)
    reference = DelayedReference(
        spec, source, cuts, versions=versions, learning_rate=lambda step: learning_rate(spec.training, step)
    )
    rows = reference.run(range(STEPS))
    for seed in (1, 2):
        line = StageLine(
            spec, source, cuts, seed=seed, mode="async", versions=versions, warm_ups=warm_ups(stages), slack=seed
        )
        same_losses(line.run(), rows)
        assert_same_bits(line.state(), reference.state())
        assert line.peak_versions == versions
    assert rows[-1][0] < rows[0][0]


def test_a_remedy_knows_the_delay():
    spec = make_spec(4, False, 0.0, False, SGD, 0.5, delay_compensation="extrapolate", delay_extrapolation=0.5)
    source, cuts = tokens(), [0, 2, 4, 6]
    reference = DelayedReference(
        spec, source, cuts, versions=2, learning_rate=lambda step: learning_rate(spec.training, step)
    )
    rows = reference.run(range(STEPS))
    line = StageLine(spec, source, cuts, seed=4, mode="async", versions=2, warm_ups=(4, 2, 0))
    assert [commit.loss for commit in line.run()] == pytest.approx([loss for loss, _ in rows], rel=1e-5)
    plain = make_spec(4, False, 0.0, False, SGD, 0.5)
    other = StageLine(plain, source, cuts, seed=4, mode="async", versions=2, warm_ups=(4, 2, 0)).run()
    assert other[-1].loss != pytest.approx(rows[-1][0], rel=1e-5)


def test_one_version_is_the_plain_loop():
    spec, source, cuts = make_spec(4, True, 0.2, False, ADAMW, 0.5), tokens(), [0, 2, 4, 6]
    rate = lambda step: learning_rate(spec.training, step)  # noqa: E731
    reference = DelayedReference(spec, source, cuts, versions=1, learning_rate=rate)
    rows = reference.run(range(STEPS))
    for seed in range(3):
        line = StageLine(spec, source, cuts, seed=seed, warm_ups=(3, 2, 0))
        same_losses(line.run(), rows)
        assert_same_bits(line.state(), reference.state())


@pytest.mark.parametrize("recompute", [False, True])
def test_lowmem_equals_the_loop_with_newer_weights_in_late_backwards(recompute):
    spec, source, cuts = make_spec(4, True, 0.0, recompute, SGD, 0.5), tokens(), [0, 2, 4, 6]
    sizes = (3, 1, 0)
    reference = LateBackwardReference(
        spec, source, cuts, sizes, learning_rate=lambda step: learning_rate(spec.training, step)
    )
    rows = reference.run(range(STEPS))
    for seed in range(3):
        line = StageLine(spec, source, cuts, seed=seed, mode="lowmem", versions=2, warm_ups=sizes, slack=2)
        same_losses(line.run(), rows)
        assert_same_bits(line.state(), reference.state())
        assert line.peak_versions == 1
    exact = StageLine(spec, source, cuts).run()
    assert exact[-1].loss != rows[-1][0]


@pytest.mark.parametrize(("versions", "stop"), [(2, 3), (3, 4), (3, 1)])
def test_a_resume_continues_to_the_bit(versions, stop, tmp_path):
    spec, source = make_spec(4, True, 0.2, False, ADAMW, 0.5, save_steps=1), tokens()
    settings = {"mode": "async", "versions": versions}
    straight = StageLine(spec, source, [0, 2, 4, 6], seed=5, warm_ups=(4, 2, 0), **settings)
    commits = straight.run()
    stopped = StageLine(spec, source, [0, 2, 4, 6], seed=6, stop_after=stop, warm_ups=(4, 2, 0), **settings)
    stopped.run()
    assert stopped.commits[-1].step == stop - 1
    for name, file in stopped.saved[stop].items():
        assert all(torch.equal(t, straight.saved[stop][name].tensors[key]) for key, t in file.tensors.items()), name
    stopped.save(stop, tmp_path)
    for cuts in ([0, 6], [0, 1, 5, 6]):
        resumed = StageLine(spec, source, cuts, files=tmp_path, first_step=stop, **settings)
        again = resumed.run()
        assert [commit.loss for commit in again] == [commit.loss for commit in commits[stop:]]
        if len(cuts) == 4:
            assert_same_bits(resumed.state(), straight.state())


@pytest.mark.parametrize(("before", "after"), [("exact", "async"), ("async", "lowmem"), ("async", "exact")])
def test_another_mode_goes_on_from_the_newest_weights(before, after, tmp_path):
    spec, source, cuts = make_spec(4, True, 0.0, False, SGD, 0.5, save_steps=1), tokens(), [0, 2, 4, 6]
    modes = {"exact": {}, "async": {"mode": "async", "versions": 2}, "lowmem": {"mode": "lowmem", "versions": 2}}
    sizes = (3, 1, 0)
    first = StageLine(spec, source, cuts, stop_after=3, warm_ups=sizes, **modes[before])
    first.run()
    first.save(3, tmp_path)
    resumed = StageLine(spec, source, cuts, files=tmp_path, first_step=3, warm_ups=sizes, **modes[after])
    commits = resumed.run()

    rate = lambda step: learning_rate(spec.training, step)  # noqa: E731
    if after == "lowmem":
        reference = LateBackwardReference(spec, source, cuts, sizes, learning_rate=rate, first=3)
    else:
        versions = modes[after].get("versions", 1)
        reference = DelayedReference(spec, source, cuts, versions=versions, learning_rate=rate, first=3)
    reference.start_from(first.state(), first.momenta())
    same_losses(commits, reference.run(range(3, STEPS)))
    assert_same_bits(resumed.state(), reference.state())


def test_evaluations_see_the_weights_after_their_step():
    spec = make_spec(4, True, 0.2, False, ADAMW, 0.5, eval_steps=1, eval_batches=0)
    source, cuts = tokens(), [0, 2, 4, 6]
    reference = DelayedReference(
        spec, source, cuts, versions=2, learning_rate=lambda step: learning_rate(spec.training, step)
    )
    line = StageLine(spec, source, cuts, seed=3, mode="async", versions=2, warm_ups=(4, 2, 0))
    line.run()
    assert sorted(line.evaluations) == list(range(STEPS))
    for step in range(STEPS):
        reference.step(step)
        reference._become(step + 1)
        assert line.evaluations[step] == pytest.approx(reference.evaluate(line.held_out), rel=1e-6)


def test_a_step_that_is_skipped_changes_nothing():
    spec, source, cuts = make_spec(4, True, 0.0, False, SGD, 0.5), tokens(), [0, 2, 4, 6]

    def poison(step, compute):
        if step == 2 and compute._stage == 1:
            next(p for p in compute._parameters.values() if p.grad is not None).grad.fill_(float("nan"))

    runs = [
        StageLine(spec, source, cuts, seed=seed, mode="async", versions=2, warm_ups=(4, 2, 0), poison=poison)
        for seed in range(2)
    ]
    first, second = (line.run() for line in runs)
    assert [commit.skipped for commit in first] == [step == 2 for step in range(STEPS)]
    assert [commit.loss for commit in first] == [commit.loss for commit in second]
    assert_same_bits(runs[0].state(), runs[1].state())
