"""Recurrent layers of a target, from its config.json alone: their number and size, and what cannot draft for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specdec_core.config.recurrent import RecurrentStates, states_of
from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError
from specdec_core.sources import TargetInfo

QWEN3_NEXT: dict[str, Any] = {  # Qwen3-Next-80B-A3B
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
LFM2 = {"num_hidden_layers": 4, "hidden_size": 64, "conv_L_cache": 3, "full_attn_idxs": [1]}
STRANGER = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}


@pytest.mark.parametrize(
    ("config", "states"),
    [
        (QWEN3_NEXT, RecurrentStates(36, 36 * 4 * (32 * 128 * 128 + 3 * 8192), 36 * 4 * (8192 + 32 * 258))),
        ({"text_config": QWEN3_NEXT}, RecurrentStates(36, 79036416, 2368512)),
        (LFM2, RecurrentStates(3, 3 * 4 * 2 * 64, 3 * 4 * 64)),
        (STRANGER, RecurrentStates(1)),
        ({"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]}, None),
        ({"num_hidden_layers": 2, "hidden_size": 8}, None),
    ],
)
def test_layers_and_bytes_follow_from_the_configuration(config: dict[str, Any], states: RecurrentStates | None) -> None:
    assert states_of(config) == states


def test_a_method_that_drafts_trees_is_refused_for_a_target_with_recurrent_layers(
    site: Any, method: Any, target: TargetInfo
) -> None:
    site.proposer("alpha", method(traits="shape='tree'"))
    site.verifiers("coupled", "standard")
    config, hybrid = {"method": "alpha", "num_speculative_tokens": 3}, replace(target, hf_config=QWEN3_NEXT)
    assert resolve(config, target, site.registry()).traits.shape == "tree"
    with pytest.raises(ConfigError, match=r"alpha is set up to draft trees, .*set alpha up for chains"):
        resolve(config, hybrid, site.registry())


def test_a_line_for_people_names_both_sizes_or_says_that_they_are_not_known() -> None:
    assert str(states_of(QWEN3_NEXT)).startswith("36 layers, 79,036,416 bytes a request, and 2,368,512 for each draft")
    assert "known after loading" in str(states_of(STRANGER))
