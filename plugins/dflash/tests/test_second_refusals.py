"""DFlash2, LiLiCorr and Domino files that would be run silently wrong are refused, by the key or the tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dflash_checkpoints as checkpoints
import pytest
import torch
from dflash_layouts import LAYOUTS, SPARKS, TARGET, VOCAB, WIDTH, Layout
from second_layouts import SECONDS
from test_dflash_refusals import refused, with_settings, with_tensors, within

from specdec_core.config.detect import detect
from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import DraftSource
from specdec_testing.fakes import target_info

SELECTED, LATTICE, DOMINO = SECONDS["DFlash2"], SECONDS["LiLiCorr, narrower, convolutions"], SECONDS["Domino"]
PLAIN, SPARK = LAYOUTS["standard"], SPARKS["from the anchor"]
PRED, TAPS = "candidate_selector.predecessor_codebook", "layers.1.mlp_conv.base_kernel"


@pytest.mark.parametrize("name", SECONDS)
def test_every_layout_is_recognised_with_its_k(name: str, tmp_path: Path) -> None:
    folder = SECONDS[name].save(tmp_path / "x")
    registry = Registry(Catalog.discover(), strict=True)
    assert detect(DraftSource(folder), registry)[0].name == "dflash"
    resolved = resolve({"model": folder}, target_info(TARGET), registry)
    k = 5 if "speculators" in name else 7
    assert resolved.num_speculative_tokens == k
    assert resolved.traits.max_tokens == (7 if name.startswith("LiLiCor") else None)
    assert resolved.traits.lookahead_tokens(k) == k + 1


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (within(PLAIN, conv_kernel_size=2), r"dflash_config.selector_rank None, and DFlash2 heads need a whole number"),
        (within(PLAIN, projector_type="vino"), "projector_type 'vino', and known is 'domino'"),
        (with_tensors(PLAIN, **{"selector.down.weight": torch.ones(1)}), "what these tensors are for: selector.down"),
        (within(SELECTED, conv_group_size=5), f"conv_group_size 5 does not divide its width {WIDTH}"),
        (within(SELECTED, conv_group_size=4), r"kernel_projection.weight is \[24, 32\], and .* makes it \[48, 32\]"),
        (within(SELECTED, selector_top_k=0), "selector_top_k 0, and DFlash2 heads need a whole number"),
        (within(SELECTED, selector_top_k=VOCAB + 1), f"selector_top_k is {VOCAB + 1}, and the target has {VOCAB} ids"),
        (within(SELECTED, final_logit_softcapping=-1.0), "final_logit_softcapping is -1.0, and it is a number above 0"),
        (within(SELECTED, output_multiplier="x"), "output_multiplier 'x', and DFlash2 heads need a number"),
        (
            with_tensors(SELECTED, **{PRED: torch.ones(9, 5)}),
            r"predecessor_codebook is \[9, 5\], and has to have a row",
        ),
        (with_tensors(SELECTED, **{PRED: torch.ones(2128, 5)}), "predecessor_codebook is for 2128 ids"),
        (with_tensors(SELECTED, **{PRED: torch.ones(VOCAB, 6)}), r"makes it \[any, 5\]"),
        (
            with_tensors(SELECTED, **{TAPS: torch.ones(2, 3, WIDTH).int()}),
            "mlp_conv.base_kernel is int32; heads are read",
        ),
        (with_tensors(SELECTED, **checkpoints.vocabulary(WIDTH, VOCAB, 40, seed=1)), "choose among all ids"),
        (within(LATTICE, lilicorr_candidate_topk=3), "lilicorr_candidate_topk is 3, and it is a power of two up to 16"),
        (within(LATTICE, lilicorr_num_heads=3), "num_heads 3 do not divide the lattice's width 16"),
        (within(LATTICE, lilicorr_vector_eps=None), "lilicorr_vector_eps None, and LiLiCorr heads need a number"),
        (within(LATTICE, block_size=None), "block_size None, and a lattice needs at least 2 rows"),
        (within(LATTICE, block_size=9), r"slot_embedding is \[1, 1, 7, 1, 16\], and its config.json makes it"),
        (within(LATTICE, lilicorr_enabled=False), "lilicorr_enabled false, and it has the tensors"),
        (within(LATTICE, input_embedding_scale=2.0), "input_embedding_scale, which is applied in DFlash2 heads alone"),
        (within(LATTICE, final_logit_softcapping=5.0), "final_logit_softcapping, which is applied"),
        (within(PLAIN, final_logit_softcapping=5.0), "final_logit_softcapping, which is applied"),
        (within(PLAIN, output_multiplier=0.5), "output_multiplier, which is applied"),
        (within(SPARK, final_logit_softcapping=5.0), "final_logit_softcapping, which is applied"),
        (within(DOMINO, gru_hidden_dim=None), "gru_hidden_dim None, and Domino heads need a whole number"),
        (within(DOMINO, pure_draft_prefix_len=2), "pure_draft_prefix_len is 2, and one free place"),
        (within(DOMINO, emb_dim=9), r"embed_proj.0.weight is \[10, 44\], and its config.json makes it \[9, 44\]"),
        (replace(SELECTED, method="dspark"), "DFlash2 head, and the method is dspark"),
        (with_tensors(SPARK, **{"prefix_gru.weight_ih_l0": torch.ones(1)}), "Domino head, and the method is dspark"),
    ],
)
def test_what_is_wrong_is_named(layout: Layout, message: str, tmp_path: Path) -> None:
    refused(layout, tmp_path, message)


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        (SELECTED, [PRED, TAPS, "layers.0.attention_conv.kernel_projection.weight"]),
        (LATTICE, ["lilicorr.token_proj.bias", "lilicorr.layers.1.attn.in_proj_bias", "lilicorr.slot_embedding"]),
        (DOMINO, ["prefix_gru.weight_hh_l0", "embed_proj.2.weight"]),
    ],
)
def test_all_missing_tensors_are_named_in_one_error(layout: Layout, names: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        with_tensors(layout, **dict.fromkeys(names)).build(tmp_path / "x")
    assert all(name in str(caught.value) for name in names)


def test_a_target_that_caps_its_logits_needs_the_heads_own_table_or_the_same_cap(tmp_path: Path) -> None:
    def over(layout: Layout, folder: Path, cap: float) -> Any:
        info = target_info(TARGET)
        info = replace(info, hf_config={**info.hf_config, "final_logit_softcapping": cap})
        keys = {"method": "dflash", "model": layout.save(folder), "num_speculative_tokens": 4}
        return resolve(keys, info, Registry(Catalog.discover(), strict=True))

    with pytest.raises(ConfigError, match=r"no lm_head.weight and reads .*final_logit_softcapping"):
        over(DOMINO, tmp_path / "a", 30.0)
    with pytest.raises(ConfigError, match="reads the target's logits as they are"):
        over(within(SELECTED, final_logit_softcapping=20.0), tmp_path / "b", 30.0)
    with pytest.raises(ConfigError) as caught:
        over(DOMINO, tmp_path / "e", 30.0)
    assert "what these tensors are for" not in str(caught.value)
    over(within(SELECTED, final_logit_softcapping=30.0), tmp_path / "c", 30.0)
    over(LATTICE, tmp_path / "d", 30.0)


def test_more_drafts_than_a_lattice_has_places_for_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="8 given, and dflash drafts at most 7"):
        LATTICE.build(tmp_path / "x", 8)


def test_a_head_of_the_first_generation_still_refuses_factors(tmp_path: Path) -> None:
    refused(within(PLAIN, input_embedding_scale=2.0), tmp_path, "input_embedding_scale 2.0")
    refused(with_settings(SELECTED, logit_scale=0.5), tmp_path, "logit_scale 0.5")
