"""Look at a finished run: its record, its exported model, and what counting reaches on the same text."""

from pathlib import Path

import numpy as np
import torch

from brigade.cli.curve import draw_png
from brigade.cli.demo_report import DemoReport, link_traffic
from brigade.cli.ngram import counting_loss
from brigade.cli.trained import validation_loss, written_sample
from brigade.coordinator.export import MODEL_NAME
from brigade.coordinator.record import stage_totals
from brigade.coordinator.store import STORE_NAME, Store
from brigade.partition.exported import load_plain
from brigade.partition.samples import Source, open_data
from brigade.wire.errors import BrigadeError
from brigade.wire.run_spec import RunSpec, TextData

SAMPLE_PROMPT = "BRUTUS:\n"
SAMPLE_LENGTH = 400


def examine(run_dir: Path, next_command: str) -> DemoReport:
    """Return the report of a finished run on a text; writes `loss.png` into its directory.

    Raises BrigadeError when not all steps were done.
    """
    with Store(run_dir / STORE_NAME, readonly=True) as store:
        run, plan = store.load_run(), store.latest_plan()
        commits, evaluations = list(store.commits()), store.evaluations()
    if run is None or plan is None or len(commits) != run.spec.training.max_steps:
        raise BrigadeError(f"{run_dir}: only {len(commits)} steps were done; what the nodes said lies beside it")
    assert isinstance(run.spec.data, TextData)
    data = open_data(run.spec.data, Path(run.spec.data.path))
    unigram, bigram = counting_losses(run.spec, data)
    torch.set_num_threads(1)  # small tensors: more threads only wait for one another, above all on a busy machine
    model = load_plain(run_dir / MODEL_NAME)
    train_loss = [(commit.step + 1, commit.loss) for commit in commits if commit.loss is not None]
    held_out = [(each.step + 1, each.loss) for each in evaluations if each.loss is not None]
    picture = run_dir / "loss.png"
    drawn = draw_png(picture, train_loss, held_out, {"unigram": unigram, "bigram": bigram})
    return DemoReport(
        run_dir=str(run_dir),
        next_command=next_command,
        model=str(run_dir / MODEL_NAME),
        curve=str(picture) if drawn else None,
        steps=len(commits),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        tokens=sum(commit.tokens for commit in commits),
        training_s=sum(commit.duration_s for commit in commits),
        stages=[stage.contact.name for stage in plan.stages],
        train_loss=train_loss,
        evaluations=held_out,
        validation_loss=validation_loss(model, data),
        unigram_loss=unigram,
        bigram_loss=bigram,
        links=link_traffic(plan.stages, stage_totals(commits, plan.generation)),
        sample=written_sample(model, SAMPLE_PROMPT, SAMPLE_LENGTH, run.spec.seed),
    )


def counting_losses(spec: RunSpec, data: Source) -> tuple[float, float]:
    """Return the validation loss of a unigram and of a bigram model, counted on what the run trained on."""
    train = data.load("train", np.arange(data.train_count))
    validation = data.load("validation", np.arange(data.validation_count))
    loss = counting_loss(train, validation, getattr(spec.model, "vocab_size", 256))
    return loss.unigram, loss.bigram
