"""A pipeline equals one machine: loss and global gradient norm of every step, and parameters after 20 steps."""

import pytest
from tests.numerics.comparison import assert_equal_training, assert_same_bits, run_spec, warm_up
from tests.numerics.models import tokens
from tests.numerics.pipeline import Pipeline, even_splits
from tests.numerics.reference import Reference

from brigade.partition.batching import evaluation_batches
from brigade.partition.schedule import SCHEDULES
from brigade.wire.run_spec import GptSpec

ADAMW = {"optim": "AdamW", "weight_decay": 0.1, "adam_beta2": 0.95}
SGD = {"optim": "SGD", "weight_decay": 0.01, "optim_args": {"momentum": 0.9}}

# Every pair of values of (stages, microbatches, schedule, tied, dropout, recompute, optimizer, clipping) occurs at least
# once; `test_the_cases_cover_all_pairs` counts.
TABLE = [
    (1, 1, "gpipe", False, 0.0, False, "AdamW", 0.0),
    (1, 4, "1f1b", True, 0.2, True, "SGD", 0.5),
    (1, 8, "gpipe", True, 0.0, True, "AdamW", 0.5),
    (2, 1, "1f1b", True, 0.2, False, "AdamW", 0.5),
    (2, 4, "gpipe", False, 0.0, True, "SGD", 0.0),
    (2, 8, "1f1b", False, 0.2, True, "AdamW", 0.0),
    (3, 1, "gpipe", True, 0.2, True, "SGD", 0.0),
    (3, 4, "1f1b", False, 0.0, False, "AdamW", 0.5),
    (3, 8, "gpipe", False, 0.2, False, "SGD", 0.5),
    (6, 1, "1f1b", False, 0.0, True, "SGD", 0.5),
    (6, 4, "gpipe", True, 0.2, False, "AdamW", 0.0),
    (6, 8, "1f1b", True, 0.0, False, "SGD", 0.0),
]
# A schedule that the table does not name meets all of its rows.
UNNAMED = sorted(set(SCHEDULES) - {row[2] for row in TABLE})
CASES = TABLE + [(*row[:2], schedule, *row[3:]) for schedule in UNNAMED for row in TABLE]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_equals_one_machine(case):
    stages, microbatches, schedule, tied, dropout, recompute, optim, clip = case
    model = GptSpec(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        max_position_embeddings=16,
        position_embedding="rope" if stages % 2 else "learned",
        tie_word_embeddings=tied,
        dropout=dropout,
    )
    spec = run_spec(
        model,
        schedule=schedule,
        microbatches=microbatches,
        gradient_checkpointing=recompute,
        max_grad_norm=clip,
        **(ADAMW if optim == "AdamW" else SGD),
    )
    source = tokens()  # 40 samples in batches of 16: the last batch of an epoch is smaller; targets are padded
    rate = warm_up(3e-3 if optim == "AdamW" else 0.3)
    pipeline = Pipeline(spec, source, even_splits(6, stages), learning_rate=rate, interleaving=stages * microbatches)
    reference = Reference(spec, source, learning_rate=rate)
    assert_equal_training(pipeline, reference)

    batches = evaluation_batches(source.validation_count, 3, 0)
    before = pipeline.state()
    assert pipeline.evaluate(20, batches) == pytest.approx(reference.evaluate(batches), rel=1e-5)
    assert_same_bits(pipeline.state(), before)  # evaluating left no trace
    assert pipeline.step(20).loss == pytest.approx(reference.step(20)[0], rel=1e-5)


def test_the_cases_cover_all_pairs():
    values = [sorted(set(column)) for column in zip(*CASES, strict=True)]
    assert values[2] == sorted(SCHEDULES)
    missing = [
        (i, a, j, b)
        for i in range(len(values))
        for j in range(i)
        for a in values[i]
        for b in values[j]
        if not any(case[i] == a and case[j] == b for case in CASES)
    ]
    assert missing == []
