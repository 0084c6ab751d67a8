"""Which parameters each optimizer has, and what an update of either is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_data import begin, collect
from torch import nn
from torch.optim import AdamW, Muon

from specdec_train.fit.optimizers import optimizers
from specdec_train.fit.settings import Settings


class TwoGroups:
    """A matrix between states with a bias, and an output head."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module = nn.ModuleDict({"inner": nn.Linear(12, 8), "head": nn.Linear(8, 20, bias=False)})

    def parameters(self) -> list[dict[str, object]]:
        inner, head = self.module["inner"], self.module["head"]
        return [
            {"params": list(inner.parameters()), "orthogonal": True},
            {"params": list(head.parameters()), "scale": 0.5},
        ]


def some(optimizer: str) -> Settings:
    return Settings(
        method="any", options={}, target="", data="", shards=(), ids=1, lanes=1, width=1, optimizer=optimizer, lr=0.01
    )


def test_muon_has_the_matrices_that_a_trainer_gives_it_and_adamw_all_else() -> None:
    trainer = TwoGroups()
    inner, head = trainer.module["inner"], trainer.module["head"]
    muon, adamw = optimizers(trainer, some("muon"))  # type: ignore[arg-type] # it has what is read of a trainer
    assert isinstance(muon, Muon)
    assert isinstance(adamw, AdamW)
    assert [[id(p) for p in group["params"]] for group in muon.param_groups] == [[id(inner.weight)]]
    theirs = [
        (id(each), group["scale"], group["weight_decay"] > 0)
        for group in adamw.param_groups
        for each in group["params"]
    ]
    assert theirs == [(id(inner.bias), 1.0, False), (id(head.weight), 0.5, True)]
    (alone,) = optimizers(trainer, some("adamw"))  # type: ignore[arg-type] # as above
    assert isinstance(alone, AdamW)
    assert sum(p.numel() for group in alone.param_groups for p in group["params"]) == 12 * 8 + 8 + 20 * 8


def test_an_update_by_muon_turns_all_directions_alike_and_is_as_large_as_one_by_adamw() -> None:
    trainer = TwoGroups()
    weight = trainer.module["inner"].weight
    before = weight.detach().clone()
    muon, _ = optimizers(trainer, some("muon"))  # type: ignore[arg-type] # as above
    weight.grad = torch.diag(torch.logspace(0, -2, 8)) @ torch.randn(8, 12)
    muon.step()
    update = (before - weight.detach()) / 0.01
    sizes = torch.linalg.svdvals(update)
    assert sizes.max() / sizes.min() < 3.0  # of the gradient it is above 50
    assert torch.linalg.svdvals(weight.grad).max() / torch.linalg.svdvals(weight.grad).min() > 50
    assert 0.1 < update.square().mean().sqrt() < 0.4


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_head_learns_by_either(optimizer: str, tmp_path: Path) -> None:
    report = begin(collect(tmp_path / "data"), tmp_path / "run", ids=16000, optimizer=optimizer).run()
    assert report.agreement is not None
    assert report.agreement[0] > 0.7
