"""Checkpoints that would be run silently wrong are refused, by the tensor or the key that is missing or too many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import torch
from host import Host
from layouts import LAYOUTS, TARGET, VOCAB, WIDTH, Layout, changed, three

from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_testing.fakes import FakeTarget

INFO = FakeTarget(TARGET).info
REGISTRY = Registry(Catalog.discover())


def built(layout: Layout, folder: Path, **options: Any) -> Any:
    return layout.build(folder, **options)


def with_settings(layout: Layout, **settings: Any) -> Layout:
    return replace(layout, settings={**layout.settings, **settings})


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("eagle-three-layers", "layers.1.input_layernorm.weight"),
        ("eagle3-three-layers", "layers.2.input_layernorm.weight"),
        ("eagle-llama4", "norm.weight"),
        ("eagle-llama4", "layers.0.input_layernorm.weight"),
        ("eagle-mistral", "norm.weight"),
        ("eagle-minicpm", "input_norm1.weight"),
        ("eagle-minicpm", "layers.0.input_layernorm.weight"),
        ("eagle3-norm-before-fc", "input_norm.weight"),
        ("eagle3-four-states", "fc_norm.3.weight"),
    ],
)
def test_a_norm_that_the_family_or_the_config_asks_for_must_be_there(name: str, tensor: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=tensor):
        built(changed(LAYOUTS[name], **{tensor: None}), tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("eagle3-norm-before-fc", {"norm_before_fc": False}, r"input_norm.weight, and .* does not set norm_before_fc"),
        ("eagle3-fc-norm", {"fc_norm": None}, r"fc_norm\.0\.weight, and .* does not set fc_norm"),
        ("eagle-llama4-l2-norm", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused(
    name: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        built(with_settings(LAYOUTS[name], **settings), tmp_path / "x")


def test_two_norms_before_fc_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        built(three(0, norm_before_fc=True, fc_norm=True), tmp_path / "x")


def test_a_head_by_the_methods_own_trainer_for_another_family_has_no_norms(tmp_path: Path) -> None:
    """It is built as Llama's heads are: with neither of the two norms, nothing is missing."""
    plain = with_settings(LAYOUTS["eagle-fc-bias"], architectures=["MistralForCausalLM"])
    proposer, _, _ = built(plain, tmp_path / "x")
    assert proposer._head._final_norm is None


def test_a_map_of_zeros_of_a_smaller_head_means_the_first_ids_and_its_distributions_say_so(tmp_path: Path) -> None:
    layout = three(0)
    layout = changed(layout, d2t=torch.zeros(40, dtype=torch.int64), t2d=torch.arange(VOCAB) < 40)
    keys = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
    proposer, resolved, target = built(layout, tmp_path / "x", **keys)
    host = Host(proposer, resolved.traits, target)
    for life in host.waiting:
        life.view.sampling_params.temperature = 1.0
    drafts = [call.draft for call in (host.step() for _ in range(6)) if call is not None]
    tokens = np.concatenate([draft.tokens for draft in drafts])
    assert len(tokens) > 20
    assert tokens.max() < 40
    assert all(draft.q is None or draft.q.shape[1] == 40 for draft in drafts)


def test_a_map_of_zeros_of_a_padded_head_is_the_identity(tmp_path: Path) -> None:
    layout = changed(LAYOUTS["eagle3-padded-head"], d2t=torch.zeros(VOCAB + 8, dtype=torch.int64))
    proposer, _, _ = built(layout, tmp_path / "x")
    assert proposer._head.d2t is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_scaling": {"type": "spiral"}}, "rope_scaling of type 'spiral'.*default, linear"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_parameters of type 'spiral'"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "'llama3' without low_freq_factor, high_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ between kinds of layers"),
        ({"rope_scaling": "mrope"}, "expected an object"),
    ],
)
@pytest.mark.parametrize("name", ["eagle3", "eagle-fc-bias"])
def test_positions_of_an_unknown_type_are_refused_before_weights_are_read(
    name: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    layout = with_settings(LAYOUTS[name], **settings)
    model = checkpoints.save(tmp_path / "x", layout.tensors, layout.settings)
    with pytest.raises(ConfigError, match=message):
        resolve({"method": layout.method, "model": model, "num_speculative_tokens": 3}, INFO, REGISTRY)


@pytest.mark.parametrize(
    ("name", "rows"),
    [("lm_head.weight", VOCAB + 2000), ("embed_tokens.weight", VOCAB + 2000), ("t2d", VOCAB + 2000)],
)
def test_a_table_of_another_vocabulary_is_refused_and_padding_is_not(name: str, rows: int, tmp_path: Path) -> None:
    for size, refused in ((rows, True), (VOCAB + 8, False)):
        table = torch.zeros(size, dtype=torch.bool) if name == "t2d" else torch.zeros(size, WIDTH)
        whole = three(0, draft_vocab=VOCAB)
        model = checkpoints.save(tmp_path / f"{size}", {**whole.tensors, name: table}, whole.settings)
        keys = {"method": "eagle3", "model": model, "num_speculative_tokens": 3}
        if not refused:
            resolve(keys, INFO, REGISTRY)
            continue
        with pytest.raises(ConfigError, match=f"{name} is for {size} ids and the target has {VOCAB}"):
            resolve(keys, INFO, REGISTRY)


def test_a_head_without_tables_warns_of_another_vocabulary_in_its_config(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for size, warned in ((VOCAB + 2000, True), (VOCAB + 8, False)):
        caplog.clear()
        built(with_settings(LAYOUTS["eagle-fc-bias"], vocab_size=size), tmp_path / f"{size}")
        assert ("another tokenizer" in caplog.text) is warned
