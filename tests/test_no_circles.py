"""A method that refuses a checkpoint and names another method for it names one that does not refuse it likewise."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo

METHODS = Catalog.discover().names("proposer")
NAMED = re.compile(r"(?:name the method|use \"method\":) \"?([\w-]+)")


def folder_of(folder: Path, kind: str, architecture: str) -> str:
    """Return a folder with a config.json of a family with prediction modules, and a tensor."""
    sizes = {"hidden_size": 8, "vocab_size": 32, "num_hidden_layers": 3, "max_position_embeddings": 64}
    config = {"model_type": kind, "architectures": [architecture], **sizes, "num_nextn_predict_layers": 1}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.embed_tokens.weight": np.zeros((32, 8), np.float32)}, folder / "model.safetensors")
    return str(folder)


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("deepseek_v4", "DeepseekV4ForCausalLM"),
        ("deepseek_v41", "DeepseekV41ForCausalLM"),
        ("kimi_k3", "KimiK3ForConditionalGeneration"),
        ("llama", "LlamaForCausalLM"),
    ],
)
def test_no_refusal_sends_a_user_in_a_circle(kind: str, architecture: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "target", kind, architecture)
    target = TargetInfo.from_folder(folder)
    refused, sent = set(), {}
    for method in METHODS:
        try:
            resolve(
                {"method": method, "model": folder, "num_speculative_tokens": 1}, target, Registry(Catalog.discover())
            )
        except ConfigError as error:
            refused.add(method)
            sent[method] = {name for name in NAMED.findall(str(error)) if name in METHODS}
    assert {"mtp", "dspark"} <= refused
    assert {method: names & refused for method, names in sent.items() if names & refused} == {}
