"""Collected data of a tiny target on disk: texts that go around a cycle of ids."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import transformers

from specdec_core.sources import TargetInfo
from specdec_testing.fakes import FakeTarget
from specdec_testing.targets import tiny_target
from specdec_testing.trainer import pattern_texts
from specdec_train.data import Collected, Data, Manifest, Writer
from specdec_train.fit.loop import Loop
from specdec_train.fit.session import Fitting
from specdec_train.fit.settings import Settings
from specdec_train.fit.target import LoadedTarget

LAYERS = 8
AUX = (2, 4, 5)  # the states that enter layers 2, L // 2 and L - 3


@cache
def model() -> transformers.PreTrainedModel:
    return tiny_target("llama", num_hidden_layers=LAYERS)


def info() -> TargetInfo:
    return TargetInfo.from_config("tiny", model().config.to_dict())


def collect(folder: Path, aux: tuple[int, ...] = AUX, **config: Any) -> Data:
    """Write two shards and return them."""
    texts = pattern_texts(FakeTarget(model()), len(aux), count=60)
    manifest = Manifest(
        target="tiny",
        target_config={**json.loads(model().config.to_json_string(use_diff=False)), **config},
        hidden_size=info().hidden_size,
        aux_layers=aux,
        dtype="float32",
        seed=0,
        tasks=("cycle",),
    )
    writer = Writer(folder, manifest)
    every = [  # prompts of many lengths, so that some are held out
        Collected(t.ids.tolist(), 4 + i % 9, 0, t.last, t.aux) for i, t in enumerate((*texts.train, *texts.held_out))
    ]
    writer.write(every[:30])
    writer.write(every[30:])
    return Data(folder)


def settings(data: Data, **changes: Any) -> Settings:
    """Return settings of a short run."""
    kept: dict[str, Any] = {
        "method": "eagle3",
        "options": {"draft_vocab": 48, "intermediate": 40, "dtype": "float32"},
        "target": "tiny",
        "data": str(data.folder),
        "shards": tuple(shard.sha256 for shard in data.manifest.shards),
        "ids": 4000,
        "lanes": 4,
        "width": 48,
        "optimizer": "muon",
        "lr": 3e-3,
        "evaluate_every": 900,
    }
    return Settings(**{**kept, **changes})


def fitting(data: Data, folder: Path, epochs: float | None = None, plugins: Any = None, **changes: Any) -> Fitting:
    loaded = LoadedTarget.of(model(), info())
    return Fitting(
        data=data,
        folder=folder,
        wanted=settings(data, **changes),
        epochs=epochs,
        plugins=plugins or {},
        loaded=loaded,
    )


def begin(data: Data, folder: Path, tell: Any = lambda report: None, **changes: Any) -> Loop:
    return fitting(data, folder, **changes).loop(tell)
