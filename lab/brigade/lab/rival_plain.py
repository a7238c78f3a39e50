"""The same training in one process without a pipeline, as a program: a plain torch loop over microbatches."""

import math
import sys

import torch

from brigade.lab.rival_job import Evaluation, Job, Step
from brigade.lab.rival_training import RivalTraining, job_of, say


def train(job: Job) -> None:
    """Train to the end of the run file."""
    training = RivalTraining(job)
    for step in range(training.training.max_steps):
        inputs, targets = training.batch(step)
        count = training.count(targets)
        parts = training.batching.microbatch_count(step)
        loss = 0.0
        for part, wanted in zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True):
            total = training.summed_loss(training.model(part), wanted) / count
            torch.autograd.backward(total)
            loss += total.item()
        norm = math.sqrt(float(training.squared_norm()))
        training.update(step, norm)
        say(Step(step=step + 1, loss=loss, gradient_norm=norm))
        if training.evaluates_after(step):
            say(Evaluation(step=step + 1, loss=training.evaluate()))


if __name__ == "__main__":
    train(job_of(sys.argv[1:]))
