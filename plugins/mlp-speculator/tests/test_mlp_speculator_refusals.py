"""Checkpoints and options that would be run silently wrong are refused, by what was given and what was expected."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from mlp_speculator_checkpoints import VOCAB, WIDTH, config, random_weights, resolve_config, save, tensors_of
from mlp_speculator_layouts import LAYOUTS, TIED, TIED_CONFIG

from specdec_core.errors import ConfigError

PLAIN = tensors_of(random_weights())


@pytest.mark.parametrize("kind", ["emb.1.weight", "proj.2.weight", "head.0.weight", "ln.1.bias", "ln.0.weight"])
def test_a_missing_tensor_is_named(kind: str, tmp_path: Path) -> None:
    left = {name: tensor for name, tensor in PLAIN.items() if name != f"speculator.{kind}"}
    with pytest.raises(ConfigError, match=f"missing: {kind}.*download it again"):
        resolve_config(save(tmp_path / "x", left, config()))


def test_heads_stored_once_need_the_key_that_ties_them(tmp_path: Path) -> None:
    tensors = tensors_of(TIED, once=True)
    with pytest.raises(ConfigError, match=r"missing: emb\.1\.weight.*must have tie_weights true"):
        resolve_config(save(tmp_path / "a", tensors, {**TIED_CONFIG, "tie_weights": False}))
    del tensors["speculator.proj.1.weight"]
    with pytest.raises(ConfigError, match=r"missing: proj\.1\.weight \("):
        resolve_config(save(tmp_path / "b", tensors, TIED_CONFIG))


def test_the_number_of_heads_must_be_known_and_right_as_constants_depend_on_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has n_predict 2, and its tensors are those of 3 heads"):
        resolve_config(save(tmp_path / "a", PLAIN, config(n_predict=2)))
    with pytest.raises(
        ConfigError,
        match=r"^speculative_config cannot be used: model: .*tied, and its config\.json has no n_predict",
    ):
        resolve_config(save(tmp_path / "b", tensors_of(TIED, once=True), {**TIED_CONFIG, "n_predict": None}))


@pytest.mark.parametrize(
    ("key", "value"), [("n_predict", 0), ("n_predict", "3"), ("inner_dim", -1), ("tie_weights", "no"), ("emb_dim", 1.5)]
)
def test_a_key_of_the_wrong_kind_is_named(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"config.json has {key} "):
        resolve_config(save(tmp_path / "x", PLAIN, {**config(), key: value}))


def test_a_speculator_for_another_target_is_refused_with_both_figures(tmp_path: Path) -> None:
    wide = tensors_of(random_weights(width=WIDTH + 8))
    with pytest.raises(ConfigError, match=rf"is \[24, {WIDTH + 8}\], and the target has states of width {WIDTH}"):
        resolve_config(save(tmp_path / "a", wide, config()))
    far = tensors_of(random_weights(rows=VOCAB + 1025))
    with pytest.raises(ConfigError, match=f"for {VOCAB + 1025} ids and the target has {VOCAB}, which is more than"):
        resolve_config(save(tmp_path / "b", far, config()))
    resolve_config(save(tmp_path / "c", tensors_of(random_weights(rows=VOCAB + 1024)), config()))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("emb.1.weight", (VOCAB, 25)),
        ("head.2.weight", (VOCAB - 1, 24)),
        ("proj.1.weight", (24, WIDTH)),
        ("ln.0.bias", (1,)),
    ],
)
def test_a_shape_that_does_not_fit_the_others_is_named(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    tensors = {**PLAIN, f"speculator.{name}": torch.zeros(shape)}
    with pytest.raises(ConfigError, match=re.escape(f"speculator.{name} is {list(shape)}")):
        resolve_config(save(tmp_path / "x", tensors, config()))


def test_an_inner_width_that_the_tensors_contradict_is_refused_with_both(tmp_path: Path) -> None:
    for given in (25, 0):
        with pytest.raises(ConfigError, match=rf"has inner_dim {given}, and .* is \[24, {WIDTH}\]"):
            resolve_config(save(tmp_path / str(given), PLAIN, config(inner_dim=given)))


def test_tensors_that_are_not_floating_point_or_belong_to_another_network_are_refused(tmp_path: Path) -> None:
    scaled = {**PLAIN, "speculator.head.0.weight_scale": torch.ones(1)}
    with pytest.raises(ConfigError, match=r"belong to no speculator .*: speculator\.head\.0\.weight_scale"):
        resolve_config(save(tmp_path / "a", scaled, config()))
    whole = {name: tensor.to(torch.int8) for name, tensor in PLAIN.items()}
    with pytest.raises(ConfigError, match=r"is int8; speculators are read in floating point"):
        resolve_config(save(tmp_path / "b", whole, config()))
    twice = {**PLAIN, "emb.0.weight": PLAIN["speculator.emb.0.weight"]}
    with pytest.raises(ConfigError, match=r"are both emb\.0\.weight"):
        resolve_config(save(tmp_path / "c", twice, config()))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"n_candidates": 13}, r"13 sequences cannot be kept of the 12 that \[3, 2, 2\] makes"),
        ({"n_candidates": 0}, "n_candidates"),
        ({"top_k_tokens_per_head": [1, 1, 1, 1]}, "is for 4 heads, and the checkpoint has 3"),
        ({"top_k_tokens_per_head": []}, "top_k_tokens_per_head"),
        ({"top_k_tokens_per_head": [VOCAB + 1]}, f"{VOCAB + 1} ids would follow, and a head knows {VOCAB}"),
        ({"n_candidates": 2, "draft_sample_method": "probabilistic"}, "the trees of mlp_speculator are fixed here"),
        ({"n_candidates": 2, "rejection_sample_method": "block"}, "verifies chains"),
        ({"n_candidates": 2, "num_speculative_tokens": 8}, "8 given, and mlp_speculator drafts at most 6 here"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_by_name(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_config(LAYOUTS["plain"].save(tmp_path / "x"), **keys)


def test_trees_of_a_checkpoint_that_says_nothing_of_them_need_both_keys(tmp_path: Path) -> None:
    model = save(tmp_path / "x", PLAIN, config(top_k_tokens_per_head=None, n_candidates=None))
    with pytest.raises(ConfigError, match=r"top_k_tokens_per_head: trees need it, and config.json of"):
        resolve_config(model, n_candidates=2)
    with pytest.raises(ConfigError, match=r"n_candidates: trees need it"):
        resolve_config(model, top_k_tokens_per_head=[2, 2])
    assert resolve_config(model, top_k_tokens_per_head=[2, 2], n_candidates=2).num_speculative_tokens == 4


def test_a_checkpoint_is_needed() -> None:
    with pytest.raises(ConfigError, match="none was given"):
        resolve_config(None, method="mlp_speculator", num_speculative_tokens=2)


def test_a_file_of_speculators_type_mlp_is_known_by_name_and_refused_with_the_reason(tmp_path: Path) -> None:
    settings = {
        "architectures": ["MLPSpeculator"],
        "speculators_model_type": "mlp",
        "speculators_config": {"algorithm": "mlp", "verifier": {"name_or_path": "some/target"}},
        **{"hidden_size": WIDTH, "intermediate_size": 24, "vocab_size": VOCAB, "num_layers": 3, "tie_weights": True},
    }
    with pytest.raises(ConfigError, match=r"speculators' type mlp, of which .*model_type \"mlp_speculator\""):
        resolve_config(save(tmp_path / "x", {"emb_layers.0.weight": torch.zeros(VOCAB, 24)}, settings), method=None)
