"""One call of `specdec train fit`: checks what was asked for, begins a run or resumes it, and trains to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specdec_core.errors import RequestError
from specdec_core.training import Trainer, TrainerBuild
from specdec_train.data import Data
from specdec_train.fit.agreement import Agreement
from specdec_train.fit.finding import find_training, read_options
from specdec_train.fit.loop import Loop, Report
from specdec_train.fit.settings import NAME, Settings
from specdec_train.fit.speed import ids_in_minutes
from specdec_train.fit.target import ChosenData, LoadedTarget, check_data
from specdec_train.replacing import NEW


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """What a run is to be.

    wanted   its settings; `ids` 0 where they follow from minutes or epochs, `shards` those of the data
    epochs   passes over the data, None where minutes are given
    plugins  unpackaged plugins by name
    device   of the target and of the head
    loaded   the target, where it is loaded already
    """

    data: Data
    folder: Path
    wanted: Settings
    epochs: float | None = None
    plugins: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    loaded: LoadedTarget | None = None

    def loop(self, tell: Callable[[Report], object], note: Callable[[str], object] = lambda text: None) -> Loop:
        """Return the run, new or as its last checkpoint left it. Raises RequestError, TargetError or ConfigError."""
        training = find_training(self.wanted.method, self.plugins)
        options = read_options(self.wanted.method, training, self.wanted.options)
        begun = Settings.read(self.folder)
        if begun is not None:
            begun.check_same(self.wanted if self.epochs is None else self._with_epochs(begun.shards), self.folder)
        else:
            self._check_free()
        loaded = self.loaded or LoadedTarget.load(self.wanted.target, self.device)
        info = loaded.handle.info
        check_data(self.data.manifest, info, self.wanted.method, training)
        settings = begun or (self.wanted if self.epochs is None else self._with_epochs(self.wanted.shards))
        data = ChosenData.of(self.data, settings.shards)
        if not data.requests():
            message = f"{self.data.folder} has no texts to train on; collect more"
            raise RequestError(message)
        build = TrainerBuild(
            method=settings.method,
            options=options,
            target=loaded.handle,
            weights=loaded.weights,
            data=data,
            aux_layers=self.data.manifest.aux_layers,
            seed=settings.seed,
        )
        trainer = training.make(build)
        if begun is None:
            settings = self._begin(settings, trainer, data, loaded)
        else:
            note(f"resuming the run in {self.folder}")
        shape = (settings.lanes, settings.width)
        agreement = Agreement(loaded.handle, data.requests(held_out=True), shape, settings.held_out_ids)
        return Loop(self.folder, settings, trainer, data, agreement, loaded.handle.device, tell)

    def _begin(self, settings: Settings, trainer: Trainer, data: ChosenData, loaded: LoadedTarget) -> Settings:
        """Fix the number of ids, and write the settings."""
        if settings.minutes is not None and self.epochs is None:
            ids = ids_in_minutes(trainer, data, settings, loaded.handle.device)
            settings = replace(settings, ids=ids)
        self.folder.mkdir(parents=True, exist_ok=True)
        settings.write(self.folder)
        return settings

    def _with_epochs(self, shards: tuple[str, ...]) -> Settings:
        """Return the settings with the ids of so many passes over some shards."""
        assert self.epochs is not None
        ids = sum(len(request.ids) for request in ChosenData.of(self.data, shards).requests())
        return replace(self.wanted, ids=max(int(ids * self.epochs), 1))

    def _check_free(self) -> None:
        is_other = self.folder.exists() and not self.folder.is_dir()
        if is_other or any(file.suffix != NEW for file in self.folder.glob("*")):
            message = f"{self.folder} has something in it, and no {NAME} of a run; --out names a new folder"
            raise RequestError(message)
