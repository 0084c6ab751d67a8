"""What a checkpoint is read as: its method, its heads, its states, each by what the file itself says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra_checkpoints import (
    INFO,
    TABLE,
    TARGET,
    VOCAB,
    WIDTH,
    built,
    config,
    random_heads,
    resolve_config,
    save,
    tensors_of,
)
from hydra_layouts import LAYOUTS

from specdec_core.sources import DraftSource
from specdec_plugin_hydra.detection import detect
from specdec_plugin_hydra.layout import HydraReader
from specdec_plugin_hydra.options import HydraOptions
from specdec_testing.watching import evidence

# Two layouts for every change, all of them in `make test`.
SOME_OFTEN = [name if i < 2 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(LAYOUTS)]
ONE = random_heads(1)


@pytest.mark.parametrize("name", SOME_OFTEN)
def test_every_layout_is_recognised_and_no_tensor_of_it_is_left_over(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    model = layout.save(tmp_path / "x")
    resolved = resolve_config(model, method=None)
    count, is_prefix = len(layout.parts.heads), layout.parts.prefix is not None
    assert (resolved.method, resolved.num_speculative_tokens) == ("hydra", count)
    assert resolved.traits.n_predict == resolved.traits.max_tokens == count
    assert resolved.traits.rows == ("all" if is_prefix else "last")
    assert resolved.num_lookahead_slots == 0, "no draft is a row of the prefix layer"
    reader = HydraReader(DraftSource(model), HydraOptions(), INFO)
    assert reader.layout() is not None
    assert reader.layout().notes == ()  # type: ignore[union-attr]
    assert set(reader.files.values()) | set(reader.others) == set(layout.tensors)
    assert [n for n in reader.others if n.startswith(("hydra", "layers"))] == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hydra_num_heads": 1}, "certain: hydra_num_heads 1, tensor hydra_mlp.0.0.linear.bias"),
        ({"hydra_head_arch": "mlp"}, "certain: hydra_head_arch 'mlp', tensor"),
        ({}, "likely: tensor hydra_mlp.0.0.linear.bias, tensor hydra_lm_head.0.bias"),
    ],
)
def test_the_evidence_is_what_the_file_says(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in evidence(resolve_config(save(tmp_path / "x", tensors_of(ONE), settings), method=None))


@pytest.mark.parametrize(
    "names",
    [
        ["model.layers.0.mlp.up_proj.weight"],
        ["hydra_mlp.0.0.linear.weight"],
        ["hydra_lm_head.0.weight"],
        ["0.1.weight"],
    ],
)
def test_other_tensors_are_not_claimed(names: list[str], tmp_path: Path) -> None:
    model = save(tmp_path / "hydra", {name: torch.zeros(2, 2) for name in names}, {"model_type": "x"})
    assert detect(DraftSource(model)) is None


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"hydra_num_heads": 2}, "hydra_num_heads 2, and the tensors have 1 heads"),
        ({"hydra_num_layers": 1}, "hydra_num_layers 1, and the tensors have 2 blocks a head"),
        ({"grounded_heads": False}, "grounded_heads False, and by their tensors the heads do read drafts"),
        ({}, ""),
    ],
)
def test_tensors_win_over_the_config_with_one_warning(
    settings: dict[str, Any], note: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heads = random_heads(1, 2)
    model = save(tmp_path / "x", tensors_of(heads), config(heads, **settings))
    with caplog.at_level(logging.WARNING):
        _, resolved, _ = built(model)
    assert resolved.num_speculative_tokens == 1
    assert [note in record.message for record in caplog.records] == ([True] if note else [])


def test_a_tensor_of_no_head_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = save(tmp_path / "x", {**tensors_of(ONE), "adapter.weight": torch.zeros(2, 2)}, config(ONE))
    with caplog.at_level(logging.WARNING):
        built(model)
    assert ["belong to no head: adapter.weight" in record.message for record in caplog.records] == [True]


def test_blocks_that_are_one_module_are_kept_once(tmp_path: Path) -> None:
    for name in ("mlp, three blocks", "mlp, three blocks, equal ones stored once"):
        proposer = built(LAYOUTS[name].save(tmp_path / name))[0]
        for head in proposer._plan._network._heads:
            assert len({id(block) for block in head.blocks}) == 2 < len(head.blocks) == 3


def test_only_the_heads_that_draft_are_read(tmp_path: Path) -> None:
    model = LAYOUTS["mlp"].save(tmp_path / "x")
    assert len(built(model, num_speculative_tokens=2)[0]._plan._network._heads) == 2
    tree = built(model, speculative_token_tree="[(0,), (0, 0), (1,), (0, 0, 0)]")[0]
    assert len(tree._plan._network._heads) == 3


def test_the_targets_embedding_is_read_unless_the_copy_differs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def table(model: str, **keys: Any) -> torch.Tensor:
        found: torch.Tensor = built(model, **keys)[0]._plan._network._table
        return found

    own = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(1))
    same = save(tmp_path / "a", {**tensors_of(ONE), "input_embed_fn.weight": TABLE}, config(ONE))
    other = save(tmp_path / "b", {**tensors_of(ONE), "input_embed_fn.weight": own}, config(ONE))
    with caplog.at_level(logging.WARNING):
        assert table(same).data_ptr() == TABLE.data_ptr()
        assert caplog.records == []
        assert torch.equal(table(other), own)
        assert ["differs from the target's embedding" in record.message for record in caplog.records] == [True]
        assert table(other, share_embeddings=True).data_ptr() == TABLE.data_ptr()


def test_the_offset_counts_layers_back_from_the_last(tmp_path: Path) -> None:
    layers = TARGET.config.num_hidden_layers
    for offset in range(1, layers + 1):
        model = save(tmp_path / str(offset), tensors_of(ONE), config(ONE, hidden_state_offset=offset))
        traits = resolve_config(model).traits
        assert (traits.hidden, traits.aux_layers) == (False, (layers - offset,))


def test_a_tree_says_k_and_a_chain_of_paths_is_a_chain(tmp_path: Path) -> None:
    model = LAYOUTS["mlp"].save(tmp_path / "x")
    tree = resolve_config(model, speculative_token_tree="mc_sim_7b_63")
    assert (tree.num_speculative_tokens, tree.traits.shape, tree.traits.n_predict) == (63, "tree", None)
    chain = resolve_config(model, speculative_token_tree=[[0], [0, 0]])
    assert (chain.num_speculative_tokens, chain.traits.shape) == (2, "chain")
