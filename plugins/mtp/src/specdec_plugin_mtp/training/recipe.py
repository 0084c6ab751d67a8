"""How an MTP layer is trained, as the hook tells; no torch until a trainer is made."""

from __future__ import annotations

from typing import Any, Final

from specdec_core.sources import TargetInfo
from specdec_core.training import HeadTraining, Trainer, TrainerBuild
from specdec_plugin_mtp.training.options import MtpTrainingOptions


class MtpTraining:
    """After `specdec_core.training.HeadTraining`."""

    options: Final = MtpTrainingOptions

    def aux_layers(self, target: TargetInfo) -> tuple[int, ...]:
        """Return none: but for its length, the state that leaves the last layer can be told from the normed one."""
        return ()

    def make(self, build: TrainerBuild[Any]) -> Trainer:
        """Make the trainer."""
        from specdec_plugin_mtp.training.trainer import MtpTrainer

        return MtpTrainer(build)


def training_of(method: str) -> HeadTraining:
    """Return how the layer is trained."""
    return MtpTraining()
