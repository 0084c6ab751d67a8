"""MTP modules of Qwen3-Next and Qwen3.5: the released tensors are read, and what is their own is as it should be."""

from __future__ import annotations

import importlib
import json
import logging
from pathlib import Path
from typing import Any

import mtp_models
import pytest
import torch
from mtp_folders import reasons, resolve_config
from mtp_models import Shapes
from mtp_replay import built, compared, handle_of

from specdec_core.config.rope import plain_rope
from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource
from specdec_nn.drafters.hidden_state import HiddenStateDrafter
from specdec_plugin_mtp import weights
from specdec_plugin_mtp.heads.wiring import WIRINGS
from specdec_plugin_mtp.reading import Reading

QWEN = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
DRAWN = {"temperature": 1.3, "draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
K = "num_speculative_tokens"
pytestmark = pytest.mark.filterwarnings("ignore:num_speculative_tokens 4 is above")

# What released checkpoints have: sizes of Qwen3-Next-80B-A3B, Qwen3.5-0.8B and Qwen3.5-35B-A3B, and names of tensors.

NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 151936,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "max_position_embeddings": 262144,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000,
}
ROPE = {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}
MROPE = {**ROPE, "mrope_interleaved": True, "mrope_section": [11, 11, 10]}
DENSE: dict[str, Any] = {
    "model_type": "qwen3_5",
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": MROPE,
    },
    "vision_config": {"model_type": "qwen3_5", "depth": 12},
}
MOE: dict[str, Any] = {
    **DENSE,
    "model_type": "qwen3_5_moe",
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "tie_word_embeddings": False,
    "text_config": {
        **DENSE["text_config"],
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
}


def released(config: dict[str, Any], *, fused: bool = False) -> Shapes:
    """Return the names and shapes of one module; `fused`: the tensors of all experts are one."""
    text = config.get("text_config", config)
    h, d, inner = text["hidden_size"], text["head_dim"], text.get("moe_intermediate_size", 0)
    q, kv, experts = d * text["num_attention_heads"], d * text["num_key_value_heads"], text.get("num_experts", 0)

    def gated(name: str, width: int) -> Shapes:
        return {f"{name}.{p}_proj.weight": (h, width) if p == "down" else (width, h) for p in ("gate", "up", "down")}

    if not experts:
        mixer = gated("mlp", text["intermediate_size"])
    elif fused:
        mixer = {"mlp.experts.gate_up_proj": (experts, 2 * inner, h), "mlp.experts.down_proj": (experts, h, inner)}
    else:
        mixer = {k: v for e in range(experts) for k, v in gated(f"mlp.experts.{e}", inner).items()}
    if experts:
        mixer |= {"mlp.gate.weight": (experts, h), "mlp.shared_expert_gate.weight": (1, h)}
        mixer |= gated("mlp.shared_expert", text["shared_expert_intermediate_size"])
    layer: Shapes = {
        "input_layernorm.weight": (h,),
        "post_attention_layernorm.weight": (h,),
        "self_attn.q_proj.weight": (2 * q, h),
        "self_attn.k_proj.weight": (kv, h),
        "self_attn.v_proj.weight": (kv, h),
        "self_attn.o_proj.weight": (h, q),
        "self_attn.q_norm.weight": (d,),
        "self_attn.k_norm.weight": (d,),
        **mixer,
    }
    norms: Shapes = {f"mtp.{n}.weight": (h,) for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    return {"mtp.fc.weight": (h, 2 * h), **norms, **{f"mtp.layers.0.{n}": shape for n, shape in layer.items()}}


def written(folder: Path, config: dict[str, Any], shapes: Shapes) -> str:
    """Write config.json and a file of tensors that is whole, and takes no room: all of it is a hole."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return str(folder)


@pytest.mark.parametrize(
    ("config", "fused"),
    [(NEXT, False), (DENSE, False), (MOE, False), (MOE, True)],
    ids=["next", "dense", "moe", "moe fused"],
)
def test_a_released_list_of_tensors_is_read_without_a_missing_or_a_left_over_name(
    config: dict[str, Any], fused: bool, tmp_path: Path
) -> None:
    shapes = released(config, fused=fused)
    own = {"model.language_model.embed_tokens.weight": (8, 8), "model.language_model.norm.weight": (8,)}
    place = written(tmp_path, config, {**shapes, **own})
    resolved = resolve_config(place)
    assert resolved.num_speculative_tokens == 1
    reading = Reading.of(DraftSource(place))
    assert reading.family is not None
    wiring, text = WIRINGS[reading.family], reading.text
    at = f"transformers.models.{wiring.library}"
    library = importlib.import_module(f"{at}.modeling_{wiring.library}")
    made = getattr(importlib.import_module(f"{at}.configuration_{wiring.library}"), wiring.config)
    with torch.device("meta"):  # without the weights' memory
        stored = {name: torch.empty(reading.source.tensor_shapes[name]) for name in shapes}
        layer = wiring.block(
            library, made.from_dict({k: v for k, v in plain_rope(text).items() if k != "model_type"}), 0
        )
        tensors = weights.ModuleTensors(reading.source, stored)
        state = tensors.state(layer.state_dict(), "mtp.layers.0.")
        for name in ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            tensors.take(f"mtp.{name}.weight", shapes[f"mtp.{name}.weight"])
    tensors.check()
    assert tensors.left == {}
    assert {name: tensor.shape for name, tensor in state.items()} == {n: t.shape for n, t in layer.state_dict().items()}


# What is their own


@pytest.mark.parametrize("says", [{}, {"num_nextn_predict_layers": None}], ids=["absent", "null"])
def test_modules_that_config_json_does_not_count_are_counted_by_their_tensors(
    says: dict[str, Any], tmp_path: Path
) -> None:
    tensors = mtp_models.module_tensors("qwen3_next", 2)
    place = mtp_models.save(tmp_path, "qwen3_next", tensors, 2)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("num_nextn_predict_layers") == 2
    (tmp_path / "config.json").write_text(json.dumps({**config, **says}))
    resolved = resolve_config(place)
    assert (resolved.num_speculative_tokens, resolved.traits.n_predict) == (2, 2)
    assert reasons(resolved)[K] == "n_predict of Qwen3-Next: the number of mtp.layers.{i} in its tensors is 2"
    assert compared("qwen3_next", place, tensors, running=2).margin > 1e-4


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_a_language_model_inside_a_multimodal_one_is_read_by_its_text_config(family: str, tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors(family)
    place = mtp_models.save(tmp_path, family, tensors)
    text = json.loads((tmp_path / "config.json").read_text())
    text["rope_parameters"] |= {"mrope_interleaved": True, "mrope_section": [2, 1, 1]}
    names = ["Qwen3_5ForConditionalGeneration"]
    nested = {"model_type": family, "architectures": names, "text_config": text, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    assert compared(family, place, tensors, **DRAWN).error < 5e-5


def test_several_modules_share_what_is_around_their_layers(tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors("qwen3_5", 3)
    found = compared("qwen3_5", mtp_models.save(tmp_path, "qwen3_5", tensors, 3), tensors, running=3, k=3)
    assert found.deepest == 3
    assert found.margin > 1e-4


def test_experts_that_are_stored_together_are_those_that_are_stored_apart(tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors("qwen3_5_moe")
    at = "mtp.layers.0.mlp.experts."
    stored = {name: tensor for name, tensor in tensors.items() if not name.startswith(at)}
    both = [torch.cat([tensors[f"{at}{e}.{part}_proj.weight"] for part in ("gate", "up")]) for e in range(4)]
    stored[f"{at}gate_up_proj"] = torch.stack(both)
    stored[f"{at}down_proj"] = torch.stack([tensors[f"{at}{e}.down_proj.weight"] for e in range(4)])
    place = mtp_models.save(tmp_path, "qwen3_5_moe", stored)
    assert compared("qwen3_5_moe", place, tensors, **DRAWN).error < 5e-5


def test_experts_that_are_not_made_to_add_up_are_left_so(tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors("qwen3_next")
    place = mtp_models.save(tmp_path, "qwen3_next", tensors, norm_topk_prob=False)
    assert compared("qwen3_next", place, tensors, **DRAWN).error < 5e-5


def test_a_norm_keeps_the_bits_of_its_weights_in_low_precision(tmp_path: Path) -> None:
    """1 + w is no bf16 number for most small w."""
    tensors = mtp_models.module_tensors("qwen3_5")
    names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    small = {f"mtp.{name}.weight": torch.full((mtp_models.HIDDEN,), 0.001) for name in names}
    place = mtp_models.save(tmp_path, "qwen3_5", {**tensors, **small})
    handle = handle_of("qwen3_5", place)
    handle.model = mtp_models.target("qwen3_5", torch.bfloat16)
    proposer = built(place, handle).proposer(handle)
    assert isinstance(proposer, HiddenStateDrafter)
    for name in ("_embedding_norm", "_state_norm", "_final_norm"):
        scale = getattr(proposer._head, name).weight
        assert torch.equal(scale, torch.full_like(scale, 1.0 + float(torch.tensor(0.001).bfloat16())))
        row = torch.ones(1, mtp_models.HIDDEN, dtype=torch.bfloat16)
        assert getattr(proposer._head, name)(row).dtype == torch.bfloat16


def test_modules_with_an_embedding_of_their_own_are_refused_by_the_key(tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors("qwen3_5")
    place = mtp_models.save(tmp_path, "qwen3_5", tensors, mtp_use_dedicated_embeddings=True)
    with pytest.raises(ConfigError, match=r"an embedding of their own \(mtp_use_dedicated_embeddings"):
        resolve_config(place)


@pytest.mark.parametrize("family", QWEN)
def test_tensors_beside_the_layers_that_nothing_has_a_use_for_are_warned_of(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = mtp_models.module_tensors(family, 2)
    more = {"mtp.embed_tokens.weight": torch.zeros(2, 2), "mtp.layers.0.self_attn.g_proj.weight": torch.zeros(2)}
    with caplog.at_level(logging.WARNING, "specdec_plugin_mtp"):
        for name, added in (("whole", {}), ("more", more)):
            (tmp_path / name).mkdir()
            place = mtp_models.save(tmp_path / name, family, {**tensors, **added}, 2)
            handle = handle_of(family, place)
            built(place, handle, mtp_recurrence="reuse").proposer(handle)
    assert [r.getMessage().partition(" are ignored: ")[2] for r in caplog.records] == [", ".join(sorted(more))]
