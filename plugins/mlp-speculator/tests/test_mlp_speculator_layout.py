"""What a checkpoint is read as: its method, its variant, its keys, each by what the file itself says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mlp_speculator_checkpoints import WIDTH, built, config, random_weights, resolve_config, save, tensors_of
from mlp_speculator_layouts import LAYOUTS, TRAINER

from specdec_core.sources import DraftSource
from specdec_plugin_mlp_speculator.detection import detect
from specdec_plugin_mlp_speculator.settings import patch_of
from specdec_testing.watching import evidence

# One layout in seven for every change, all of them in `make test`.
SOME_OFTEN = [name if i % 7 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(LAYOUTS)]


@pytest.mark.parametrize("name", SOME_OFTEN)
def test_every_variant_is_recognised_without_a_word_in_the_path(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    resolved = resolve_config(layout.save(tmp_path / "x"), method=None)
    n_predict = len(layout.parts.heads)
    assert (resolved.method, resolved.num_speculative_tokens) == ("mlp_speculator", n_predict)
    assert resolved.traits.n_predict == resolved.traits.max_tokens == n_predict
    assert (resolved.traits.rows, resolved.traits.hidden, resolved.traits.weights) == ("last", True, "own")
    assert resolved.num_lookahead_slots == 0, "speculators keep no cache"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_type": "mlp_speculator", "n_predict": 3}, "certain: model_type 'mlp_speculator'"),
        ({"architectures": "MLPSpeculatorPreTrainedModel"}, "certain: architectures ['MLPSpeculatorPreTrainedModel']"),
        ({"architectures": ["MLPSpeculatorPreTrainedModel"]}, "certain: architectures"),
        ({}, "likely: tensor speculator.emb.0.weight, tensor speculator.proj.0.weight"),
        (None, "likely: tensor speculator.emb.0.weight"),
    ],
)
def test_the_evidence_is_what_the_file_says(settings: dict[str, Any] | None, said: str, tmp_path: Path) -> None:
    assert said in evidence(resolve_config(save(tmp_path / "x", tensors_of(random_weights()), settings), method=None))


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (["model.layers.0.mlp.up_proj.weight", "lm_head.weight"], {"model_type": "llama"}),
        (["speculator.proj.0.weight", "speculator.head.0.weight"], {}),
        (["emb.0.weight", "proj.0.weight", "cell.0.weight"], {}),
        (["emb.0.weight", "proj.0.weight"], {"architectures": ["SomeLSTMSpeculatorPreTrainedModel"]}),
    ],
)
def test_other_checkpoints_are_not_claimed(names: list[str], settings: dict[str, Any], tmp_path: Path) -> None:
    model = save(tmp_path / "mlp_speculator", {name: torch.zeros(2, 2) for name in names}, settings)
    assert detect(DraftSource(model)) is None


def test_keys_of_all_trainers_are_spelled_as_vllm_spells_them() -> None:
    assert patch_of(TRAINER) == {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "top_k_tokens_per_head": [1, 1, 1],
    }
    other = {"hidden_size": 8, "num_lookahead_tokens": 2, "tie_wts": True, "inner_dim": 0}
    assert patch_of(other) == {"emb_dim": 8, "n_predict": 2, "tie_weights": True, "inner_dim": 8}
    assert patch_of({**other, "emb_dim": 9, "n_predict": 3, "tie_weights": False, "inner_dim": 4}) is None
    assert patch_of(config()) is None


def test_tied_heads_are_kept_once_and_the_first_projection_stands_alone(tmp_path: Path) -> None:
    for name in ("tied, every copy", "tied, stored once"):
        heads = built(LAYOUTS[name].save(tmp_path / name))[0]._plan._network._heads
        assert len(heads) == 4
        assert len({id(head.output) for head in heads}) == 1
        assert len({id(head.projection) for head in heads[1:]}) == 1
        assert heads[0].projection is not heads[1].projection
        assert len({id(head.embedding) for head in heads}) == 1
        assert len({id(part) for head in heads for part in head.norm}) == 2


def test_the_lowest_copy_that_is_there_counts(tmp_path: Path) -> None:
    layout = LAYOUTS["tied, every copy"]
    kept = {n: t for n, t in layout.tensors.items() if ".0." not in n or ".proj." in n}
    heads = built(save(tmp_path / "x", kept, layout.settings))[0]._plan._network._heads
    assert torch.equal(heads[0].embedding, layout.tensors["speculator.emb.1.weight"])


def test_only_the_heads_that_draft_are_read(tmp_path: Path) -> None:
    model = LAYOUTS["seven heads"].save(tmp_path / "x")
    assert len(built(model, num_speculative_tokens=2)[0]._plan._network._heads) == 2
    assert len(built(model, top_k_tokens_per_head=[2, 2, 2])[0]._plan._network._heads) == 3


@pytest.mark.parametrize(
    ("keys", "k"),
    [
        ({"n_candidates": 4}, 3 + 4 + 4),
        ({"top_k_tokens_per_head": [2, 1, 1]}, None),
        ({"top_k_tokens_per_head": [5, 4, 3], "n_candidates": 5}, 5 + 5 + 5),
        ({"top_k_tokens_per_head": [2, 2], "n_candidates": 3}, 2 + 3),
    ],
)
def test_k_of_a_tree_is_the_most_nodes_that_it_can_have(keys: dict[str, Any], k: int | None, tmp_path: Path) -> None:
    model = save(tmp_path / "x", tensors_of(random_weights()), config(n_candidates=2 if k is None else 4))
    resolved = resolve_config(model, **keys)
    assert resolved.num_speculative_tokens == resolved.traits.max_tokens == (k or 2 + 2 + 2)
    assert (resolved.traits.shape, resolved.traits.n_predict) == ("tree", None)


def test_weights_take_the_targets_dtype(tmp_path: Path) -> None:
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in tensors_of(random_weights()).items()}
    proposer, _, target = built(save(tmp_path / "x", tensors, config()))
    state = proposer._plan._network.step(0, torch.randn(3, WIDTH).to(target.dtype), torch.tensor([1, 2, 3]))
    assert state.dtype == target.dtype
