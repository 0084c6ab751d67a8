"""One reader of heads' checkpoints: every accepted spelling is found, every problem is in one error, FP8 is read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from specdec_core.errors import ConfigError
from specdec_core.registry.kernels import Kernels
from specdec_core.sources import DraftSource, TargetHandle, TargetInfo
from specdec_nn.checkpoints.head_weights import HeadWeights
from specdec_nn.checkpoints.names import Spelling, canonical_names
from specdec_nn.checkpoints.reader import CheckpointReader

SPELLING = Spelling(
    ignored=("rotary_emb.",),
    tables=("d2t",),
    prefixes=("model.", "module."),
    replaced=(("mid.", "layers.0."), (".ffn.", ".mlp.")),
    whole=(("extra", "extra.weight"),),
)


class ToyReader(CheckpointReader[int]):
    """A head of `fc` [3, any] and of layers with one matrix each."""

    spelling = SPELLING

    def look(self) -> int | None:
        """Return the number of layers."""
        whole = self.require(["fc.weight", "norm.weight", "out.weight"])
        self.expect({"fc.weight": (3, None), "layers.0.mlp.weight": (2, 2)}, "its config.json makes it", "correct it")
        self.refuse_others({"fc.weight", "norm.weight", "out.weight", "layers.0.mlp.weight"}, "leave them out")
        return self.num_layers if whole else None


def save(folder: Path, tensors: dict[str, Tensor], config: str = "{}") -> DraftSource:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config)
    save_file(tensors, folder / "model.safetensors")
    return DraftSource(folder)


def info() -> TargetInfo:
    sizes = {"hidden_size": 4, "vocab_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return TargetInfo.from_config(None, {"model_type": "llama", **sizes}, max_model_len=16)


def handle() -> TargetHandle:
    return cast("TargetHandle", SimpleNamespace(info=info(), device=torch.device("cpu"), dtype=torch.float32))


class PlainKernels:
    """The definition of `linear` alone."""

    def get(self, op: str, device: torch.device) -> Any:
        """Return it."""
        return lambda x, packed: torch.nn.functional.linear(x, packed.weight, packed.bias)


def kernels() -> Kernels:
    return cast("Kernels", PlainKernels())


@pytest.mark.parametrize(
    ("file", "canonical"),
    [
        ("model.fc.weight", "fc.weight"),
        ("model.module.fc.weight", "fc.weight"),
        ("mid.ffn.weight", "layers.0.mlp.weight"),
        ("a.mid.x", "a.mid.x"),
        ("any.where.d2t", "d2t"),
        ("extra", "extra.weight"),
        ("model.rotary_emb.inv_freq", None),
    ],
)
def test_accepted_spellings_become_canonical_names(file: str, canonical: str | None) -> None:
    assert SPELLING(file) == canonical


def test_two_tensors_of_one_canonical_name_are_refused_with_both() -> None:
    with pytest.raises(ConfigError, match=r"fc\.weight and model\.fc\.weight are both fc\.weight"):
        canonical_names(["model.fc.weight", "fc.weight"], SPELLING)


def test_every_problem_is_in_one_error_with_what_was_found_expected_and_to_do(tmp_path: Path) -> None:
    tensors = {"model.fc.weight": torch.zeros(4, 4), "mid.ffn.weight": torch.zeros(2, 3), "stray": torch.zeros(1)}
    reader = ToyReader(save(tmp_path / "x", tensors), info())
    assert reader.layout() is None
    assert len(reader.problems) == 4
    with pytest.raises(ConfigError) as caught:
        ToyReader(save(tmp_path / "x", tensors), info()).checked()
    message = str(caught.value)
    for part in (
        "these tensors are missing: norm.weight, out.weight",
        "model.fc.weight is [4, 4], and its config.json makes it [3, any] (correct it)",
        "mid.ffn.weight is [2, 3], and its config.json makes it [2, 2]",
        "what these tensors are for: stray (leave them out)",
        str(tmp_path / "x"),
    ):
        assert part in message


def test_an_unreadable_checkpoint_is_a_problem_for_who_asks_for_it_and_nobodys_for_detection(tmp_path: Path) -> None:
    source = save(tmp_path / "x", {"fc.weight": torch.zeros(1)})
    (tmp_path / "x" / "model.safetensors").write_bytes(b"no header")
    assert ToyReader.names_of(source) == {}
    assert ToyReader.shapes_of(source) == ({}, {})
    with pytest.raises(ConfigError, match="not a whole safetensors file"):
        ToyReader(source, info()).checked()


WHOLE = {"fc.weight": torch.ones(3, 2), "norm.weight": torch.ones(2), "mid.ffn.weight": torch.eye(2)}


def test_weights_of_a_sound_checkpoint_come_by_canonical_name(tmp_path: Path) -> None:
    tensors = {**WHOLE, "out.weight": torch.arange(6.0).view(3, 2)}
    reader = ToyReader(save(tmp_path / "x", tensors), info())
    assert reader.checked() == 1
    weights = HeadWeights(reader, handle(), kernels())
    assert torch.equal(weights.layer(0)["mlp.weight"], torch.eye(2))
    assert torch.equal(weights.linear("out", 2)(torch.ones(1, 2)), torch.tensor([[1.0, 5.0]]))
    assert torch.equal(weights.get("out.weight", torch.tensor([2])), torch.tensor([[4.0, 5.0]]))
    assert weights.find("d2t") is None


def test_all_weights_that_are_not_in_floating_point_are_named_together(tmp_path: Path) -> None:
    whole = {**WHOLE, "out.weight": torch.zeros(3, 2), "fc.weight": torch.ones(3, 2, dtype=torch.int8)}
    whole["norm.weight"] = torch.ones(2).to(torch.float8_e4m3fn)
    reader = ToyReader(save(tmp_path / "x", whole), info())
    assert reader.layout() == 1, "a host may know the format"
    assert [problem.drafter_only for problem in reader.problems] == [True, True]
    reader = ToyReader(save(tmp_path / "x", whole), info())
    with pytest.raises(ConfigError, match=r"fc\.weight is int8.*norm\.weight is float8_e4m3fn"):
        HeadWeights(reader, handle(), kernels(), ["fc.weight", "norm.weight"])


def test_an_fp8_weight_with_block_scales_is_dequantized_and_its_scales_are_no_tensor_of_their_own(
    tmp_path: Path,
) -> None:
    stored = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).to(torch.float8_e4m3fn)
    scales = torch.tensor([[2.0, 10.0], [0.5, 1.0]])
    tensors = {**WHOLE, "model.out.weight": stored, "model.out.weight_scale_inv": scales}
    source = save(tmp_path / "x", tensors, '{"quantization_config": {"weight_block_size": [2, 1]}}')
    reader = ToyReader(source, info())
    assert reader.checked() == 1
    out = HeadWeights(reader, handle(), kernels()).get("out.weight")
    assert torch.equal(out, torch.tensor([[2.0, 20.0], [6.0, 40.0], [2.5, 6.0]]))
