"""Loads the target of some data for training: embedding, head and tensors; it runs no layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from specdec_core.errors import RequestError
from specdec_core.sources import TargetInfo
from specdec_core.training import HeadTraining, TrainingRequest
from specdec_nn.hf.handle import ModelHandle
from specdec_nn.hf.loading import ModelSource, load_model, resolve_device
from specdec_train.data import Data, Manifest

FIGURES: Final = ("vocab_size", "hidden_size", "num_layers")


@dataclass(frozen=True)
class LoadedTarget:
    """A target, as trainers are given it."""

    handle: ModelHandle
    weights: Mapping[str, Tensor]

    @classmethod
    def load(cls, model: str, device: str = "auto") -> LoadedTarget:
        """Load a model in its own dtype; raises TargetError for one that cannot be loaded."""
        info = TargetInfo.from_folder(model)
        loaded = load_model(ModelSource.of(model), "auto", resolve_device(device))
        return cls.of(loaded, info)

    @classmethod
    def of(cls, model: Any, info: TargetInfo) -> LoadedTarget:
        """Take a model that is loaded."""
        return cls(ModelHandle(model.requires_grad_(False), info), model.state_dict())


def check_data(manifest: Manifest, info: TargetInfo, method: str, training: HeadTraining) -> None:
    """Raise RequestError where data are of another target, or lack states that a method's heads read."""
    theirs = TargetInfo.from_config(manifest.target, manifest.target_config, 1)
    unlike = [name for name in FIGURES if getattr(theirs, name) != getattr(info, name)]
    if unlike:
        pairs = ", ".join(f"{name} {getattr(theirs, name)} and not {getattr(info, name)}" for name in unlike)
        message = (
            f"the data are of another target, {manifest.target!r} with {pairs}: give that one as --model, or collect "
            f"data of {info.model!r}"
        )
        raise RequestError(message)
    missing = sorted(set(training.aux_layers(info)) - set(manifest.aux_layers))
    if missing and not manifest.aux_layers:
        wanted = ",".join(map(str, training.aux_layers(info)))
        message = (
            f"heads of {method} read states of the target's layers, and the data have none; collect them anew with "
            f"--aux-layers {wanted}"
        )
        raise RequestError(message)


@dataclass(frozen=True)
class ChosenData:
    """The requests of some shards of a folder; after `specdec_core.training.TrainingData`."""

    data: Data
    files: frozenset[str]

    @classmethod
    def of(cls, data: Data, shards: Sequence[str]) -> ChosenData:
        """Take the shards with these hashes. Raises RequestError for those that are no longer there."""
        known = {entry.sha256: entry.file for entry in data.manifest.shards}
        lost = [each for each in shards if each not in known]
        if lost:
            message = f"{data.folder} no longer has {len(lost)} of the shards that the run was begun with: {lost[0]}"
            raise RequestError(message)
        return cls(data, frozenset(known[each] for each in shards))

    def requests(self, held_out: bool = False) -> Sequence[TrainingRequest]:
        """Return the requests of either kind."""
        return [each for each in self.data.requests(held_out) if each.shard.file.name in self.files]
