"""Training of EAGLE-3 heads: what the kit promises of trainers, the first weights, the files, and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specdec_core.context import MethodContext
from specdec_core.errors import ConfigError
from specdec_core.training import TrainerBuild
from specdec_nn.training.batches import Packing
from specdec_plugin_eagle.training import start
from specdec_plugin_eagle.training.network import next_ids
from specdec_plugin_eagle.training.options import Eagle3TrainingOptions
from specdec_plugin_eagle.training.recipe import Eagle3Training
from specdec_plugin_eagle.training.trainer import Eagle3Trainer
from specdec_plugin_eagle.vllm_keys import vllm_config
from specdec_testing.building import build
from specdec_testing.fakes import FakeTarget
from specdec_testing.subject import Subject
from specdec_testing.targets import tiny_target
from specdec_testing.trainer import Text, Texts, TrainerContract, pattern_texts, save_head

LAYERS = 8


class TestEagle3Trainer(TrainerContract):
    @pytest.fixture
    def method(self) -> str:
        return "eagle3"

    @pytest.fixture(params=["target", pytest.param("random", marks=pytest.mark.slow)])
    def options(self, request: pytest.FixtureRequest) -> Mapping[str, Any]:
        return {"dtype": "float32", "draft_vocab": 48, "intermediate": 40, "start": request.param}


@dataclass
class Made:
    """A trainer with its target."""

    target: FakeTarget
    trainer: Eagle3Trainer


def made(aux: Sequence[int], texts: Texts | None = None, family: str = "llama", **options: Any) -> Made:
    target = FakeTarget(tiny_target(family, num_hidden_layers=LAYERS))
    trainer_build = TrainerBuild(
        method="eagle3",
        options=Eagle3TrainingOptions(**{"draft_vocab": 48, "dtype": "float32", **options}),
        target=target,
        weights=target.model.state_dict(),
        data=texts or pattern_texts(target, len(aux)),
        aux_layers=tuple(aux),
        seed=0,
    )
    return Made(target, Eagle3Trainer(trainer_build))


def stock_texts(aux: Sequence[int]) -> Texts:
    """Return random texts with the states that the tiny target has of them."""
    model, rng = tiny_target("llama", num_hidden_layers=LAYERS), np.random.default_rng(0)
    texts = []
    for _ in range(4):
        ids = torch.from_numpy(rng.integers(3, 128, 20))
        with torch.inference_mode():
            out = model(ids[None], output_hidden_states=True)
        between = torch.cat([out.hidden_states[k][0] for k in aux], dim=-1)
        texts.append(Text(ids, 4, out.hidden_states[-1][0].clone(), between.clone()))
    return Texts(texts, texts[:1])


def test_a_head_begins_as_the_targets_last_layer_over_what_fc_passes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the embedding's half of attention at zero, the states that enter the last layer become what it says."""
    monkeypatch.setattr(start, "EMBEDDING_GAIN", 0.0)
    aux = (2, 4, LAYERS - 1)
    found = made(aux, stock_texts(aux))
    network, texts = found.trainer.module, stock_texts(aux)
    packing = Packing(texts.requests(), 2, 40)
    batch = packing.batch(packing.epoch(None)[0])
    embeddings = found.target.embedding_weight[next_ids(batch)]
    with torch.no_grad():
        states = next(network.states(batch, embeddings, found.trainer._turns, 1))
        logits = network.logits(states)
    wanted = found.target.compute_logits(batch.last)[..., network.ids]
    real = batch.request >= 0
    torch.testing.assert_close(logits[real], wanted[real], rtol=1e-2, atol=2e-2)


