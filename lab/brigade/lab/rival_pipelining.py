"""The same training by `torch.distributed.pipelining` over gloo, as a program: one process of it, with one stage.

Its best honest use: the last stage reads the targets itself instead of having them sent, outputs of the last stage are
not merged, and one all-reduce of eight bytes makes the norm of the whole gradient.
"""

import math
import os
import sys

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from brigade.lab.rival_job import Job, Step
from brigade.lab.rival_training import RivalTraining, job_of, say

SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


def train(job: Job) -> None:
    """Train to the end of the run file; the last stage tells how it goes."""
    if job.interface:
        os.environ["GLOO_SOCKET_IFNAME"] = job.interface
    dist.init_process_group("gloo", init_method=f"file://{job.rendezvous}", rank=job.stage, world_size=job.stages)
    training = RivalTraining(job)
    last = job.stage == job.stages - 1
    count = 1

    def mean_loss(output: Tensor, targets: Tensor) -> Tensor:
        return training.summed_loss(output, targets) / count

    stage = PipelineStage(training.model, job.stage, job.stages, torch.device("cpu"))
    schedule = SCHEDULES[job.schedule](
        stage, n_microbatches=training.training.microbatches, loss_fn=mean_loss, scale_grads=False
    )
    for step in range(training.training.max_steps):
        losses: list[Tensor] = []
        if job.stage == 0:
            schedule.step(training.batch(step)[0], return_outputs=False)
        elif last:
            targets = training.batch(step)[1]
            count = training.count(targets)
            schedule.step(target=targets, losses=losses, return_outputs=False)
        else:
            schedule.step(return_outputs=False)
        squared_norm = training.squared_norm()
        dist.all_reduce(squared_norm)
        norm = math.sqrt(squared_norm.item())
        training.update(step, norm)
        if last:
            say(Step(step=step + 1, loss=torch.stack(losses).sum().item(), gradient_norm=norm))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    train(job_of(sys.argv[1:]))
