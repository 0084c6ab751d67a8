"""A stranger's method with a stranger's trainer: a table of which id follows which, drafted one id at a time."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from specdec_core import hookimpl
from specdec_core.config.speculative import MethodOptions
from specdec_core.draft import BatchView, Draft
from specdec_core.training import TrainedHead, TrainerBuild, TrainingBatch
from specdec_core.traits import MethodTraits
from specdec_nn.checkpoints.weights import read_tensors


class Table(nn.Module):
    def __init__(self, size: int, gain: float) -> None:
        super().__init__()
        self.table = nn.Parameter(gain * torch.randn(size, size, generator=torch.Generator().manual_seed(0)))


class TableTrainer:
    def __init__(self, build: TrainerBuild[Any]) -> None:
        self.module = Table(build.target.info.vocab_size, build.options.gain)

    def parameters(self) -> list[dict[str, Any]]:
        return [{"params": list(self.module.parameters()), "scale": 20.0}]

    def loss(self, batch: TrainingBatch, progress: float) -> Tensor:
        pairs = (batch.request[:, :-1] == batch.request[:, 1:]) & (batch.request[:, 1:] >= 0)
        return cross_entropy(self.module.table[batch.ids[:, :-1][pairs]], batch.ids[:, 1:][pairs])

    def drafts(self, batch: TrainingBatch) -> Tensor:
        found = torch.full((*batch.ids.shape, 1), -1)
        said = self.module.table[batch.ids[:, 1:]].argmax(dim=-1)
        found[:, :-1, 0] = said.where(batch.request[:, :-1] == batch.request[:, 1:], -1)
        return found

    def head(self) -> TrainedHead:
        return TrainedHead(config={"model_type": "table"}, tensors={"table": self.module.table.detach().clone()})


class TableOptions(MethodOptions):
    gain: float = Field(0.01, description="Of the first weights.")


class TableTraining:
    options = TableOptions

    def aux_layers(self, target: Any) -> tuple[int, ...]:
        return ()

    def make(self, build: TrainerBuild[Any]) -> TableTrainer:
        return TableTrainer(build)


class TableProposer:
    def __init__(self, table: Tensor) -> None:
        self._next = table.argmax(dim=-1)

    def start(self, request: Any) -> None: ...

    def propose(self, batch: BatchView) -> Draft:
        newest = [int(batch.request(i).tokens[-1]) for i in range(len(batch))]
        most = batch.max_draft.tolist()
        return Draft.of([[int(self._next[i])][:k] for i, k in zip(newest, most, strict=True)])

    def finish(self, request: Any, reason: str) -> None: ...

    def close(self) -> None: ...


class TablePlugin:
    @hookimpl
    def specdec_method_traits(self, ctx: Any) -> MethodTraits:
        return MethodTraits(max_tokens=1, weights="own")

    @hookimpl
    def specdec_make_proposer(self, ctx: Any) -> TableProposer:
        return TableProposer(read_tensors(ctx.checkpoint)["table"])

    @hookimpl
    def specdec_make_trainer(self, method: str) -> TableTraining:
        return TableTraining()


plugin = TablePlugin()
