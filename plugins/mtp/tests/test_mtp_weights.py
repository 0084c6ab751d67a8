"""Which tensors of a checkpoint are read, in which forms, and what is refused: by name, before anything runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mtp_models
import pytest
import torch
from mtp_folders import resolve_config
from mtp_models import MODELS, SHARDS
from mtp_replay import built, compared, handle_of
from torch import Tensor

from specdec_core.errors import ConfigError
from specdec_core.protocols import Proposer
from specdec_nn.checkpoints import weights
from specdec_nn.checkpoints.fp8 import dequantized
from specdec_nn.drafters.hidden_state import HiddenStateDrafter

DRAWN = {"temperature": 1.3, "draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
pytestmark = pytest.mark.filterwarnings("ignore:num_speculative_tokens 4 is above")


def make(folder: Path, family: str, tensors: dict[str, Tensor], **says: Any) -> Proposer:
    place = mtp_models.save(folder, family, tensors, **says)
    handle = handle_of(family, place)
    return built(place, handle).proposer(handle)


def refused(folder: Path, family: str, tensors: dict[str, Tensor], **says: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make(folder, family, tensors, **says)
    return str(caught.value)


# What is read


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gather the names of all tensors that are read."""
    names: list[str] = []
    original = weights._safetensors

    def gathering(file: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
        tensors = original(file, wanted)
        names.extend(tensors)
        return tensors

    monkeypatch.setattr(weights, "_safetensors", gathering)
    return names


@pytest.mark.parametrize("family", MODELS)
def test_only_the_tensors_of_the_modules_that_run_are_read_each_once(
    family: str, read: list[str], tmp_path: Path
) -> None:
    tensors = mtp_models.module_tensors(family, 2)
    place = mtp_models.save(tmp_path, family, tensors, 2)
    handle = handle_of(family, place)
    built(place, handle, mtp_recurrence="reuse").proposer(handle)
    assert sorted(read) == sorted(mtp_models.module_tensors(family, 1))


def test_files_without_any_of_them_are_not_opened(tmp_path: Path) -> None:
    place = mtp_models.save(tmp_path, "mimo", mtp_models.module_tensors("mimo"))
    (tmp_path / SHARDS[0]).write_bytes(b"not a file of tensors")
    handle = handle_of("mimo", place)
    built(place, handle).proposer(handle)
    (tmp_path / SHARDS[1]).write_bytes(b"not a file of tensors")
    with pytest.raises(ConfigError, match=f"{SHARDS[1]} is not a whole safetensors file"):
        built(place, handle).proposer(handle)


def test_a_checkpoint_in_one_file_without_an_index_is_read_too(tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors("mimo")
    place = mtp_models.save(tmp_path, "mimo", tensors)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert compared("mimo", place, tensors).count > 60


# FP8


def test_an_fp8_weight_is_multiplied_by_the_scale_of_its_block() -> None:
    """5 x 5 in blocks of 2 x 3, worked by hand: the last blocks are one row high and two columns wide."""
    weight = torch.tensor([[1.0, 2, 3, 4, 5], [6, 7, 8, 9, 10], [1, 1, 1, 1, 1], [2, 2, 2, 2, 2], [3, 3, 3, 3, 3]]).to(
        torch.float8_e4m3fn
    )
    scale = torch.tensor([[0.5, 10.0], [2.0, 4.0], [3.0, 0.25]])
    wanted = torch.tensor(
        [
            [0.5, 1.0, 1.5, 40.0, 50.0],
            [3.0, 3.5, 4.0, 90.0, 100.0],
            [2.0, 2.0, 2.0, 4.0, 4.0],
            [4.0, 4.0, 4.0, 8.0, 8.0],
            [9.0, 9.0, 9.0, 0.75, 0.75],
        ]
    )
    assert torch.equal(dequantized("w", weight, scale, (2, 3)), wanted)
    with pytest.raises(ConfigError, match=r"w \[5, 5\] has scales \[3, 2\], and blocks of 128 x 128 .* make \[1, 1\]"):
        dequantized("w", weight, scale, (128, 128))


def fp8(tensors: dict[str, Tensor], size: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a checkpoint with its matrices in FP8, and what they stand for in floating point."""
    stored, meant = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if weight.ndim != 2 or "eh_proj" in name or "mlp.gate.weight" in name:
            continue
        rows, columns = weight.shape
        scale = torch.rand(-(-rows // size), -(-columns // size), generator=torch.Generator().manual_seed(rows)) + 0.5
        stored[name] = weight.to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scale
        blocks = scale.double().repeat_interleave(size, 0)[:rows].repeat_interleave(size, 1)[:, :columns]
        meant[name] = stored[name].double() * blocks
    return stored, meant


@pytest.mark.parametrize(("size", "says"), [(16, {"weight_block_size": [16, 16]}), (128, {})])
def test_an_fp8_module_drafts_what_its_dequantised_weights_say(size: int, says: Any, tmp_path: Path) -> None:
    stored, meant = fp8(mtp_models.module_tensors("deepseek"), size)
    place = mtp_models.save(tmp_path, "deepseek", stored, quantization_config={"quant_method": "fp8", **says})
    assert compared("deepseek", place, meant, **DRAWN).error < 2e-5


def test_a_plain_module_of_a_quantised_model_is_read_as_it_is(tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors("deepseek")
    says = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    place = mtp_models.save(tmp_path, "deepseek", tensors, quantization_config=says)
    assert compared("deepseek", place, tensors, **DRAWN).error < 2e-5


def test_an_fp8_module_of_a_model_whose_config_does_not_say_so_is_dequantised(tmp_path: Path) -> None:
    stored, meant = fp8(mtp_models.module_tensors("glm4_moe"), 128)
    place = mtp_models.save(tmp_path, "glm4_moe", stored)
    assert compared("glm4_moe", place, meant, **DRAWN).error < 2e-5


@pytest.mark.parametrize(
    ("removed", "added"),
    [
        (".weight", {".weight": torch.zeros(32, 24, dtype=torch.float8_e4m3fn)}),
        (".weight", {".weight": torch.zeros(32, 24, dtype=torch.int8)}),
        (".weight", {".qweight": torch.zeros(4, 24, dtype=torch.int32), ".scales": torch.zeros(1, 24)}),
        (".weight", {".weight_packed": torch.zeros(4, 24, dtype=torch.int32), ".weight_scale": torch.zeros(1, 24)}),
    ],
)
def test_other_quantised_tensors_are_refused_by_name(removed: str, added: dict[str, Tensor], tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors("deepseek")
    name = f"model.layers.{mtp_models.LAYERS}.self_attn.o_proj"
    del tensors[name + removed]
    message = refused(tmp_path, "deepseek", {**tensors, **{name + ending: tensor for ending, tensor in added.items()}})
    assert "quantised in a way that is not known here" in message
    assert all(name + ending in message for ending in added)


def test_in_low_precision_what_chooses_experts_stays_in_float32(tmp_path: Path) -> None:
    """Biases that differ in the last bits of float32 choose other experts; transformers keeps them so, too."""
    tensors = mtp_models.module_tensors("deepseek")
    place = mtp_models.save(tmp_path, "deepseek", tensors)
    handle = handle_of("deepseek", place)
    handle.model = mtp_models.target("deepseek", torch.bfloat16)
    proposer = built(place, handle).proposer(handle)
    assert isinstance(proposer, HiddenStateDrafter)
    state = proposer._head._block._layer.state_dict()  # type: ignore[attr-defined]
    name = "mlp.gate.e_score_correction_bias"
    assert torch.equal(state.pop(name), tensors[f"model.layers.{mtp_models.LAYERS}.{name}"])
    assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}


# What is missing, or too much


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_a_module_without_any_one_of_its_tensors_is_refused_by_the_name(family: str, tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors(family)
    for name in tensors:
        less = {other: tensor for other, tensor in tensors.items() if other != name}
        message = refused(tmp_path, family, less)
        assert name.removeprefix("model.").removesuffix(".weight").removesuffix(".m") in message
        assert "lacks tensors of its MTP modules" in message


def test_all_missing_tensors_are_named_together(tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors("deepseek")
    missing = [name for name in tensors if "experts.3." in name or "o_proj" in name or "post_attention" in name]
    assert len(missing) == 5
    message = refused(tmp_path, "deepseek", {name: t for name, t in tensors.items() if name not in missing})
    assert all(name in message for name in missing)
    less = {name: t for name, t in tensors.items() if ".experts." not in name and "self_attn" not in name}
    gone = len(tensors) - len(less)
    assert f"and {gone - 12} more" in refused(tmp_path, "deepseek", less)


@pytest.mark.parametrize("name", ["eh_proj.weight", "mlp.experts.2.up_proj.weight", "self_attn.kv_b_proj.weight"])
def test_a_tensor_of_another_shape_is_refused_with_both(name: str, tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors("deepseek")
    whole = f"model.layers.{mtp_models.LAYERS}.{name}"
    if "experts" in name:
        for expert in range(4):
            other = whole.replace("experts.2", f"experts.{expert}")
            tensors[other] = torch.cat([tensors[other], tensors[other][:, :1]], dim=1)
            other = other.replace("up_proj", "gate_proj")
            tensors[other] = torch.cat([tensors[other], tensors[other][:, :1]], dim=1)
        assert "experts.2.up_proj.weight is [16, 33], expected [any, 32]" in refused(tmp_path, "deepseek", tensors)
        return
    tensors[whole] = torch.cat([tensors[whole], tensors[whole][:, :1]], dim=1)
    rows, columns = tensors[whole].shape
    assert f"is [{rows}, {columns}], expected [{rows}, {columns - 1}]" in refused(tmp_path, "deepseek", tensors)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("deepseek", f"model.layers.{mtp_models.LAYERS}.eh_proj.weight"),
        ("glm4_moe", f"model.layers.{mtp_models.LAYERS}.self_attn.o_proj.weight"),
        ("mimo", "model.mtp_layers.0.mlp.down_proj.weight"),
        ("ernie", "model.mtp_block.0.mlp.down_proj.weight"),
        ("longcat", "model.mtp.layers.0.self_attn.o_proj.weight"),
        ("qwen3_next", "mtp.fc.weight"),
        ("qwen3_5", "mtp.norm.weight"),
        ("qwen3_5_moe", "mtp.layers.0.mlp.shared_expert.down_proj.weight"),
    ],
)
def test_a_width_that_is_not_the_targets_is_refused_before_weights_are_read(
    family: str, name: str, tmp_path: Path
) -> None:
    tensors = mtp_models.module_tensors(family)
    tensors[name] = torch.cat([tensors[name], tensors[name][:1]])
    place = mtp_models.save(tmp_path, family, tensors)
    with pytest.raises(ConfigError, match=rf"{name} is \[33(, \d+)?\], expected \[32"):
        resolve_config(place)


def test_tensors_that_nothing_has_a_use_for_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = f"model.layers.{mtp_models.LAYERS}."
    more = {f"{at}self_attn.indexer.weight": torch.zeros(2), f"{at}extra": torch.zeros(2)}
    harmless = {f"{at}self_attn.rotary_emb.inv_freq": torch.zeros(2)}
    with caplog.at_level(logging.WARNING, "specdec_plugin_mtp"):
        make(tmp_path, "deepseek", {**mtp_models.module_tensors("deepseek"), **harmless})
        assert not caplog.records
        make(tmp_path, "deepseek", {**mtp_models.module_tensors("deepseek"), **harmless, **more})
    assert [record.getMessage().partition(" are ignored: ")[2] for record in caplog.records] == [
        f"{at}extra, {at}self_attn.indexer.weight"
    ]


def test_experts_that_are_stored_together_are_read_as_well(tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors("deepseek")
    at = f"model.layers.{mtp_models.LAYERS}.mlp.experts."
    stored = {name: tensor for name, tensor in tensors.items() if not name.startswith(at)}
    both = [torch.cat([tensors[f"{at}{e}.{part}_proj.weight"] for part in ("gate", "up")]) for e in range(4)]
    stored[f"{at}gate_up_proj"] = torch.stack(both)
    stored[f"{at}down_proj"] = torch.stack([tensors[f"{at}{e}.down_proj.weight"] for e in range(4)])
    assert compared("deepseek", mtp_models.save(tmp_path, "deepseek", stored), tensors, **DRAWN).error < 2e-5


def test_names_with_another_prefix_are_found_and_two_places_are_refused(tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors("glm4_moe")
    nested = {f"model.language_{name}": tensor.clone() for name, tensor in tensors.items()}
    assert compared("glm4_moe", mtp_models.save(tmp_path / "a", "glm4_moe", nested), tensors).count > 60
    message = refused(tmp_path / "b", "glm4_moe", {**tensors, **nested})
    assert "in 2 places (model., model.language_model.)" in message


# Tables


@pytest.mark.parametrize("family", ["deepseek", "longcat"])
def test_a_modules_own_tables_are_not_used_and_a_difference_is_told(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """MTP always runs on the target's embedding and head."""
    model, tensors = mtp_models.target(family), mtp_models.module_tensors(family)
    embedding, head = (table.weight.detach() for table in (model.get_input_embeddings(), model.lm_head))
    at = "model.mtp." if family == "longcat" else f"model.layers.{mtp_models.LAYERS}."
    equal = {f"{at}embed_tokens.weight": embedding.clone()}
    if family == "deepseek":
        equal[f"{at}shared_head.head.weight"] = head.clone()
    with caplog.at_level(logging.WARNING, "specdec_plugin_mtp"):
        make(tmp_path / "equal", family, {**tensors, **equal})
        assert not caplog.records
        other = {name: table + 0.25 * (torch.arange(len(table)) == 70)[:, None] for name, table in equal.items()}
        place = mtp_models.save(tmp_path / "other", family, {**tensors, **other})
        assert compared(family, place, tensors, **DRAWN).error < 2e-5
    assert len(caplog.records) == len(other)
    for record, name in zip(caplog.records, other, strict=True):
        assert record.getMessage().startswith(name)
        assert "by up to 0.25, and is not used" in record.getMessage()


# Libraries


def test_a_family_whose_classes_are_not_there_says_so_and_the_others_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mtp_models.target("longcat")  # kept, so that its classes are not asked for again
    monkeypatch.setitem(sys.modules, "transformers.models.longcat_flash.modeling_longcat_flash", None)
    message = refused(tmp_path / "a", "longcat", mtp_models.module_tensors("longcat"))
    assert (
        "the MTP modules of LongCat-Flash are made of transformers.models.longcat_flash, which transformers" in message
    )
    make(tmp_path / "b", "mimo", mtp_models.module_tensors("mimo"))
