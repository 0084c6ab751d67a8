"""Which layer is left, what is detected, and what is refused in one error."""

from __future__ import annotations

import json

import pytest
import torch

from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError, TargetError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_engine import LLM
from specdec_testing.targets import tiny_target

HF = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128, "hidden_size": 32,
      "num_hidden_layers": 12, "max_position_embeddings": 256}  # fmt: skip


def info(model=None, **changes):
    return TargetInfo.from_config(model, {**HF, **changes})


def resolved(target, **keys):
    return resolve({"method": "early_exit", **keys}, target, Registry(Catalog.discover(), strict=True))


def decided(found):
    return {decision.key: (decision.value, decision.reason) for decision in found.decisions}


def saved(folder, *, config=None, generation=None):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**HF, **(config or {})}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return str(folder)


def test_the_exit_layer_is_the_given_one_the_named_one_or_a_quarter(tmp_path):
    named = saved(tmp_path / "a", generation={"assistant_early_exit": 5})
    own = TargetInfo.from_folder(saved(tmp_path / "b", config={"assistant_early_exit": 7}))
    cases = [
        (resolved(info(), exit_layer=2), 2, "given; an option of early_exit"),
        (resolved(TargetInfo.from_folder(named)), 5, "assistant_early_exit in the target's generation_config.json"),
        (resolved(TargetInfo.from_folder(named), exit_layer=2), 2, "given; an option of early_exit"),
        (resolved(own), 7, "assistant_early_exit in the target's config.json"),
        (resolved(info()), 3, "a quarter of the target's 12 layers; its checkpoint names none"),
        (resolved(info(num_hidden_layers=2)), 1, "a quarter of the target's 2 layers; its checkpoint names none"),
    ]
    for found, count, reason in cases:
        assert decided(found)["exit_layer"] == (count, reason)
        assert found.traits.first_layers == count and found.num_speculative_tokens == 4


def test_a_checkpoint_that_names_its_exit_is_recognised(tmp_path):
    model = saved(tmp_path / "a", generation={"assistant_early_exit": 5})
    found = resolve({"model": model}, TargetInfo.from_folder(model), Registry(Catalog.discover(), strict=True))
    assert found.method == "early_exit" and found.traits.first_layers == 5
    other = saved(tmp_path / "b")
    with pytest.raises(ConfigError, match="the drafter is the target itself"):
        resolved(TargetInfo.from_folder(other), model=model)


@pytest.mark.parametrize(
    ("target", "keys", "message"),
    [
        (info(), {"exit_layer": 12}, "is 12 .given., and the target has 12 layers.*give 1 to 11"),
        (info(assistant_early_exit=40), {}, "is 40 .assistant_early_exit in the target's config.json"),
        (info(), {"exit_layer": 0}, "exit_layer"),
        (info(num_hidden_layers=1), {}, "a single layer"),
        (info(layer_types=["full_attention", "linear_attention"] * 6), {}, "layer 1 of the target.*'linear_attention'"),
        (info(), {"draft_confidence_threshold": 2.0}, "draft_confidence_threshold"),
        (info(), {"exit_layers": 3}, "exit_layer"),
    ],
)
def test_what_cannot_be_is_one_error(target, keys, message):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        resolved(target, **keys)


def test_several_problems_come_together():
    target = info(layer_types=["linear_attention"] * 12)
    with pytest.raises(ConfigError, match=r"(?s)exit_layer: is 20.*layer 0 of the target"):
        resolved(target, exit_layer=20)


class Backwards(torch.nn.ModuleList):
    """Layers that are run from the last one on."""

    def __getitem__(self, index):
        return list(self._modules.values())[::-1][index]


def test_a_family_whose_layers_cannot_be_cut_is_refused_when_it_is_loaded():
    model = tiny_target("llama", num_hidden_layers=3)
    model.model.layers = Backwards(model.model.layers)
    with pytest.raises(TargetError, match=r"(?s)early_exit.*to layer 1 by itself"):
        LLM(hf_model=model, speculative_config={"method": "early_exit", "exit_layer": 1})