def test_the_most_used_neurons_are_kept() -> None:
    """A layer cut to its most used neurons is nearer to the whole one than a cut at random."""
    aux = (2, 4, LAYERS - 1)
    texts = stock_texts(aux)
    whole, cut = made(aux, texts), made(aux, texts, intermediate=32)
    layer = whole.trainer._parts.layer(LAYERS - 1)
    assert layer is not None
    packing = Packing(texts.requests(), 2, 40)
    batch = packing.batch(packing.epoch(None)[0])
    embeddings = whole.target.embedding_weight[next_ids(batch)]

    def states(trainer: Eagle3Trainer) -> torch.Tensor:
        with torch.no_grad():
            return next(trainer.module.states(batch, embeddings, trainer._turns, 1))[batch.request >= 0]

    wanted, kept = states(whole.trainer), states(cut.trainer)
    inner = len(layer["mlp.gate_proj.weight"])
    errors = []
    for seed in range(5):
        neurons = torch.randperm(inner, generator=torch.Generator().manual_seed(seed))[:32]
        for attribute, other in zip(cut.trainer.module.parameters(), whole.trainer.module.parameters(), strict=True):
            if attribute.shape == other.shape:
                attribute.data.copy_(other.data)
        start.copy_layer(cut.trainer.module, layer, neurons)
        for name in ("q_proj", "k_proj", "v_proj"):
            own, other = (getattr(t.module.midlayer.self_attn, name).weight for t in (cut.trainer, whole.trainer))
            own.data.copy_(other.data)
        errors.append(float((states(cut.trainer) - wanted).norm()))
    assert float((kept - wanted).norm()) < min(errors)


@pytest.mark.parametrize("aux", [(2, 4, 5), (1, 3, 6), (3, 8)])
def test_the_files_name_the_states_that_were_trained_on_for_every_reader(aux: tuple[int, ...], tmp_path: Path) -> None:
    found = made(aux)
    folder = save_head(found.trainer.head(), tmp_path / "head")
    resolved = build(Subject("eagle3", {"model": folder}, None), found.target.info, 3).resolved
    assert resolved.traits.aux_layers == aux
    context = MethodContext.of(resolved, found.target.info)
    assert vllm_config(context) == {"method": "eagle3"}
    inner = resolved.draft.hf_config.get("eagle_config")  # SGLang counts the layers that states leave
    assert inner is None if aux == (2, 4, 5) else inner["eagle_aux_hidden_state_layer_ids"] == [k - 1 for k in aux]


def test_the_default_layers_are_those_of_heads_without_a_list() -> None:
    target = FakeTarget(tiny_target("llama", num_hidden_layers=LAYERS))
    assert Eagle3Training().aux_layers(target.info) == (2, LAYERS // 2, LAYERS - 3)


def test_a_target_of_other_layers_begins_at_random(caplog: pytest.LogCaptureFixture) -> None:
    made((2, 4, 5), family="qwen3")
    assert "begins with random weights" in caplog.text


def test_data_without_states_between_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"collect them with --aux-layers 2,4,5"):
        made((), pattern_texts(FakeTarget(tiny_target("llama", num_hidden_layers=LAYERS)), 0))


def test_more_neurons_than_the_target_has_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"intermediate is 4000, .* give at most"):
        made((2, 4, 5), intermediate=4000)


def test_a_run_begins_with_a_head_that_was_trained_on_other_texts(tmp_path: Path) -> None:
    """What it drafts stays, whatever scale and draft vocabulary the new texts give; new ids have the target's rows."""
    aux = (2, 4, 5)
    first = made(aux, intermediate=32, draft_vocab=20)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in first.trainer.module.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    folder = save_head(first.trainer.head(), tmp_path / "head")
    texts = stock_texts(aux)
    second = made(aux, texts, intermediate=32, draft_vocab=100, start=folder)
    packing = Packing(texts.requests(), 2, 40)
    batch = packing.batch(packing.epoch(None)[0])
    embeddings = first.target.embedding_weight[next_ids(batch)]
    logits = []
    for trainer in (first.trainer, second.trainer):
        with torch.no_grad():
            states = next(trainer.module.states(batch, embeddings, trainer._turns, 1))
            logits.append(dict(zip(trainer.module.ids.tolist(), trainer.module.logits(states).unbind(-1), strict=True)))
    both = logits[0].keys() & logits[1].keys()
    assert len(both) > 5
    for i in both:
        torch.testing.assert_close(logits[1][i], logits[0][i], rtol=1e-3, atol=1e-3)
    new = [row for row, i in enumerate(second.trainer.module.ids.tolist()) if i not in both]
    wanted = second.trainer._parts.head_rows(second.trainer.module.ids[new])
    assert torch.equal(second.trainer.module.lm_head.weight.detach()[new], wanted)


def test_a_head_of_other_sizes_is_no_beginning(tmp_path: Path) -> None:
    folder = save_head(made((2, 4, 5), intermediate=32).trainer.head(), tmp_path / "head")
    with pytest.raises(ConfigError, match=r"no head of these sizes: midlayer\.mlp\.gate_proj"):
        made((2, 4, 5), intermediate=40, start=folder)
