"""What must hold of a run on disk, judged from its files alone and not with the code that wrote them."""

import hashlib
import json
import re
import sqlite3
from collections import Counter
from contextlib import closing
from typing import NamedTuple

from safetensors.numpy import load_file

from brigade.partition.batching import Batching

UNFINISHED = re.compile(r"\.(partial|tmp|deleting|damaged)$|^\.")


class Step(NamedTuple):
    """One row of the ledger."""

    step: int
    attempt: int
    loss: float
    gradient_norm: float
    learning_rate: float
    tokens: int
    sample_ids: tuple[int, ...]


def ask(run_dir, query):
    """Return the rows that a query of a run's database gives."""
    uri = f"{(run_dir / 'run.sqlite').as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return database.execute(query).fetchall()


def ledger(run_dir):
    """Return the steps that count: of each the row with the highest attempt, in order."""
    query = (
        "SELECT step, attempt, loss, gradient_norm, learning_rate, tokens, sample_ids FROM steps ORDER BY step, attempt"
    )
    newest = {row[0]: Step(*row[:-1], tuple(json.loads(row[-1]))) for row in ask(run_dir, query)}
    return [newest[step] for step in sorted(newest)]


def held_out(run_dir):
    """Return the held-out losses that count, by step."""
    return dict(ask(run_dir, "SELECT step, loss FROM evaluations ORDER BY step, attempt"))


def check_samples(steps, *, samples, batch_size, seed):
    """Every step is there, and every sample of every whole epoch once, in the order that belongs to the seed."""
    assert [step.step for step in steps] == list(range(len(steps)))
    batching = Batching(samples=samples, batch_size=batch_size, microbatches=1, seed=seed)
    for step in steps:
        assert step.sample_ids == tuple(batching.sample_ids(step.step)), f"step {step.step}"
    size = -(-samples // batch_size)
    for first in range(0, len(steps) - size + 1, size):
        epoch = Counter(number for step in steps[first : first + size] for number in step.sample_ids)
        assert epoch == Counter(range(samples)), f"the epoch that begins at step {first}"


def check_attempts(run_dir):
    """Within an attempt steps follow each other, and an attempt begins at a step that the ones before it had reached."""
    rows = ask(run_dir, "SELECT attempt, step FROM steps ORDER BY attempt, step")
    done = 0
    for attempt, first in ask(run_dir, "SELECT attempt, first_step FROM attempts ORDER BY attempt"):
        assert first <= done, f"attempt {attempt}"
        steps = [step for number, step in rows if number == attempt]
        assert steps == list(range(first, first + len(steps))), f"attempt {attempt}"
        done = max(done, first + len(steps))


def check_checkpoints(run_dir):
    """Every checkpoint is whole, its parts are of one step, and nothing unfinished lies about; return them by step."""
    folders = sorted((run_dir / "checkpoints").iterdir())
    for folder in folders:
        check_checkpoint(folder)
    return [int(folder.name.removeprefix("step-")) for folder in folders]


def check_checkpoint(folder):
    """The files of a folder are those of its manifest, byte by byte, and every optimizer in it has made its steps."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert folder.name == f"step-{manifest['steps_done']:06d}"
    assert {path.name for path in folder.iterdir()} == {"manifest.json", *(file["name"] for file in manifest["files"])}
    for file in manifest["files"]:
        data = (folder / file["name"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["size"], file["sha256"]), file["name"]
    optimizers = [load_file(path) for path in folder.glob("block-*.optimizer.safetensors")]
    assert len(optimizers) == manifest["blocks"]
    counts = {float(value) for state in optimizers for name, value in state.items() if name.endswith("/step")}
    assert counts == {manifest["steps_done"]}, folder.name


def unfinished(root):
    """Return what lies below a directory and looks like something half made."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if UNFINISHED.search(path.name))


def check_same_curve(steps, reference, *, relative=0.0):
    """Losses, norms, rates and samples are those of a run that nobody disturbed."""
    assert len(steps) == len(reference)
    for mine, other in zip(steps, reference, strict=True):
        assert (mine.step, mine.tokens, mine.sample_ids) == (other.step, other.tokens, other.sample_ids)
        assert mine.learning_rate == other.learning_rate, f"step {mine.step}"
        for name in ("loss", "gradient_norm"):
            a, b = getattr(mine, name), getattr(other, name)
            assert abs(a - b) <= relative * abs(b), f"{name} of step {mine.step}: {a!r} is not {b!r}"


def check_same_model(path, reference, *, relative=0.0):
    """Two exported models hold the same numbers."""
    mine, other = load_file(path), load_file(reference)
    assert mine.keys() == other.keys()
    for name, expected in other.items():
        assert abs(mine[name] - expected).max() <= relative * abs(expected).max(), name
