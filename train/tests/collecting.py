"""Small collections with a tiny target, inside this process, and how to break them off at any point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_engine.bench.arms import ModelOptions, describe_target
from specdec_train.collect.building import engine
from specdec_train.collect.decode import Decoder
from specdec_train.collect.progress import Progress
from specdec_train.collect.prompts import Prompter
from specdec_train.collect.session import Session
from specdec_train.collect.settings import Limits, Settings

SHARES = {"question": 3.0, "math": 1.0, "open": 1.0, "follow_up": 2.0}
SMALL: dict[str, Any] = {
    "aux_layers": (1, 2),
    "max_tokens": 12,
    "together": 4,
    "shard_requests": 6,
    "context": 256,
    "shares": SHARES,
}


class Stopped(BaseException):
    """What stands for a kill."""


class StopsAt(Progress):
    """Counts steps of decoding, and raises at one of them."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__(Limits())
        self.at, self.steps = at, 0
        self.dropped: dict[str, int] = {}

    def step(self, emitted: int) -> None:
        self.steps += 1
        if self.steps == self.at:
            raise Stopped

    def shard(self, manifest: Any, entry: Any, dropped: Any) -> None:
        self.dropped = dict(dropped)


def collect(model: Path, out: Path, shards: int, progress: StopsAt | None = None, **given: Any) -> StopsAt:
    """Collect up to so many shards."""
    settings = Settings(**{**SMALL, **given})
    options = ModelOptions(model=str(model), plugins={})
    manifest = settings.manifest(describe_target(options))
    progress = progress or StopsAt()
    with engine(options, settings) as (llm, keeper, ends):
        prompter = Prompter(llm.tokenizer, ends, chat=settings.chat)
        session = Session(out, manifest, settings, prompter, Decoder(llm, keeper, progress.step), progress)
        while len(session.manifest.shards) < shards:
            session.run(Limits(ids=session.manifest.ids + 1))
    return progress


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder, but for those that a killed process may leave behind."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.suffix != ".new"}
