"""The promises of every proposer and of lossless text, and every draft against the oracle over whole lives."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
from early_exit_oracle import Checked, Oracle

from specdec_core.errors import ContractError, TargetError
from specdec_core.sources import TargetHandle
from specdec_nn.hf import recomputed_layers
from specdec_testing.building import build
from specdec_testing.contract import ProposerContract, script_batch
from specdec_testing.driving import Driver
from specdec_testing.fakes import FakeRequest, FakeTarget
from specdec_testing.identity import IdentityContract
from specdec_testing.subject import Subject
from specdec_testing.targets import tiny_target

DRAWN = {"draft_sample_method": "probabilistic"}


def subject(**options):
    return Subject("early_exit", options, None)


class TestContract(ProposerContract):
    """Greedy, drawn by itself, and drawn with the target's noise and a threshold."""

    @pytest.fixture
    def method(self):
        return "early_exit"

    @pytest.fixture(
        params=[
            {"exit_layer": 1},
            {**DRAWN, "rejection_sample_method": "standard"},
            {**DRAWN, "rejection_sample_method": "coupled", "draft_confidence_threshold": 0.3},
        ],
        ids=["greedy", "drawn", "shared noise"],
    )
    def options(self, request):
        return request.param


class TestIdentity(IdentityContract):
    families: ClassVar = ("llama", "gemma3", "gpt2")
    ks: ClassVar = (1, 2, 3, 4, 5, 6)

    @pytest.fixture
    def method(self):
        return "early_exit"


class TestIdentityOfDrawnDrafts(IdentityContract):
    families: ClassVar = ("llama",)

    @pytest.fixture
    def method(self):
        return "early_exit"

    @pytest.fixture
    def options(self):
        return {**DRAWN, "rejection_sample_method": "coupled"}


@pytest.mark.parametrize("exit_layer", [1, 2, 3])
def test_every_draft_is_what_the_formulas_say_over_chunks_rejections_pauses_and_preemption(exit_layer):
    model = tiny_target("llama", num_hidden_layers=4)
    target = FakeTarget(model)
    built = build(subject(exit_layer=exit_layer), target.info, 4)
    checked = Checked(built.proposer(target), Oracle(model, exit_layer))
    driver = Driver(checked, built.resolved.traits, target)
    accept, off = ((0, 4, 1), (4,), (2, 0, 3)), (frozenset(), frozenset((1, 2)))
    changes = [{"accept": accept[i % 3], "off": off[i % 2], "preempt": (None, None, 3)[i % 3]} for i in range(8)]
    driver.run([replace(s, **more) for s, more in zip(script_batch(8, 0, 128, 4), changes, strict=True)])
    assert driver.problems == []
    assert checked.compared > 40 and checked.oracle.margin > 1e-4


def test_a_long_prompt_is_caught_up_over_several_steps_where_rows_are_recomputed(monkeypatch):
    monkeypatch.setattr(recomputed_layers, "CATCH_UP_ROWS", 8)
    target = FakeTarget(tiny_target("llama"))
    built = build(subject(), target.info)
    layers = target.first_layers(1, 4, built.registry.kernels)
    request = FakeRequest("a", range(3, 33))
    assert [layers.begin([request.view], [4])[0] for _ in range(5)] == [0, 0, 0, 4, 4]
    layers.close()


def test_rows_that_were_not_granted_are_refused():
    import torch

    target = FakeTarget(tiny_target("llama"))
    built = build(subject(), target.info)
    layers = target.first_layers(1, 4, built.registry.kernels)
    request, ids = FakeRequest("a", [5, 6, 7]).view, torch.tensor([7])
    with pytest.raises(ContractError, match="0 have run of the 0"):
        layers.run([request], 0, ids)
    layers.begin([request], [1])
    with pytest.raises(ContractError, match="row 1 of request 'a'"):
        layers.run([request], 1, ids)
    layers.run([request], 0, ids)
    with pytest.raises(ContractError, match="1 have run of the 1"):
        layers.run([request], 1, ids)


def test_a_host_that_runs_its_target_as_a_whole_refuses_the_method_by_name():
    class Whole:
        """A handle without first_layers."""

        def __init__(self, inner: TargetHandle) -> None:
            self.info, self.device = inner.info, inner.device

    target = FakeTarget(tiny_target("llama"))
    built = build(subject(), target.info)
    with pytest.raises(
        TargetError,
        match=r"early_exit with exit_layer 1 .*runs its target as a whole only \(Whole",
    ):
        built.proposer(Whole(target))  # type: ignore[arg-type]
