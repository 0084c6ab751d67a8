"""Lists of the target's layers exist in two numberings: which one is read, what is said of it, what an error names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoints
import pytest

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_plugin_eagle.aux_layers import KEY

WIDTH, VOCAB, LAYERS = 32, 128, 36


def resolve_config(folder: Path, config: dict[str, Any], **keys: Any) -> ResolvedConfig:
    tensors = checkpoints.eagle_3(WIDTH, vocab=VOCAB, draft_vocab=40)
    model = checkpoints.save(folder, tensors, checkpoints.config(WIDTH, **config))
    target = TargetInfo(
        model=None, hf_config={}, vocab_size=VOCAB, hidden_size=WIDTH, num_layers=LAYERS, max_model_len=64
    )
    keys = {"method": "eagle3", "model": model, "num_speculative_tokens": 3, **keys}
    return resolve(keys, target, Registry(Catalog.discover()))


def inside(ids: list[int], key: str = KEY) -> dict[str, Any]:
    return {"eagle_config": {key: ids}}


@pytest.mark.parametrize(
    ("config", "layers", "other"),
    [
        (inside([2, 18, 33]), (3, 19, 34), None),
        (inside([24, 30, 36]), (24, 30, 36), "input"),
        (inside([24, 30, 36], "layer_ids"), (24, 30, 36), "input"),
        ({KEY: [24, 30, 36]}, (24, 30, 36), None),
        ({KEY: [-1, 17, 35]}, (0, 18, 36), "output"),
    ],
)
def test_a_list_that_fits_in_one_numbering_alone_is_read_in_that_and_the_decision_says_so(
    config: dict[str, Any], layers: tuple[int, ...], other: str | None, tmp_path: Path
) -> None:
    resolved = resolve_config(tmp_path / "x", config)
    assert resolved.traits.aux_layers == layers
    said = [decision for decision in resolved.decisions if decision.key == KEY]
    assert [decision.value for decision in said] == ([] if other is None else [list(layers)])
    assert all(f"aux_layer_numbering '{other}'" in decision.reason for decision in said)


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        (inside([24, 30, 37]), {}),  # fits in none
        (inside([24, 30, 36]), {"aux_layer_numbering": "output"}),  # the user's word counts
        ({}, {KEY: [24, 30, 37]}),
    ],
)
def test_a_list_that_leaves_the_range_is_refused_with_the_option_that_says_how_to_count(
    config: dict[str, Any], keys: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"not all within the target's 0 \.\. 36.*aux_layer_numbering"):
        resolve_config(tmp_path / "x", config, **keys)


def test_the_wrong_generation_is_shown_by_tensor_and_shape(tmp_path: Path) -> None:
    columns = rf"midlayer\.self_attn\.q_proj\.weight \[32, {2 * WIDTH}\]"
    evidence = rf"midlayer\.hidden_norm\.weight \[{WIDTH}\]; {columns}"
    with pytest.raises(ConfigError, match=rf'those of eagle3 \({evidence}.*use "method": "eagle3"'):
        resolve_config(tmp_path / "a", {}, method="eagle")
    model = checkpoints.save(tmp_path / "b", checkpoints.eagle_1(WIDTH), checkpoints.config(WIDTH))
    evidence = rf"fc\.weight \[{WIDTH}, {2 * WIDTH}\].*no hidden_norm"
    with pytest.raises(ConfigError, match=rf'those of eagle \({evidence}.*use "method": "eagle"'):
        resolve_config(tmp_path / "c", {}, method="eagle3", model=model)
