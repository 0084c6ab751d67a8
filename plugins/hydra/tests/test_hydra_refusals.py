"""Checkpoints and options that would be run silently wrong are refused, by what was given and what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra_checkpoints import TARGET, VOCAB, WIDTH, built, config, random_heads, resolve_config, save, tensors_of
from hydra_layouts import LAYOUTS, TARGET_CONFIG

from specdec_core.errors import ConfigError
from specdec_testing.fakes import FakeTarget
from specdec_testing.targets import tiny_target

MLP = LAYOUTS["mlp"]
PREFIX = LAYOUTS["prefix-mlp"]


def without(layout: Any, *lost: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in layout.tensors.items() if name not in lost}


def test_all_missing_tensors_are_in_one_error(tmp_path: Path) -> None:
    left = without(
        PREFIX,
        "hydra_mlp.1.1.res_connection.bias",
        "hydra_lm_head.2.1.bias",
        "prefix_embeding_layer.norm.weight",
        "prefix_embeding_layer.layers.0.self_attn.o_proj.weight",
    )
    model = save(tmp_path / "x", left, PREFIX.settings)
    said = (
        r"these tensors are missing: hydra_mlp\.1\.0\.res_connection\.bias, hydra_lm_head\.2\.bias, "
        r"layers\.0\.self_attn\.o_proj\.weight, norm\.weight \(the file is incomplete"
    )
    for run in (resolve_config, built):
        with pytest.raises(ConfigError, match=said):
            run(model)


def test_blocks_that_the_config_promises_must_be_there(tmp_path: Path) -> None:
    heads = random_heads(2)
    model = save(tmp_path / "x", tensors_of(heads), config(heads, hydra_num_layers=2))
    with pytest.raises(ConfigError, match=r"missing: hydra_mlp\.0\.1\.linear\.weight, .*hydra_mlp\.1\.1\.linear\.bias"):
        resolve_config(model)


@pytest.mark.parametrize("arch", ["cross-attn", "eagle-attn"])
def test_heads_with_attention_are_refused_by_the_name_of_their_architecture(arch: str, tmp_path: Path) -> None:
    model = save(tmp_path / "x", {"cross_attn.q_proj.weight": torch.zeros(2, 2)}, {"hydra_head_arch": arch})
    with pytest.raises(ConfigError, match=f"hydra_head_arch '{arch}', and heads of mlp and prefix-mlp are built here"):
        resolve_config(model, method=None)


def test_tensors_of_heads_that_nothing_reads_are_refused_with_all_their_names(tmp_path: Path) -> None:
    more = {
        "prefix_embeding_layer.layers.1.mlp.up_proj.weight": torch.zeros(2, 2),
        "hydra_mlp.0.2.linear.weight": torch.zeros(2, 2),
    }
    model = save(tmp_path / "x", {**PREFIX.tensors, **more}, PREFIX.settings)
    said = r"what these tensors .* are for: hydra_mlp\.0\.2\.linear\.weight, prefix_embeding_layer\.layers\.1\.mlp"
    with pytest.raises(ConfigError, match=said):
        resolve_config(model)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        (
            "hydra_mlp.1.0.linear.weight",
            (WIDTH, 2 * WIDTH),
            rf"is \[{WIDTH}, {2 * WIDTH}\], and .* \[{WIDTH}, {3 * WIDTH}\]",
        ),
        ("hydra_mlp.0.0.res_connection.bias", (3,), rf"is \[3\], and .* have \[{WIDTH}\]"),
        ("hydra_lm_head.0.weight", (VOCAB, WIDTH + 1), rf"is \[{VOCAB}, {WIDTH + 1}\]"),
        ("hydra_lm_head.0.bias", (VOCAB - 1,), "different numbers of rows"),
        ("input_embed_fn.weight", (VOCAB, WIDTH + 1), rf"input_embed_fn\.weight is \[{VOCAB}, {WIDTH + 1}\]"),
    ],
)
def test_tensors_of_another_shape_are_refused_with_both(
    name: str, shape: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    model = save(tmp_path / "x", {**MLP.tensors, name: torch.zeros(shape)}, MLP.settings)
    with pytest.raises(ConfigError, match=said):
        resolve_config(model)


def test_the_prefix_layer_has_the_targets_sizes(tmp_path: Path) -> None:
    name = "layers.0.self_attn.k_proj.weight"
    tensors = {**PREFIX.tensors, f"prefix_embeding_layer.{name}": torch.zeros(5, WIDTH)}
    with pytest.raises(ConfigError, match=r"k_proj\.weight is \[5, "):
        resolve_config(save(tmp_path / "a", tensors, PREFIX.settings))
    other = FakeTarget(tiny_target("gpt2")).info
    heads = random_heads(1, prefix={**TARGET_CONFIG, "hidden_size": other.hidden_size}, width=other.hidden_size)
    model = save(tmp_path / "b", tensors_of(heads, dropout=True), config(heads))
    with pytest.raises(ConfigError, match=r"prefix layer is one of Llama .*has no num_attention_heads"):
        resolve_config(model, other)


def test_heads_for_another_vocabulary_are_refused_and_padding_is_not(tmp_path: Path) -> None:
    far = random_heads(1, rows=VOCAB + 1025)
    with pytest.raises(ConfigError, match=f"for {VOCAB + 1025} ids and the target has {VOCAB}"):
        resolve_config(save(tmp_path / "a", tensors_of(far), config(far)))
    near = random_heads(1, rows=VOCAB + 1024)
    resolve_config(save(tmp_path / "b", tensors_of(near), config(near)))


@pytest.mark.parametrize("offset", [-1, TARGET.config.num_hidden_layers + 1, "1", True])
def test_an_offset_beyond_the_targets_layers_is_refused(offset: Any, tmp_path: Path) -> None:
    model = save(tmp_path / "x", MLP.tensors, {**(MLP.settings or {}), "hidden_state_offset": offset})
    with pytest.raises(ConfigError, match=r"hidden_state_offset .*, expected 0 \.\. "):
        resolve_config(model)


def test_weights_that_are_no_floats_are_refused(tmp_path: Path) -> None:
    whole = {name: tensor.to(torch.int8) for name, tensor in MLP.tensors.items()}
    with pytest.raises(ConfigError, match=r"is int8; heads are read in floating point"):
        resolve_config(save(tmp_path / "x", whole, MLP.settings))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_speculative_tokens": 5}, r"num_speculative_tokens: 5 given, .* at most 4 \(its n_predict\)"),
        ({"speculative_token_tree": str([(0,) * n for n in range(1, 6)])}, "5 ranks, and the checkpoint has 4 heads"),
        ({"speculative_token_tree": [(rank,) for rank in range(VOCAB + 1)]}, f"{VOCAB + 1} children"),
        ({"speculative_token_tree": "vicuna"}, "no tree has that name"),
        ({"share_embeddings": False}, "the checkpoint brings no embed_tokens.weight"),
        (
            {
                "speculative_token_tree": "[(0,), (1,)]",
                "draft_sample_method": "probabilistic",
                "rejection_sample_method": "coupled",
            },
            "one draw a place",
        ),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_by_name(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_config(MLP.save(tmp_path / "x"), **keys)


def test_a_checkpoint_without_heads_is_named_with_its_type(tmp_path: Path) -> None:
    model = save(tmp_path / "x", {"model.norm.weight": torch.zeros(2)}, {"model_type": "llama"})
    with pytest.raises(ConfigError, match=r"no Hydra heads.*model_type 'llama'.*name the method that"):
        resolve_config(model, method="hydra")
    with pytest.raises(ConfigError, match="none was given"):
        resolve_config(None, method="hydra", num_speculative_tokens=2)
