"""What is detected, how it is resolved, and what is refused in one error with the names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kangaroo_adapters import EXIT, LAYOUTS, PUBLISHED, TARGET, WIDTH, adapter, built, config, resolve_config

from specdec_core.errors import ConfigError, TargetError
from specdec_core.sources import TargetHandle, TargetInfo
from specdec_engine import LLM
from specdec_testing.fakes import FakeTarget
from specdec_testing.layouts import save
from specdec_testing.targets import tiny_target
from specdec_testing.watching import evidence


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_adapter_is_recognised_by_its_tensors(name: str, tmp_path: Path) -> None:
    resolved = resolve_config(LAYOUTS[name].save(tmp_path / "x"), method=None, exit_layer=EXIT)
    assert resolved.method == "kangaroo" and resolved.num_speculative_tokens == 6
    assert resolved.traits.first_layers == EXIT and resolved.traits.aux_layers == (EXIT,)
    assert "no MLP, no embedding and no head" in evidence(resolved)


def test_buffers_of_older_files_are_passed_over(tmp_path: Path) -> None:
    buffer = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    model = save(tmp_path / "x", {**PUBLISHED.tensors, **buffer}, PUBLISHED.settings)
    assert resolve_config(model, method=None, exit_layer=EXIT).method == "kangaroo"


def test_a_language_model_of_one_layer_is_none(tmp_path: Path) -> None:
    tiny_target("llama", num_hidden_layers=1).save_pretrained(tmp_path / "x")
    assert resolve_config(str(tmp_path / "x"), method=None, num_speculative_tokens=2).method == "draft_model"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "exit_layer: left out, and nothing in an adapter's checkpoint names the layer.*give 1 to 3"),
        ({"exit_layer": 4}, "exit_layer: is 4, and the target has 4 layers"),
        ({"exit_layer": 0}, "exit_layer"),
        ({"exit_layer": 2, "draft_confidence_threshold": 1.5}, "draft_confidence_threshold"),
        ({"exit_layer": 2, "threshold": 0.5}, "threshold"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_by_name(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        resolve_config(PUBLISHED.save(tmp_path / "x"), **keys)


def refused(tmp_path: Path, tensors: Any, settings: Any, said: str) -> None:
    model = save(tmp_path / "x", tensors, settings, "pytorch_model.bin")
    for run in (resolve_config, built):
        with pytest.raises(ConfigError, match=f"(?s){said}"):
            run(model, exit_layer=EXIT)


def test_all_missing_tensors_are_in_one_error(tmp_path: Path) -> None:
    lost = ("layers.0.self_attn.k_proj.weight", "layers.0.input_layernorm.weight", "norm.weight")
    tensors = {name: tensor for name, tensor in PUBLISHED.tensors.items() if name not in lost}
    said = r"missing: layers\.0\.input_layernorm\.weight, layers\.0\.self_attn\.k_proj\.weight, norm\.weight"
    refused(tmp_path, tensors, PUBLISHED.settings, said)


def test_tensors_that_nothing_reads_are_refused_with_their_names(tmp_path: Path) -> None:
    more = {"layers.0.mlp.up_proj.weight": torch.ones(2, 2), "fc.weight": torch.ones(2, 2)}
    said = r"what these tensors are for: fc\.weight, layers\.0\.mlp\.up_proj\.weight"
    refused(tmp_path, {**PUBLISHED.tensors, **more}, PUBLISHED.settings, said)


@pytest.mark.parametrize(
    ("name", "shape"), [("norm.weight", (WIDTH + 1,)), ("layers.0.self_attn.v_proj.weight", (WIDTH, WIDTH - 2))]
)
def test_tensors_of_another_shape_are_refused_with_both(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    tensors = {**PUBLISHED.tensors, name: torch.zeros(shape)}
    refused(tmp_path, tensors, PUBLISHED.settings, rf"{name} is \[{str(list(shape))[1:-1]}\], and .* \[{WIDTH}")


def test_adapters_of_other_targets_and_broken_settings_are_refused(tmp_path: Path) -> None:
    wide = config(hidden_size=2 * WIDTH)
    refused(
        tmp_path / "a", adapter(wide, width=2 * WIDTH), wide, f"target of width {2 * WIDTH}, and this one has {WIDTH}"
    )
    headless = {key: value for key, value in config().items() if key != "num_attention_heads"}
    refused(tmp_path / "b", PUBLISHED.tensors, headless, "no num_attention_heads")
    rope = config(rope_scaling={"rope_type": "spiral", "factor": 2.0})
    refused(tmp_path / "c", PUBLISHED.tensors, rope, "spiral")
    refused(tmp_path / "d", {"fc.weight": torch.ones(2, 2)}, config(), "has no adapter.*model_type 'llama'.*kangaroo")
    whole = {name: tensor.to(torch.int8) for name, tensor in PUBLISHED.tensors.items()}
    refused(tmp_path / "e", whole, config(), "is int8; adapters are read in floating point")
    with pytest.raises(ConfigError, match="none was given"):
        resolve_config(None, exit_layer=EXIT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 1}, "a single layer"),
        ({"layer_types": ["full_attention", "linear_attention"] * 2}, "layer 1 of the target.*'linear_attention'"),
    ],
)
def test_targets_that_cannot_be_left_early_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    info = TargetInfo.from_config(None, {**TARGET.config.to_dict(), **changes})
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        resolve_config(PUBLISHED.save(tmp_path / "x"), info, exit_layer=1)


def test_hosts_that_run_the_target_as_a_whole_refuse_the_method_by_name(tmp_path: Path) -> None:
    class Whole:
        """A handle without first_layers."""

        def __init__(self, inner: TargetHandle) -> None:
            names = ("info", "device", "dtype", "compute_logits", "embedding_weight", "new_arena")
            vars(self).update({name: getattr(inner, name) for name in names})

    model, target = PUBLISHED.save(tmp_path / "x"), FakeTarget(TARGET)
    with pytest.raises(TargetError, match=r"kangaroo with exit_layer 2 .*runs its target as a whole only \(Whole"):
        built(model, Whole(target), exit_layer=EXIT)  # type: ignore[arg-type]


class Backwards(torch.nn.ModuleList):
    """Layers that are run from the last one on."""

    def __getitem__(self, index: Any) -> Any:
        return list(self._modules.values())[::-1][index]


def test_a_family_whose_layers_cannot_be_cut_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    model = tiny_target("llama", num_hidden_layers=4)
    model.model.layers = Backwards(model.model.layers)
    with pytest.raises(TargetError, match=r"(?s)kangaroo.*to layer 2 by itself"):
        LLM(
            hf_model=model,
            speculative_config={"method": "kangaroo", "model": PUBLISHED.save(tmp_path / "x"), "exit_layer": EXIT},
        )
