"""How EAGLE-3 heads are trained, as the hook tells; no torch until a trainer is made."""

from __future__ import annotations

from typing import Any, Final

from specdec_core.sources import TargetInfo
from specdec_core.training import HeadTraining, Trainer, TrainerBuild
from specdec_plugin_eagle.aux_layers import default_layers
from specdec_plugin_eagle.required import EAGLE_3
from specdec_plugin_eagle.training.options import Eagle3TrainingOptions


class Eagle3Training:
    """After `specdec_core.training.HeadTraining`."""

    options: Final = Eagle3TrainingOptions

    def aux_layers(self, target: TargetInfo) -> tuple[int, ...]:
        """Return the states that heads read whose config.json lists none, as far as a short target has them."""
        return tuple(sorted({max(min(k, target.num_layers), 0) for k in default_layers(target.num_layers)}))

    def make(self, build: TrainerBuild[Any]) -> Trainer:
        """Make the trainer."""
        from specdec_plugin_eagle.training.trainer import Eagle3Trainer

        return Eagle3Trainer(build)


def training_of(method: str) -> HeadTraining | None:
    """Return how heads of a method are trained, None for EAGLE-1."""
    return Eagle3Training() if method == EAGLE_3 else None
