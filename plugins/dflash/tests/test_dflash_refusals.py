"""Checkpoints that would be run silently wrong are refused, by the tensor or key that is missing, wrong or too many."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import dflash_checkpoints as checkpoints
import pytest
import torch
from dflash_layouts import EVERY, LAYOUTS, MASK_VECTOR, SPARKS, VOCAB, Layout, also
from torch import Tensor

from specdec_core.errors import ConfigError, SpecdecError


def refused(layout: Layout, folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(SpecdecError, match=message):
        layout.build(folder / "head", **options)


def with_settings(layout: Layout, **settings: Any) -> Layout:
    changed = {key: value for key, value in {**layout.settings, **settings}.items() if value is not None}
    return replace(layout, settings=changed)


def within(layout: Layout, **keys: Any) -> Layout:
    section = {**layout.settings.get("dflash_config", {}), **keys}
    return with_settings(layout, dflash_config={key: value for key, value in section.items() if value is not None})


def with_tensors(layout: Layout, **tensors: Tensor | None) -> Layout:
    kept = {name: tensor for name, tensor in {**layout.tensors, **tensors}.items() if tensor is not None}
    return replace(layout, tensors=kept)


STANDARD, SPARK = LAYOUTS["standard"], SPARKS["from the anchor"]
OMNI = with_settings(SPARK, architectures=["Qwen3OmniDSparkModel"], target_layer_ids=[0, 2, 4])
ONE = torch.ones(1)


def test_a_head_with_mask_hidden_is_p_eagle(tmp_path: Path) -> None:
    refused(with_tensors(STANDARD, mask_hidden=ONE), tmp_path, "mask_hidden, which makes it a P-EAGLE head.*eagle3")


def test_a_dflash_head_that_samples_from_the_anchor_is_refused(tmp_path: Path) -> None:
    refused(within(STANDARD, sample_from_anchor=True), tmp_path, "sample_from_anchor true")


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (replace(SPARK, method="dflash"), 'method dflash was asked for, and it has a Markov head.*"dspark"'),
        (replace(STANDARD, method="dspark"), 'method dspark was asked for, and it has no Markov head.*"dflash"'),
        (with_settings(SPARK, architectures=["Gemma4DSparkModel"]), "layers of 'gemma4dsparkmodel qwen3'"),
        (with_settings(SPARK, model_type="deepseek_v4"), "layers of .*deepseekv4.*several residual streams"),
        (with_settings(SPARK, architectures=["K3DSparkModel"]), "layers of 'k3dsparkmodel.*latent attention"),
        (with_settings(OMNI, sample_from_anchor=False), "first place is the row of the newest id, and its config.json"),
        (with_settings(OMNI, target_layer_ids=[4, 0, 2]), r"whose target_layer_ids ascend, and .* \[4, 0, 2\]"),
        (
            with_tensors(STANDARD, **{"hidden_norm.weight": None}),
            r"tensors are not those of a head.*hidden_norm.weight",
        ),
        (with_tensors(STANDARD, **{"layers.1.self_attn.k_norm.weight": None}), "missing: layers.1.self_attn.k_norm"),
        (with_tensors(STANDARD, **{"fc.weight": None}), "missing: fc.weight"),
        (
            with_tensors(STANDARD, **{"layers.1.layer_scalar": ONE}),
            "knows what these tensors are for: layers.1.layer_s",
        ),
        (
            with_tensors(STANDARD, **{"markov_head.gate.weight": ONE}),
            r"a gated Markov head \(tensor markov_head.gate.weight\)",
        ),
        (with_settings(STANDARD, num_hidden_layers=3), "2 layers, and its config.json has num_hidden_layers 3"),
        (with_settings(STANDARD, head_dim=16), r"q_proj.weight is \[32, 32\], and its config.json makes it \[64, 32\]"),
        (with_settings(STANDARD, num_attention_heads=None), "no num_attention_heads"),
        (with_settings(STANDARD, target_hidden_size=48), "for a target of width 48, and this one has 32"),
        (within(STANDARD, target_layer_ids=[1, 2]), r"fc.weight is \[32, 96\], and the states after \[2, 3\]"),
        (within(STANDARD, target_layer_ids=[1, 2, 9]), r"after \[2, 3, 10\] layers .*, and the target has 8"),
        (within(STANDARD, use_aux_hidden_state=False), "use_aux_hidden_state false, and it has an fc.weight"),
        (within(STANDARD, mask_token_id=None), "no mask id, under none of mask_token_id"),
        (within(STANDARD, mask_token_id=VOCAB), f"mask id {VOCAB} is outside of the {VOCAB} rows"),
        (within(STANDARD, use_swa=True), "swa_window_size or sliding_window, got None"),
        (with_settings(STANDARD, layer_types=["sliding_attention"]), "layer_types must name"),
        (with_settings(STANDARD, layer_types=["chunked_attention"] * 2), "layer_types must name"),
        (within(STANDARD, attention_sink_bias=True), "missing: layers.0.self_attn.sinks"),
        (within(LAYOUTS["sinks"], attention_sink_bias=False), "attention sinks, and .* attention_sink_bias false"),
        (within(STANDARD, input_embedding_scale=2.0), "input_embedding_scale 2.0"),
        (with_settings(SPARK, logit_scale=0.5), "logit_scale 0.5"),
        (with_settings(STANDARD, rope_parameters={"full_attention": {"rope_theta": 1e4}}), "differ between kinds"),
        (with_settings(STANDARD, rope_scaling={"type": "spiral"}), "type 'spiral'.*known are default, linear"),
        (with_settings(STANDARD, rope_parameters={"rope_type": "llama3"}), "'llama3' without factor"),
        (with_tensors(STANDARD, t2d=torch.ones(VOCAB + 2000)), "t2d is for 2128 ids and the target has 128"),
        (with_tensors(STANDARD, **{"lm_head.weight": torch.ones(2128, 32)}), "lm_head.weight is for 2128 ids"),
        (with_tensors(STANDARD, **{"embed_tokens.weight": torch.ones(2128, 32)}), "embed_tokens.weight is for 2128"),
        (with_tensors(SPARK, **{"markov_head.markov_w1.weight": torch.ones(2128, 6)}), "w1.weight is for 2128 ids"),
        (with_tensors(LAYOUTS["small vocabulary"], d2t=None), "map d2t between them is missing"),
        (with_tensors(LAYOUTS["small vocabulary"], d2t=torch.zeros(3)), r"map d2t is \[3\], and the head has 40"),
        (with_settings(LAYOUTS["small vocabulary"], draft_vocab_size=41), "40 rows, and .* draft_vocab_size 41"),
        (with_settings(STANDARD, draft_vocab_size=40), "no lm_head.weight.*cannot stand in for one of 40 rows"),
        (with_tensors(LAYOUTS["narrower"], **{"embed_tokens.weight": None}), "brings no embed_tokens.weight"),
        (with_tensors(LAYOUTS["narrower"], **{"lm_head.weight": None}), "no lm_head.weight"),
        (with_settings(SPARK, markov_head_type="gated"), r"a gated Markov head \(markov_head_type 'gated'\)"),
        (with_settings(SPARK, markov_head_type="xpress"), "an XPress head \\(markov_head_type 'xpress'\\)"),
        (with_tensors(STANDARD, **{"refiner_head.fuse.weight": ONE}), r"an XPress head \(refiner_head.fuse.weight\)"),
        (with_tensors(SPARK, **{"xpress_head.weight": ONE}), r"an XPress head \(xpress_head.weight\)"),
        (with_settings(SPARK, markov_head_type="rnn"), "markov_head_type is 'rnn'"),
        (with_settings(SPARK, enable_confidence_head=True), "confidence_head.proj.weight is missing"),
        (with_settings(SPARKS["confidence"], confidence_head_with_markov=True), r"is \[1, 32\], .* makes it \[1, 38\]"),
        (with_tensors(SPARK, **{"markov_head.markov_w1.weight": torch.ones(9, 6)}), "row for each of 128 ids"),
        (with_tensors(SPARK, **{"markov_head.markov_w2.weight": torch.ones(9, 6)}), r"make it \[128, 6\]"),
        (also(STANDARD, mask=torch.ones(31)), r"mask_embedding.pt must hold one vector of width 32, got \[31\]"),
        (
            also(STANDARD, mask={"mask_token_id": 6, "embedding": MASK_VECTOR}),
            "vector of id 6, and the mask id .* is 5",
        ),
    ],
)
def test_what_is_wrong_is_named(layout: Layout, message: str, tmp_path: Path) -> None:
    refused(layout, tmp_path, message)


SMALL = LAYOUTS["small vocabulary"]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"d2t": torch.full((40,), 100)}, "d2t names ids 100 .. 139, and they must be within 0 .. 127"),
        ({"d2t": SMALL.tensors["d2t"] - torch.arange(40)}, "more than once"),
        ({"t2d": torch.ones(VOCAB, dtype=torch.bool)}, "d2t and t2d of the checkpoint name different ids"),
    ],
)
def test_maps_that_contradict_themselves_are_refused(tensors: dict[str, Tensor], message: str, tmp_path: Path) -> None:
    refused(with_tensors(SMALL, **tensors), tmp_path, message)


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight", "t2d"])
def test_a_table_of_another_vocabulary_is_refused(name: str, tmp_path: Path) -> None:
    rows = VOCAB + 1025
    table = torch.ones(rows, dtype=torch.bool) if name == "t2d" else torch.zeros(rows, 32)
    message = f"{name} is for {rows} ids and the target has {VOCAB}, which is more than padding explains"
    refused(with_tensors(STANDARD, **{name: table}), tmp_path, message)


def test_a_mask_token_of_the_heads_own_embedding_needs_that_embedding(tmp_path: Path) -> None:
    own = checkpoints.Weights(1).matrix(VOCAB + 16, 32)
    layout = within(with_tensors(STANDARD, **{"embed_tokens.weight": own}), mask_token_id=VOCAB + 3)
    layout.build(tmp_path / "a")[0].close()
    refused(layout, tmp_path, f"mask id {VOCAB + 3} is outside of the target's {VOCAB}", share_embeddings=True)


def test_all_problems_come_in_one_error(tmp_path: Path) -> None:
    layout = within(with_settings(STANDARD, head_dim=16), target_layer_ids=[30, 40], mask_token_id=None)
    with pytest.raises(ConfigError) as error:
        layout.build(tmp_path / "head")
    for part in ("q_proj", "target has 8", "no mask id"):
        assert part in str(error.value)


def test_no_checkpoint_is_refused(tmp_path: Path) -> None:
    layout = replace(STANDARD, options={"model": None})
    refused(layout, tmp_path, "dflash needs a draft checkpoint, and none was given")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dspark: from the anchor", {"dspark_draft_topk": VOCAB + 1}, "dspark_draft_topk: 129 candidates"),
        ("dspark: small vocabulary", {"dspark_draft_topk": 41}, "the head knows 40 ids"),
        ("dspark: from the anchor", {"dspark_draft_topk": 0}, "dspark_draft_topk"),
        ("dspark: from the anchor", {"confidence_threshold": 0.5}, "no confidence head"),
        ("dspark: confidence", {"confidence_threshold": 1.5}, "confidence_threshold"),
        ("dflash: standard", {"parallel_drafting": False}, "parallel_drafting"),
        ("dflash: standard", {"share_embeddings": False}, "brings no embed_tokens.weight"),
        ("dflash: narrower", {"share_embeddings": True}, "widths differ: 16 and 32"),
    ],
)
def test_options_that_cannot_be_met_are_refused(
    name: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    refused(EVERY[name], tmp_path, message, **options)


def test_more_drafts_than_the_block_has_places_for_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="specdec_plugin_dflash"):
        STANDARD.build(tmp_path / "a", 7)
        SPARK.build(tmp_path / "b", 7)
        assert caplog.messages == []
        STANDARD.build(tmp_path / "c", 8)
        SPARK.build(tmp_path / "d", 8)
    assert ["so drafts past 7 will be poor" in message for message in caplog.messages] == [True, True]


def test_an_embedding_that_differs_is_used_with_a_warning_unless_the_user_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layout = LAYOUTS["own tables"]
    with caplog.at_level(logging.WARNING, logger="specdec_plugin_dflash"):
        layout.build(tmp_path / "a")
        assert "differs from the target's embedding by up to" in caplog.text
        caplog.clear()
        layout.build(tmp_path / "b", share_embeddings=False)
        layout.build(tmp_path / "c", share_embeddings=True)
        assert caplog.text == ""


def test_weights_in_a_torch_file_beside_a_mask_embedding_are_read(tmp_path: Path) -> None:
    layout = LAYOUTS["mask's own vector"]
    folder = layout.save(tmp_path / "head", torch_file=True)
    assert not list(Path(folder).glob("*.safetensors"))
    proposer, _, _ = replace(layout, options={"model": folder}).build(tmp_path / "other")
    proposer.close()


def test_an_omni_head_drafts_its_whole_block_or_is_refused(tmp_path: Path) -> None:
    refused(OMNI, tmp_path, "4 given, and a Qwen3OmniDSparkModel drafts the 7 places of its block", k=4)
    proposer, resolved, _ = OMNI.build(tmp_path / "b", None)
    assert resolved.num_speculative_tokens == 7
    proposer.close()
