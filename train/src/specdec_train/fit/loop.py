"""The training loop: batches in their order, optimizer, checkpoints, measurements; it knows no method.

What a run comes to depends on its settings and its data alone. The order of each pass is drawn from the seed and the
number of the pass, the learning rate follows the ids, and a checkpoint has everything else; so a run that was killed at
any moment and resumed ends with the weights of one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from specdec_core.training import Trainer, TrainingBatch, TrainingData
from specdec_nn.training.batches import Packing, ids_in, moved
from specdec_train.fit.agreement import Agreement
from specdec_train.fit.files import EXPORT, read_checkpoint, write_checkpoint, write_head
from specdec_train.fit.log import Log
from specdec_train.fit.optimizers import optimizers
from specdec_train.fit.schedule import rate
from specdec_train.fit.settings import Settings

SAVE_EVERY: Final = 60.0  # seconds


@dataclass
class Place:
    """How far a run is.

    ids, step    trained on so far, and steps of the optimizer
    epoch, at    pass over the data, and the next batch in it
    losses       sum of the losses since the last line of the log, and of how many batches
    seconds      of training so far
    """

    ids: int = 0
    step: int = 0
    epoch: int = 0
    at: int = 0
    losses: float = 0.0
    batches: int = 0
    seconds: float = 0.0


@dataclass
class Report:
    """What is told after each step: how far the run is, the last loss, and the last agreement that was measured."""

    place: Place
    total: int
    loss: float | None
    agreement: list[float] | None
    measured: bool = False


@dataclass
class Loop:
    """One run in its folder.

    tell  is called after each step, and may raise to end the run
    """

    folder: Path
    settings: Settings
    trainer: Trainer
    data: TrainingData
    agreement: Agreement
    device: torch.device
    tell: Callable[[Report], object] = lambda report: None
    place: Place = field(default_factory=Place)

    def __post_init__(self) -> None:
        """Make the optimizers, and go on where the last checkpoint is."""
        s = self.settings
        self._optimizers = optimizers(self.trainer, s)
        self._packing = Packing(self.data.requests(), s.lanes, s.width)
        self._measured: list[float] | None = None
        state = read_checkpoint(self.folder)
        if state is not None:
            self.trainer.module.load_state_dict(state["module"])
            for each, kept in zip(self._optimizers, state["optimizers"], strict=True):
                each.load_state_dict(kept)
            torch.set_rng_state(state["rng"])
            self.place, self._measured = Place(**state["place"]), state["measured"]
        self._log = Log(self.folder, None if state is None else self.place.ids)

    def run(self) -> Report:
        """Train to the end, and return the last report."""
        self._clock, saved = time.monotonic(), time.monotonic()
        if self.place.step == 0:
            torch.manual_seed(self.settings.seed)
            self._measure(None)
        batches: list[Any] = []
        for_epoch = -1
        while self.place.ids < self.settings.ids:
            if for_epoch != self.place.epoch:
                for_epoch = self.place.epoch
                batches = self._packing.epoch(self.settings.seed, for_epoch)
            self._train_on(batches)
            if time.monotonic() - saved > SAVE_EVERY:
                self._save()
                saved = time.monotonic()
        self._save()
        return Report(self.place, self.settings.ids, None, self._measured)

    def _train_on(self, batches: list[Any]) -> None:
        """Take one step, and measure where it is time to."""
        place, every = self.place, self.settings.evaluate_every
        chosen = batches[place.at]
        batch = moved(self._packing.batch(chosen), self.device)
        before = place.ids // every
        loss = self._step(batch)
        place.ids += ids_in(chosen)
        place.step += 1
        place.losses += loss
        place.batches += 1
        place.at += 1
        if place.at == len(batches):
            place.epoch, place.at = place.epoch + 1, 0
        self._pass_time()
        measures = place.ids // every > before or place.ids >= self.settings.ids
        if measures:
            self._measure(place.losses / place.batches)
            self._save()
        self.tell(Report(place, self.settings.ids, loss, self._measured, measures))

    def _step(self, batch: TrainingBatch) -> float:
        s, done = self.settings, self.place.ids / self.settings.ids
        factor = rate(done, s.warmup, s.floor)
        for each in self._optimizers:
            for group in each.param_groups:
                group["lr"] = s.lr * group["scale"] * factor
            each.zero_grad(set_to_none=True)
        with compute(s.compute, self.device):
            loss = self.trainer.loss(batch, done)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.trainer.module.parameters(), s.clip)
        for each in self._optimizers:
            each.step()
        return float(loss.detach())

    def _measure(self, loss: float | None) -> None:
        """Measure agreement, write the head as it is, and log."""
        place = self.place
        with compute(self.settings.compute, self.device):
            self._measured = self.agreement.measure(self.trainer)
        write_head(self.folder / EXPORT, self.trainer.head())
        place.losses, place.batches = 0.0, 0
        self._pass_time()
        lr = self._optimizers[0].param_groups[0]["lr"]
        seconds = round(place.seconds, 1)
        self._log.add(ids=place.ids, step=place.step, loss=loss, agreement=self._measured, seconds=seconds, lr=lr)

    def _pass_time(self) -> None:
        now = time.monotonic()
        self.place.seconds += now - self._clock
        self._clock = now

    def _save(self) -> None:
        state = {
            "module": self.trainer.module.state_dict(),
            "optimizers": [each.state_dict() for each in self._optimizers],
            "rng": torch.get_rng_state(),
            "place": vars(self.place),
            "measured": self._measured,
        }
        write_checkpoint(self.folder, state)


def compute(dtype: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which products are computed in a dtype."""
    return nullcontext() if dtype == "float32" else torch.autocast(device.type, getattr(torch, dtype))
