"""Checkpoints and options that would be run silently wrong are refused, by what was given and what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from medusa_checkpoints import (
    OLD_CONFIG,
    VOCAB,
    WIDTH,
    cut,
    new_config,
    new_tensors,
    old_tensors,
    random_heads,
    resolve_config,
    save,
)
from medusa_layouts import LAYOUTS
from torch import Tensor

from specdec_core.errors import ConfigError

OLD, NEW = old_tensors(random_heads(2, bias=True)), new_tensors(random_heads(2, bias=True))
CUT = new_tensors(cut(random_heads(2), 40))


@pytest.mark.parametrize(
    ("tensors", "lost"),
    [(OLD, "0.0.linear.weight"), (OLD, "0.1.weight"), (NEW, "lm_heads.0.weight"), (NEW, "blocks.0.layers.0.weight")],
)
def test_a_missing_tensor_is_named(tensors: dict[str, Tensor], lost: str, tmp_path: Path) -> None:
    left = {name: tensor for name, tensor in tensors.items() if name != lost}
    ours = {"0.0.linear.weight": "blocks.0.layers.0.weight", "0.1.weight": "lm_heads.0.weight"}.get(lost, lost)
    with pytest.raises(ConfigError, match=f"missing: {ours}"):
        resolve_config(save(tmp_path / "x", left, new_config(num_heads=2)))


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"num_hidden_layers": 2}, "blocks.0.layers.1.weight, blocks.1.layers.1.weight"),
        ({"medusa_fc_bias": True}, "blocks.0.layers.0.bias, blocks.1.layers.0.bias"),
    ],
)
def test_what_the_config_promises_must_be_there(settings: dict[str, Any], missing: str, tmp_path: Path) -> None:
    model = save(tmp_path / "x", new_tensors(random_heads(2)), new_config(num_heads=2, **settings))
    with pytest.raises(ConfigError, match=f"missing: {missing}"):
        resolve_config(model)


def test_outputs_of_one_head_only_need_the_key_that_says_so(tmp_path: Path) -> None:
    tensors = new_tensors(random_heads(3), outputs=1)
    with pytest.raises(ConfigError, match=r"missing: lm_heads.1.weight, lm_heads.2.weight .*original_lm_head true"):
        resolve_config(save(tmp_path / "x", tensors, new_config(num_heads=3)))


def test_heads_for_another_width_are_refused_with_both(tmp_path: Path) -> None:
    wide = save(tmp_path / "a", old_tensors(random_heads(2, width=WIDTH + 8)), OLD_CONFIG)
    with pytest.raises(
        ConfigError, match=rf"is \[{WIDTH + 8}, {WIDTH + 8}\], and heads .* width {WIDTH} have \[{WIDTH}"
    ):
        resolve_config(wide)
    odd = {**OLD, "1.1.weight": torch.zeros(VOCAB, WIDTH + 1)}
    with pytest.raises(ConfigError, match=rf"1\.1\.weight is \[{VOCAB}, {WIDTH + 1}\]"):
        resolve_config(save(tmp_path / "b", odd, OLD_CONFIG))
    with pytest.raises(ConfigError, match=r"0\.0\.linear\.bias is \[3\]"):
        resolve_config(save(tmp_path / "c", {**OLD, "0.0.linear.bias": torch.zeros(3)}, OLD_CONFIG))


def test_heads_for_another_vocabulary_are_refused_with_both_and_padding_is_not(tmp_path: Path) -> None:
    far = save(tmp_path / "a", old_tensors(random_heads(1, rows=VOCAB + 1025)), OLD_CONFIG)
    with pytest.raises(
        ConfigError, match=f"for {VOCAB + 1025} ids and the target has {VOCAB}, which is more than padding"
    ):
        resolve_config(far)
    resolve_config(save(tmp_path / "b", old_tensors(random_heads(1, rows=VOCAB + 1024)), OLD_CONFIG))
    with pytest.raises(ConfigError, match=r"different numbers of rows: \[127, 128\]"):
        resolve_config(save(tmp_path / "c", {**OLD, "0.1.weight": torch.zeros(VOCAB - 1, WIDTH)}, OLD_CONFIG))


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({"token_map": None}, {"truncated_vocab_size": 40}, "40 rows, the target 128 ids, and token_map"),
        ({"token_map": torch.arange(41)}, {}, r"token_map is \[41\], and its heads have 40 rows"),
        ({}, {"truncated_vocab_size": 39}, "token_map has 40 ids, and its config.json has truncated_vocab_size 39"),
        ({"token_map": torch.arange(40) + 100}, {}, r"names ids 100 \.\. 139, and they must be within 0 \.\. 127"),
        ({"token_map": torch.arange(40) - 1}, {}, r"names ids -1 \.\. 38"),
        ({"token_map": torch.arange(40) // 2}, {}, "names 20 ids more than once"),
        ({"token_map": torch.arange(40).float()}, {}, "token_map is float32, and whole numbers were expected"),
    ],
)
def test_a_map_that_contradicts_heads_config_or_target_is_refused(
    change: dict[str, Any], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tensors = {name: tensor for name, tensor in {**CUT, **change}.items() if tensor is not None}
    with pytest.raises(ConfigError, match=message):
        resolve_config(save(tmp_path / "x", tensors, new_config(num_heads=2, **settings)))


@pytest.mark.parametrize("scale", [0, -1.0, "2", True, None])
def test_a_scale_that_is_no_positive_number_is_refused(scale: Any, tmp_path: Path) -> None:
    model = save(tmp_path / "x", NEW, new_config(num_heads=2, logit_scale=scale))
    with pytest.raises(ConfigError, match="logit_scale"):
        resolve_config(model)


def test_quantized_heads_are_refused(tmp_path: Path) -> None:
    scales = save(tmp_path / "a", {**NEW, "blocks.0.layers.0.weight_scale": torch.ones(1)}, new_config(num_heads=2))
    with pytest.raises(ConfigError, match=r"quantized \(blocks.0.layers.0.weight_scale\)"):
        resolve_config(scales)
    whole = {name: tensor.to(torch.int8) for name, tensor in NEW.items()}
    with pytest.raises(ConfigError, match=r"is int8; heads are read in floating point"):
        resolve_config(save(tmp_path / "b", whole, new_config(num_heads=2)))


def test_two_tensors_of_one_name_and_heads_of_different_depth_are_refused(tmp_path: Path) -> None:
    twice = {**NEW, "medusa_heads.lm_heads.0.weight": NEW["lm_heads.0.weight"], "0.1.weight": NEW["lm_heads.0.weight"]}
    inside = {f"medusa_heads.{name}": tensor for name, tensor in twice.items() if "." in name}
    inside = {name.replace("medusa_heads.medusa_heads.", "medusa_heads."): t for name, t in inside.items()}
    with pytest.raises(ConfigError, match=r"are both lm_heads\.0\.weight"):
        resolve_config(save(tmp_path / "a", inside, new_config(num_heads=2)))
    uneven = {**OLD, "1.2.weight": OLD["1.1.weight"]}
    del uneven["1.1.weight"]
    with pytest.raises(ConfigError, match=r"different numbers of layers: 0\.1\.weight says 1, 1\.2\.weight says 2"):
        resolve_config(save(tmp_path / "b", uneven, OLD_CONFIG), method="medusa")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_speculative_tokens": 5}, r"num_speculative_tokens: 5 given, .* at most 4 \(its n_predict\)"),
        (
            {"speculative_token_tree": "[(0,), (1,)]", "num_speculative_tokens": 3},
            "3 given, and the tree of medusa has 2 nodes",
        ),
        ({"speculative_token_tree": str([(0,) * n for n in range(1, 6)])}, "5 ranks, and the checkpoint has 4 heads"),
        ({"speculative_token_tree": [(rank,) for rank in range(VOCAB + 1)]}, f"{VOCAB + 1} children"),
        ({"speculative_token_tree": "vicuna"}, "no tree has that name"),
        (
            {
                "speculative_token_tree": "[(0,), (1,)]",
                "draft_sample_method": "probabilistic",
                "rejection_sample_method": "coupled",
            },
            "one draw a place",
        ),
        ({"speculative_token_tree": "[(0,), (1,)]", "rejection_sample_method": "block"}, "verifies chains"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_by_name(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = LAYOUTS["new"].save(tmp_path / "x")
    with pytest.raises(ConfigError, match=message):
        resolve_config(model, **keys)


def test_a_checkpoint_is_needed() -> None:
    with pytest.raises(ConfigError, match="none was given"):
        resolve_config(None, method="medusa", num_speculative_tokens=2)
