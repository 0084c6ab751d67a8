"""How many ids a minute can train on, measured before a run begins; it leaves the trainer as it was."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import torch

from specdec_core.training import Trainer, TrainingData
from specdec_nn.training.batches import Packing, ids_in, moved
from specdec_train.fit.loop import compute
from specdec_train.fit.optimizers import optimizers
from specdec_train.fit.settings import Settings

PARTS: Final = (0.125, 0.375, 0.625, 0.875)  # of a run, in each of which a step may take its own time
USED: Final = 0.95  # of the time, by steps; the rest is for measurements and checkpoints


def ids_in_minutes(trainer: Trainer, data: TrainingData, settings: Settings, device: torch.device) -> int:
    """Return how many ids are trained on in `settings.minutes`; each part of a run is timed on one batch, twice.

    Steps are taken with a learning rate of 0, by optimizers of their own.
    """
    packing = Packing(data.requests(), settings.lanes, settings.width)
    first = packing.epoch(settings.seed)[0]
    batch = moved(packing.batch(first), device)
    stepping = optimizers(trainer, replace(settings, lr=0.0))
    per_id = []
    with torch.random.fork_rng(devices=[]):
        for progress in (PARTS[0], *PARTS):  # the first is a trial, in which kernels are made
            times = []
            for _ in range(2):
                begun = time.monotonic()
                with compute(settings.compute, device):
                    loss = trainer.loss(batch, progress)
                torch.autograd.backward(loss)
                for each in stepping:
                    each.step()
                float(loss.detach())
                times.append(time.monotonic() - begun)
                trainer.module.zero_grad(set_to_none=True)
            per_id.append(min(times) / ids_in(first))
    assert settings.minutes is not None
    mean = sum(per_id[1:]) / len(PARTS)
    return max(int(settings.minutes * 60 * USED / mean), ids_in(first))
