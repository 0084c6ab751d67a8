"""The table of families: each becomes what vLLM 0.32 makes of it, on a copy, and without vLLM's slips."""

from __future__ import annotations

import copy
import json
from types import MappingProxyType
from typing import Any

import pytest
from mtp_rows import PROMOTED, ROWS, Row, of_class, of_type

from specdec_core.errors import ConfigError
from specdec_plugin_mtp import speculators
from specdec_plugin_mtp.families import FAMILIES
from specdec_plugin_mtp.overriding import converted, family_of, patch_of
from specdec_plugin_mtp.plugin import mtp

every_row = pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])


@every_row
def test_each_family_becomes_what_is_documented_and_nothing_else_changes(row: Row) -> None:
    number, config, result = copy.deepcopy(row)
    patch = mtp.specdec_override_hf_config(hf_config=config)
    if result is None:
        assert patch is None
        return
    text = {"text_config": None} if number in PROMOTED else {}
    assert patch is not None
    assert {**config, **patch} == {**config, **text, **result}
    assert all(key not in config or config[key] != value for key, value in patch.items())


@every_row
def test_a_config_is_never_changed_and_the_patch_shares_nothing_with_it(row: Row) -> None:
    _, config, _ = copy.deepcopy(row)
    before = copy.deepcopy(config)
    patch = dict(patch_of(MappingProxyType(config)) or {})
    assert config == before
    for value in patch.values():
        scribble(value)
    assert config == before


def scribble(value: Any) -> None:
    """Change everything in a value that can be changed."""
    for each in list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list) else []:
        scribble(each)
    if isinstance(value, dict | list):
        value.clear()


# Once converted, DeepSeek V4.1 cannot be told from V3: it has the type, and an architecture of its own.
@pytest.mark.parametrize("row", [row for row in ROWS if row[0] != "5"], ids=lambda row: row[0])
def test_converting_twice_changes_nothing_more(row: Row) -> None:
    _, config, _ = copy.deepcopy(row)
    once = converted(config)
    assert converted(once) == once


def test_all_rows_of_the_document_are_tried() -> None:
    assert {int(row[0].split()[0]) for row in ROWS} == set(range(1, 40))
    reached = {id(family_of(config)) for _, config, _ in ROWS}
    reached |= {id(family) for family in speculators.FAMILIES}  # no rows of vLLM's
    assert [family.title for family in FAMILIES if id(family) not in reached] == []


@pytest.mark.parametrize("kind", ["moe", "ultra", "pangu_ultra", "", None])
def test_part_of_a_model_type_is_no_match(kind: str | None) -> None:
    assert patch_of({"model_type": kind, "architectures": ["LlamaForCausalLM"], "num_nextn_predict_layers": 1}) is None


@pytest.mark.parametrize("names", [{}, {"architectures": None}, {"architectures": []}])
def test_a_config_without_architectures_is_matched_by_its_type(names: dict[str, Any]) -> None:
    config = {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1, **names}
    patch = patch_of(config)
    assert patch == {"model_type": "deepseek_mtp", "n_predict": 1, "architectures": ["DeepSeekMTPModel"]}
    assert patch_of({"hidden_size": 8, **names}) is None


@pytest.mark.parametrize("name", ["DeepseekV32MTPModel", "DeepSeekV4MTPModel"])
def test_a_converted_config_that_shares_its_type_keeps_its_architecture(name: str) -> None:
    config = {"model_type": "deepseek_mtp", "architectures": [name], "num_nextn_predict_layers": 1}
    assert patch_of(config) == {"n_predict": 1}


def test_families_known_by_their_class_alone_do_not_match_again_once_converted() -> None:
    for kind, name in [
        ("mimo_mtp", "MiMoMTPModel"),
        ("glm4_moe_mtp", "Glm4MoeMTPModel"),
        ("hy_v3_mtp", "HYV3MTPModel"),
    ]:
        assert patch_of({"model_type": kind, "architectures": [name], "num_nextn_predict_layers": 1}) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (of_type("dots3_note", mtp_layer_types=["a", "b"]), "has 2 mtp_layer_types for 1 MTP modules"),
        (of_type("inkling_model"), r"Inkling must have mtp_config\.num_nextn_predict_layers, at least 1; got None"),
        (of_type("inkling_model", mtp_config={"num_nextn_predict_layers": 0}), "at least 1; got 0"),
        (of_type("glm5_next"), "GLM-5 next must have .*num_nextn_predict_layers"),
        (of_type("qwen4_exp_text", num_nextn_predict_layers=1), "hc_count, got None"),
        (of_type("interns2_mobius", text_config={"mtp_num_hidden_layers": 1}), r"no text_config\.mtp_num_experts"),
    ],
)
def test_a_config_that_lacks_what_its_family_must_say_is_refused_by_the_key(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        patch_of(config)


def test_what_stands_for_no_architecture_is_not_matched_by_a_class() -> None:
    assert patch_of(of_class("Glm4MoeForCausalLMX", num_nextn_predict_layers=1)) is None
    assert patch_of({**of_class("x"), "architectures": "Glm4MoeForCausalLM"}) is None


def test_no_patch_is_anything_but_json() -> None:
    for _, config, _ in ROWS:
        patch = patch_of(config)
        assert patch is None or json.loads(json.dumps(dict(patch))) == patch
