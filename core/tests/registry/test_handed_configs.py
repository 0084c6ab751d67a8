"""What hooks are handed of the target, the draft and the configuration stays as it is, whatever a plugin tries."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from specdec_core import hookimpl
from specdec_core.config.read_only import read_only
from specdec_core.config.resolve import resolve
from specdec_core.config.rope import plain_rope
from specdec_core.context import MethodContext
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import DraftSource, TargetInfo
from specdec_core.traits import MethodTraits

CONFIG = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "factors": [1.0, 2.0]},
    "layer_types": ["full_attention", {"kind": ["a"]}],
}
CHANGES = {
    "a key": lambda config: config.__setitem__("vocab_size", 1),
    "a new key": lambda config: config.setdefault("new", 1),
    "a key less": lambda config: config.pop("vocab_size"),
    "all": lambda config: config.clear(),
    "many": lambda config: config.update(vocab_size=1),
    "one inside": lambda config: config["rope_parameters"].__setitem__("rope_type", "yarn"),
    "a list": lambda config: config["layer_types"].append("x"),
    "an item": lambda config: config["layer_types"].__setitem__(0, "x"),
    "deep": lambda config: config["layer_types"][1]["kind"].insert(0, "b"),
    "in place": lambda config: config["rope_parameters"]["factors"].__iadd__([3.0]),
    "sorted": lambda config: config["rope_parameters"]["factors"].reverse(),
}


class Meddling:
    """Tries to change everything that its hooks are handed, and notes what was refused."""

    def __init__(self, change: Any) -> None:
        self.change, self.refused, self.seen = change, 0, 0

    def _try(self, *configs: Any) -> None:
        for config in configs:
            self.seen += 1
            try:
                self.change(config)
            except TypeError:
                self.refused += 1

    def _see(self, ctx: MethodContext[Any]) -> None:
        draft, target = ctx.checkpoint, ctx.target
        self._try(draft.hf_config, draft.original.hf_config, target.hf_config, target.extra["deep"])

    @hookimpl
    def specdec_make_proposer(self) -> None: ...

    @hookimpl
    def specdec_method_defaults(self, ctx: MethodContext[Any]) -> None:
        self._see(ctx)

    @hookimpl
    def specdec_method_traits(self, ctx: MethodContext[Any]) -> MethodTraits:
        self._see(ctx)
        return MethodTraits(weights="own")

    @hookimpl
    def specdec_check(self, ctx: MethodContext[Any]) -> None:
        self._see(ctx)


@pytest.mark.parametrize("how", CHANGES)
def test_a_plugin_that_writes_into_the_configs_it_is_handed_changes_nothing(how: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    given = copy.deepcopy(CONFIG)
    target = replace(TargetInfo.from_config("target", given), extra={"deep": copy.deepcopy(CONFIG)})
    plugin = Meddling(CHANGES[how])
    registry = Registry(Catalog.discover().with_local({"meddling": plugin}), strict=True)
    keys = {"method": "meddling", "model": str(tmp_path), "num_speculative_tokens": 2}
    resolved = resolve(keys, target, registry)
    assert plugin.refused == plugin.seen == 12
    assert resolved.draft is not None
    assert target.hf_config == target.extra["deep"] == resolved.draft.hf_config == given == CONFIG


def test_a_configurations_other_keys_cannot_be_changed_either() -> None:
    from specdec_core.config.speculative import SpeculativeConfig

    for config in (SpeculativeConfig.parse({"method": "x", "strange": {"a": [1]}}), SpeculativeConfig(method="x")):
        with pytest.raises(TypeError, match="cannot be changed"):
            config.other_keys["strange"] = 1  # type: ignore[index]
    with pytest.raises(TypeError, match=r"change a copy\.deepcopy of it"):
        SpeculativeConfig.parse({"method": "x", "strange": {"a": [1]}}).other_keys["strange"]["a"].append(2)


def test_a_patch_is_no_longer_its_plugins(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    patch = {"added": {"a": [1]}}
    patched = DraftSource(tmp_path).patched(patch)
    patch["added"]["a"].append(2)
    assert patched.hf_config["added"] == {"a": [1]}


def test_what_is_read_only_is_still_plain_data_and_its_copies_are_free() -> None:
    held = read_only(CONFIG)
    assert held == CONFIG
    assert isinstance(held, dict) and isinstance(held["layer_types"], list)
    assert json.loads(json.dumps(held)) == CONFIG
    info = TargetInfo.from_config("target", CONFIG)
    assert asdict(info)["hf_config"] == CONFIG
    assert pickle.loads(pickle.dumps(info)).hf_config == CONFIG
    for free in (copy.deepcopy(held), pickle.loads(pickle.dumps(held))):
        free["layer_types"][1]["kind"].append("b")
        free["new"] = 1
    assert held == CONFIG


def test_what_a_library_is_given_of_a_config_is_free_to_be_changed() -> None:
    held = TargetInfo.from_config("target", {**CONFIG, "quantization_config": {"modules": ["a"]}}).hf_config
    plain = plain_rope(held)
    plain["quantization_config"]["modules"].append("b")
    plain["rope_parameters"]["rope_theta"] = 1e4
    assert held["quantization_config"] == {"modules": ["a"]}
    assert "rope_theta" not in held["rope_parameters"]
