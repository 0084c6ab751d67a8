"""How Medusa heads are trained, as the hook tells; no torch until a trainer is made."""

from __future__ import annotations

from typing import Any, Final

from specdec_core.sources import TargetInfo
from specdec_core.training import HeadTraining, Trainer, TrainerBuild
from specdec_plugin_medusa.training.options import MedusaTrainingOptions


class MedusaTraining:
    """After `specdec_core.training.HeadTraining`."""

    options: Final = MedusaTrainingOptions

    def aux_layers(self, target: TargetInfo) -> tuple[int, ...]:
        """Return none: heads read the last state."""
        return ()

    def make(self, build: TrainerBuild[Any]) -> Trainer:
        """Make the trainer."""
        from specdec_plugin_medusa.training.trainer import MedusaTrainer

        return MedusaTrainer(build)


def training_of(method: str) -> HeadTraining:
    """Return how the heads are trained."""
    return MedusaTraining()
