"""What a checkpoint is read as: its method, its heads, its keys, each by what the file itself says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from medusa_checkpoints import (
    INFO,
    OLD_CONFIG,
    VOCAB,
    WIDTH,
    built,
    new_config,
    new_tensors,
    old_tensors,
    random_heads,
    resolve_config,
    save,
)
from medusa_layouts import LAYOUTS

from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource, TargetInfo
from specdec_plugin_medusa.detection import default_model_of, detect
from specdec_plugin_medusa.settings import num_heads, num_layers, patch_of
from specdec_testing.watching import evidence

# One layout in seven for every change, all of them in `make test`.
SOME_OFTEN = [name if i % 7 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(LAYOUTS)]

ONE = random_heads(1)


@pytest.mark.parametrize("name", SOME_OFTEN)
def test_every_layout_is_recognised_without_a_word_in_the_path(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    resolved = resolve_config(layout.save(tmp_path / "x"), method=None)
    assert (resolved.method, resolved.num_speculative_tokens) == ("medusa", len(layout.parts.heads))
    assert resolved.traits.n_predict == resolved.traits.max_tokens == len(layout.parts.heads)
    assert (resolved.traits.rows, resolved.traits.hidden, resolved.traits.weights) == ("last", True, "own")
    assert resolved.num_lookahead_slots == 0, "heads keep no cache"


@pytest.mark.slow
def test_old_files_are_recognised_by_their_tensors_alone_and_a_file_may_be_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "x", old_tensors(ONE), None, "medusa_lm_head.pt")
    for model in (folder, f"{folder}/medusa_lm_head.pt"):
        assert "likely: tensor 0.0.linear.weight, tensor 0.1.weight" in evidence(resolve_config(model, method=None))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_type": "medusa"}, "certain: model_type 'medusa'"),
        ({"architectures": ["MedusaModel"]}, "certain: architectures ['MedusaModel']"),
        ({"architectures": "MedusaModel"}, "certain: architectures ['MedusaModel']"),
        ({"medusa_num_layers": 1}, "certain: medusa_num_layers 1, tensor 0.0.linear.weight"),
        ({}, "likely: tensor 0.0.linear.weight"),
    ],
)
def test_the_evidence_is_what_the_file_says(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in evidence(resolve_config(save(tmp_path / "x", old_tensors(ONE), settings), method=None))


@pytest.mark.parametrize(
    "names",
    [
        ["model.layers.0.mlp.up_proj.weight", "lm_head.weight"],
        ["0.weight", "0.bias", "2.weight"],
        ["0.0.weight", "0.2.weight"],
        ["blocks.0.layers.0.weight"],
        ["blocks.0.attn.qkv.weight", "lm_heads.0.weight"],
    ],
)
def test_other_tensors_are_not_claimed(names: list[str], tmp_path: Path) -> None:
    """A sequential model, a vision transformer and the like have some of these names."""
    model = save(tmp_path / "medusa", {name: torch.zeros(2, 2) for name in names}, {"model_type": "x"})
    assert detect(DraftSource(model)) is None


def test_the_targets_own_checkpoint_is_the_default_only_if_the_heads_are_in_it(tmp_path: Path) -> None:
    layout = LAYOUTS["within the target"]
    whole = layout.save(tmp_path / "whole")
    empty = save(tmp_path / "empty", {"model.norm.weight": torch.zeros(2)}, layout.settings)

    def info(model: str | None, settings: Any) -> TargetInfo:
        fields = {**INFO.__dict__, "model": model, "hf_config": settings}
        return TargetInfo(**fields)

    found = default_model_of(info(whole, layout.settings))
    assert found is not None
    assert found.value == whole
    assert default_model_of(info(whole, {"model_type": "llama"})) is None, "config.json has nothing: no file is read"
    assert default_model_of(info(empty, layout.settings)) is None
    assert default_model_of(info(None, layout.settings)) is None
    resolved = resolve_config(None, info(whole, layout.settings), method="medusa")
    assert evidence(resolved, "model") == "the heads are in the target's own checkpoint"
    with pytest.raises(ConfigError, match="medusa needs a draft checkpoint, and none was given"):
        resolve_config(None, info(empty, layout.settings), method="medusa")


@pytest.mark.parametrize(
    ("settings", "heads", "layers"),
    [
        ({}, None, None),
        ({"num_heads": 5, "num_hidden_layers": 2}, ("num_heads", 5), ("num_hidden_layers", 2)),
        ({"medusa_num_heads": 2, "medusa_num_layers": 0}, ("medusa_num_heads", 2), ("medusa_num_layers", 0)),
        ({"num_heads": 3, "num_draft_heads": 4}, ("num_draft_heads", 4), None),
        ({"medusa_num_heads": 2, "num_heads": 3}, ("medusa_num_heads", 2), None),
        ({"num_lookahead_tokens": 3}, ("num_lookahead_tokens", 3), None),
        ({"num_heads": 5, "num_lookahead_tokens": 3}, ("num_heads", 5), None),
        ({"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32}, None, None),
        (
            {"num_attention_heads": 32, "num_hidden_layers": 32, "medusa_num_heads": 5, "medusa_num_layers": 1},
            ("medusa_num_heads", 5),
            ("medusa_num_layers", 1),
        ),
        ({"num_heads": "5"}, None, None),
    ],
)
def test_keys_are_read_as_vllm_reads_them_those_of_the_language_model_apart(
    settings: dict[str, Any], heads: tuple[str, int] | None, layers: tuple[str, int] | None
) -> None:
    assert num_heads(settings) == heads
    assert num_layers(settings) == layers


def test_the_config_becomes_one_of_vllms_for_this_target() -> None:
    assert patch_of(OLD_CONFIG, INFO) == {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "num_heads": 4,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
    }
    padded = new_config(vocab_size=VOCAB + 1, truncated_vocab_size=VOCAB + 1)
    assert patch_of(padded, INFO) == {"vocab_size": VOCAB, "truncated_vocab_size": VOCAB}
    assert patch_of(new_config(truncated_vocab_size=40), INFO) is None


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({**OLD_CONFIG, "medusa_num_heads": 2}, "medusa_num_heads 2, and the tensors have 5 heads"),
        ({**OLD_CONFIG, "medusa_num_heads": 5, "medusa_num_layers": 3}, "3, and the tensors have 1 layers a head"),
        ({**OLD_CONFIG, "medusa_num_heads": 5}, ""),
        ({"base_model_name_or_path": "x"}, ""),
    ],
)
def test_tensors_win_over_the_config_with_one_warning(
    settings: dict[str, Any], note: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = save(tmp_path / "x", old_tensors(random_heads(5)), settings)
    with caplog.at_level(logging.WARNING):
        built(model)
    assert [note in record.message for record in caplog.records] == ([True] if note else [])


def test_a_tensor_of_no_head_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = save(tmp_path / "x", {**new_tensors(ONE), "embed.weight": torch.zeros(2, 2)}, new_config(num_heads=1))
    with caplog.at_level(logging.WARNING):
        built(model)
    assert [record.message for record in caplog.records if "belong to no head: embed.weight" in record.message]


def test_layers_that_heads_share_and_outputs_that_serve_all_are_kept_once(tmp_path: Path) -> None:
    once = built(LAYOUTS["old, one layer three times and stored once"].save(tmp_path / "a"))[0]
    for head in once._plan._heads:
        assert len({id(layer) for layer in head._layers}) == 1 < len(head._layers) == 3
    shared = built(LAYOUTS["new, one output for all"].save(tmp_path / "b"))[0]
    assert len({id(head._output) for head in shared._plan._heads}) == 1


def test_only_the_heads_that_draft_are_read(tmp_path: Path) -> None:
    proposer = built(LAYOUTS["new"].save(tmp_path / "x"), num_speculative_tokens=2)[0]
    assert len(proposer._plan._heads) == 2
    tree = built(LAYOUTS["new"].save(tmp_path / "x"), speculative_token_tree="[(0,), (0, 0), (1,), (0, 0, 0)]")[0]
    assert len(tree._plan._heads) == 3


def test_a_tree_says_k_and_a_chain_of_paths_is_a_chain(tmp_path: Path) -> None:
    model = LAYOUTS["new"].save(tmp_path / "x")
    tree = resolve_config(model, speculative_token_tree="zephyr_stage2")
    assert (tree.num_speculative_tokens, tree.traits.shape, tree.traits.n_predict) == (63, "tree", None)
    chain = resolve_config(model, speculative_token_tree=[[0], [0, 0]])
    assert (chain.num_speculative_tokens, chain.traits.shape) == (2, "chain")


def test_weights_take_the_targets_dtype(tmp_path: Path) -> None:
    heads = random_heads(2, bias=True)
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in old_tensors(heads).items()}
    proposer, _, target = built(save(tmp_path / "x", tensors, OLD_CONFIG))
    state = torch.randn(3, WIDTH).to(target.dtype)
    assert proposer._plan._heads[1](state).dtype == target.dtype
