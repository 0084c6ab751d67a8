"""A checkpoint is recognised by config.json or tensors; its configuration in other forms becomes the plain one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dflash_layouts import EVERY, LAYOUTS, SPARKS, TARGET, Layout

from specdec_core.config.detect import detect, swap_target
from specdec_core.config.resolve import resolve
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import DraftSource
from specdec_plugin_dflash import reading, speculators
from specdec_plugin_dflash.detection import method_of_name
from specdec_testing.fakes import target_info

# One layout in seven for every change, all of them in `make test`.
SOME_OFTEN = [name if i % 7 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(EVERY)]


def claim(layout: Layout, folder: Path) -> tuple[str, str]:
    record, evidence = detect(DraftSource(layout.save(folder)), Registry(Catalog.discover(), strict=True))
    return record.name, evidence


def default_k(layout: Layout, folder: Path) -> int:
    keys = {"method": layout.method, "model": layout.save(folder)}
    resolved = resolve(keys, target_info(TARGET), Registry(Catalog.discover(), strict=True))
    assert resolved.num_speculative_tokens is not None
    return resolved.num_speculative_tokens


def bare(layout: Layout) -> Layout:
    """Return the layout with a config.json that names no architecture and no method."""
    hidden = ("architectures", "dflash_config", "markov_rank")
    settings = {key: value for key, value in layout.settings.items() if key not in hidden}
    return replace(layout, settings=settings)


@pytest.mark.parametrize("name", SOME_OFTEN)
def test_every_layout_is_recognised_among_all_methods(name: str, tmp_path: Path) -> None:
    layout = EVERY[name]
    if name == "dflash: plain architecture":
        layout = replace(layout, settings={**layout.settings, "architectures": ["DFlashQwen3ForCausalLM"]})
    method, evidence = claim(layout, tmp_path / "checkpoint-500")
    assert method == layout.method
    assert evidence.startswith("certain")


@pytest.mark.parametrize("name", ["dflash: standard", "dflash: encoder's names", "dspark: from the anchor"])
def test_tensors_alone_say_the_method(name: str, tmp_path: Path) -> None:
    method, evidence = claim(bare(EVERY[name]), tmp_path / "x")
    assert method == EVERY[name].method
    assert "tensor " in evidence


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("DFlashDraftModel", "dflash"),
        ("DFlash2DraftModel", "dflash"),
        ("Qwen3DFlash", "dflash"),
        ("LiLiCorrDraftModel", "dflash"),
        ("MuseGlimmerAssistantModel", "dflash"),
        ("Qwen3DSparkModel", "dspark"),
        ("DSparkDraftModel", "dspark"),
        ("Qwen3OmniDSparkModel", "dspark"),
        ("LlamaForCausalLM", None),
        ("Eagle3DFlashlike", None),
    ],
)
def test_names_of_architectures(name: str, method: str | None) -> None:
    assert method_of_name(name) == method


@pytest.mark.parametrize(
    ("layers", "draft_layers", "ids"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (28, 5, (1, 7, 13, 19, 25)),
        (48, 5, (1, 12, 23, 34, 45)),
        (32, 5, (1, 8, 15, 22, 29)),
        (64, 5, (1, 16, 31, 46, 61)),
        (40, 6, (1, 8, 15, 23, 30, 37)),
        (36, 1, (18,)),
    ],
)
def test_default_layers_are_those_of_the_worked_numbers(layers: int, draft_layers: int, ids: tuple[int, ...]) -> None:
    assert reading.default_layer_ids(layers, draft_layers) == ids
    assert reading.aux_layers({}, layers, draft_layers)[0] == tuple(i + 1 for i in ids)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [4, 2], "dflash_config": {"target_layer_ids": [9]}}, (2, 4)),
        ({"dflash_config": {"target_layer_ids": [3, 1, 3]}, "target_layer_ids": [7]}, (2, 4)),
        ({"dspark_target_layer_ids": [0, 5], "target_layer_ids": [7]}, (1, 6)),
        ({"target_layer_ids": [7]}, (8,)),
        ({"target_layer_ids": [4, 8, 12]}, (4, 8, 12)),  # fits as the state after a layer alone
        ({"eagle_config": {"layer_ids": [2, 6]}}, (2, 6)),
        ({"eagle_aux_hidden_state_layer_ids": None, "target_layer_ids": [], "num_target_layers": 12}, (2, 6, 10)),
    ],
)
def test_states_are_looked_for_in_order_and_counted_after_layers(
    config: dict[str, Any], found: tuple[int, ...]
) -> None:
    assert reading.aux_layers(config, 12, 3)[0] == found


@pytest.mark.parametrize(
    ("name", "k"),
    [
        ("dflash: standard", 7),
        ("dflash: block size in the section", 7),
        ("dspark: from the anchor", 7),
        ("dspark: filling in", 6),
        ("dspark: block size by its own key", 5),
        ("dflash: speculators", 5),
        ("dspark: speculators", 5),
    ],
)
def test_k_is_what_a_block_has_places_for_or_what_the_file_proposes(name: str, k: int, tmp_path: Path) -> None:
    assert default_k(EVERY[name], tmp_path / "x") == k


def test_traits_count_the_rows_of_a_block(tmp_path: Path) -> None:
    rows = {}
    for name in ("dflash: standard", "dspark: from the anchor", "dspark: filling in"):
        traits = EVERY[name].build(tmp_path / name, 5)[1].traits
        assert (traits.rows, traits.when_off, traits.shape, traits.max_position) == ("all", "gap", "chain", None)
        rows[name] = (traits.extra_slots, traits.lookahead_tokens(5))
    assert list(rows.values()) == [(5, 6), (4, 5), (5, 6)]


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_a_speculators_file_given_as_the_model_stands_for_its_target(kind: str, tmp_path: Path) -> None:
    folder = EVERY[f"{kind}: speculators"].save(tmp_path / "x")
    swap = swap_target(DraftSource(folder), Registry(Catalog.discover(), strict=True))
    assert swap is not None
    assert swap.model == "some/target"
    assert swap.speculative_config == {"method": kind, "model": folder}


def test_a_speculators_file_of_the_second_generation_that_lacks_its_keys_is_refused_by_them(tmp_path: Path) -> None:
    layout = LAYOUTS["speculators"]
    layout = replace(layout, settings={**layout.settings, "speculators_model_type": "dflash2", "conv_kernel_size": 2})
    assert claim(layout, tmp_path / "x")[0] == "dflash"
    with pytest.raises(Exception, match=r"dflash_config.selector_rank None, and DFlash2 heads need"):
        layout.build(tmp_path / "y")


def test_an_xpress_file_is_claimed_and_refused_by_name_and_reason(tmp_path: Path) -> None:
    layout = LAYOUTS["speculators"]
    settings = {**layout.settings, "speculators_model_type": "xpress", "architectures": ["XPressSpeculator"]}
    layout = replace(layout, settings={**settings, "xpress_rank": 256})
    assert claim(layout, tmp_path / "x")[0] == "dflash"
    assert swap_target(DraftSource(layout.save(tmp_path / "x")), Registry(Catalog.discover(), strict=True)) is not None
    with pytest.raises(Exception, match=r"an XPress head \(speculators_model_type 'xpress'\), and the refiner behind"):
        layout.build(tmp_path / "y")


def test_conversion_of_the_speculators_format_gives_the_fields_of_the_table() -> None:
    flash = {**LAYOUTS["speculators"].settings, "draft_vocab_size": 40, "target_hidden_size": 32}
    plain = speculators.converted(flash)
    assert plain["architectures"] == ["DFlashDraftModel"]
    assert plain["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    assert (plain["draft_vocab_size"], plain["target_hidden_size"], plain["hidden_size"]) == (40, 32, 32)
    assert plain["dflash_config"] == {
        "mask_token_id": 5,
        "target_layer_ids": [0, 2, 4],
        "sample_from_anchor": False,
        "causal": False,
    }
    assert speculators.converted({**flash, "sliding_window_non_causal": False})["dflash_config"]["causal"] is True
    spark = dict(SPARKS["speculators"].settings)
    plain = speculators.converted(spark)
    assert plain["architectures"] == ["Qwen3DSparkModel"]
    assert (plain["sample_from_anchor"], plain["dspark_bonus_anchor"]) == (False, True)
    assert plain["target_layer_ids"] == [0, 2, 4]
    assert {key: plain[key] for key in ("markov_rank", "block_size", "mask_token_id")} == {
        "markov_rank": 6,
        "block_size": 8,
        "mask_token_id": 7,
    }
    omni = {**spark, "architectures": ["Qwen3OmniDSparkModel"], "sample_from_anchor": True}
    plain = speculators.converted(omni)
    assert plain["architectures"] == ["Qwen3OmniDSparkModel"]
    assert (plain["sample_from_anchor"], plain["dspark_bonus_anchor"]) == (True, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transformer_layer_config": None}, "transformer_layer_config must be the configuration"),
        ({"aux_hidden_state_layer_ids": None}, "needs aux_hidden_state_layer_ids"),
        ({"mask_token_id": None}, "needs a mask_token_id, got None"),
    ],
)
def test_a_speculators_file_that_lacks_a_key_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    layout = LAYOUTS["speculators"]
    with pytest.raises(Exception, match=message):
        replace(layout, settings={**layout.settings, **changes}).build(tmp_path / "x")


def test_bare_architectures_get_the_names_that_heads_have() -> None:
    def name(method: str, architecture: str, model_type: str = "qwen3") -> Any:
        patch = speculators.renamed(method, {"architectures": [architecture], "model_type": model_type})
        return None if patch is None else patch["architectures"]

    assert name("dflash", "Qwen3ForCausalLM") == ["DFlashQwen3ForCausalLM"]
    assert name("dflash", "DFlashDraftModel") is None
    assert name("dflash", "Qwen3DFlash") is None
    assert name("dflash", "LiLiCorrDraftModel") is None
    assert name("dspark", "DSparkDraftModel") == ["Qwen3DSparkModel"]
    assert name("dspark", "K3DSparkModel") is None


def test_a_configuration_that_is_no_checkpoint_of_these_is_not_claimed(tmp_path: Path) -> None:
    folder = tmp_path / "dflash"
    folder.mkdir()
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 8}
    (folder / "config.json").write_text(json.dumps(config))
    from specdec_plugin_dflash.detection import detect as own

    assert own(DraftSource(str(folder))) is None
