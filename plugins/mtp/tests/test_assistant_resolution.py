"""How Gemma 4 assistants are resolved, and what is refused in one error with the names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from assistant_models import OWN, VOCAB, WIDTH, assistant, layout, over, settings, stored, target
from mtp_folders import config

from specdec_core.errors import ConfigError, TargetError
from specdec_core.sources import TargetHandle, TargetInfo
from specdec_nn.hf.handle import ModelHandle
from specdec_plugin_mtp.assistant.layout import layer_types, sources
from specdec_testing.fakes import FakeTarget
from specdec_testing.layouts import save
from specdec_testing.targets import tiny_target

resolve_config, built = over("own keys")
MODEL = assistant()


def test_an_assistant_is_recognised_and_reads_the_last_row_and_the_keys(tmp_path: Path) -> None:
    resolved = resolve_config(layout(MODEL).save(tmp_path / "x"), method=None)
    assert (resolved.method, resolved.num_speculative_tokens) == ("mtp", 1)
    traits = resolved.traits
    assert (traits.rows, traits.hidden, traits.target_keys, traits.n_predict) == ("last", True, True, None)


@pytest.mark.parametrize("kind", ["gemma4_assistant", "gemma4_unified_assistant"])
def test_any_k_is_right_and_centroids_and_a_head_of_its_own_are_read_over(kind: str, tmp_path: Path) -> None:
    model = assistant(centroids=True)
    tensors = {**stored(model), "lm_head.weight": torch.ones(VOCAB, OWN)}
    folder = save(tmp_path / "x", tensors, {**settings(model), "model_type": kind})
    assert resolve_config(folder, method=None, num_speculative_tokens=5).num_speculative_tokens == 5


def test_layers_attend_to_the_last_layer_of_their_type_that_has_keys_of_its_own() -> None:
    def info(**changes: Any) -> TargetInfo:
        return TargetInfo.from_config(None, {**target().config.to_dict(), **changes})

    assert sources(info()) == {"sliding_attention": 4, "full_attention": 5}
    assert sources(info(num_kv_shared_layers=3)) == {"sliding_attention": 1, "full_attention": 2}
    assert sources(info(num_kv_shared_layers=4)) == {"sliding_attention": 1}
    assert layer_types({"num_hidden_layers": 7})[5:] == ("full_attention", "full_attention")


def refused(folder: Path, tensors: Any, changes: dict[str, Any], said: str, info: TargetInfo | None = None) -> None:
    model = save(folder, tensors, {**settings(MODEL), **changes})
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        resolve_config(model, **({} if info is None else {"info": info}))


def test_all_missing_tensors_are_in_one_error(tmp_path: Path) -> None:
    lost = ("model.layers.1.self_attn.q_norm.weight", "pre_projection.weight", "model.layers.2.layer_scalar")
    tensors = {name: tensor for name, tensor in stored(MODEL).items() if name not in lost}
    said = r"missing: layers\.1\.self_attn\.q_norm\.weight, layers\.2\.layer_scalar, pre_projection\.weight"
    refused(tmp_path / "x", tensors, {}, said)


def test_tensors_that_nothing_reads_are_refused_with_their_names(tmp_path: Path) -> None:
    more = {
        "model.layers.0.self_attn.k_proj.weight": torch.ones(2, 2),
        "model.embed_tokens_per_layer.weight": torch.ones(2),
    }
    said = r"are for: embed_tokens_per_layer\.weight, layers\.0\.self_attn\.k_proj\.weight"
    refused(tmp_path / "x", {**stored(MODEL), **more}, {}, said)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("post_projection.weight", (WIDTH + 1, OWN), rf"post_projection\.weight is \[{WIDTH + 1}, {OWN}\]"),
        ("model.layers.0.mlp.up_proj.weight", (3, OWN), r"up_proj\.weight is \[3, 16\], and .* \[24, 16\]"),
        ("model.embed_tokens.weight", (VOCAB + 2000, OWN), f"{VOCAB + 2000} ids and the target has {VOCAB}"),
    ],
)
def test_tensors_of_another_shape_are_refused_with_both(
    name: str, shape: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    refused(tmp_path / "x", {**stored(MODEL), name: torch.zeros(shape)}, {}, said)


def text(**changes: Any) -> dict[str, Any]:
    return {"text_config": {**settings(MODEL)["text_config"], **changes}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backbone_hidden_size": 1536}, f"target of width 1536, and this one has {WIDTH}"),
        (text(num_kv_shared_layers=1), "1 of its 3 layers attend to the target's keys"),
        (text(enable_moe_block=True), "enable_moe_block True"),
        (text(hidden_size_per_layer_input=4), "hidden_size_per_layer_input 4"),
        (text(num_attention_heads=None), "no num_hidden_layers or no num_attention_heads"),
    ],
)
def test_settings_that_cannot_be_built_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    refused(tmp_path / "x", stored(MODEL), changes, said)


def test_targets_without_fitting_keys_are_refused(tmp_path: Path) -> None:
    own = target().config.to_dict()
    all_full = TargetInfo.from_config(None, {**own, "layer_types": ["full_attention"] * 6})
    refused(
        tmp_path / "a",
        stored(MODEL),
        {},
        "layers of type sliding_attention attend.*are of type full_attention",
        all_full,
    )
    wide = TargetInfo.from_config(None, target("shared keys").config.to_dict())
    refused(
        tmp_path / "b",
        stored(MODEL),
        {},
        "queries of its layer 2 are 8 wide, and the target's full_attention keys 16",
        wide,
    )
    other = FakeTarget(tiny_target("gpt2")).info
    refused(tmp_path / "c", stored(MODEL), {}, "the target's layers with keys of their own are of type", other)


def test_weights_that_are_no_floats_are_refused(tmp_path: Path) -> None:
    whole = {name: tensor.to(torch.int8) for name, tensor in stored(MODEL).items()}
    refused(tmp_path / "x", whole, {}, "is int8; assistants are read in floating point")


def test_the_position_is_an_option_of_assistants_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="assistant_position"):
        resolve_config(layout(MODEL).save(tmp_path / "a"), assistant_position="first")
    sizes = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_nextn_predict_layers": 1}
    other = save(tmp_path / "b", {"x.weight": torch.ones(1)}, config("deepseek_v3", "DeepseekV3ForCausalLM", **sizes))
    with pytest.raises(
        ConfigError, match=r"assistant_position: 'last' given, and DeepSeek V3.* no family of assistants"
    ):
        resolve_config(other, assistant_position="last")


def test_hosts_that_keep_keys_to_themselves_refuse_the_method_by_name(tmp_path: Path) -> None:
    class Closed:
        """A handle without target_keys."""

        def __init__(self, inner: TargetHandle) -> None:
            names = ("info", "device", "dtype", "embed", "embedding_weight", "compute_logits", "new_arena")
            vars(self).update({name: getattr(inner, name) for name in names})

    model, handle = layout(MODEL).save(tmp_path / "x"), FakeTarget(target())
    with pytest.raises(TargetError, match=r"mtp with .* keeps them to itself \(Closed has no target_keys"):
        built(model, Closed(handle), num_speculative_tokens=2)  # type: ignore[arg-type]
    assert isinstance(handle, ModelHandle)
