"""Drafts of every family are those of an independent float64 derivation, over lives with all that a host may do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mtp_models
import pytest
from mtp_models import MODELS
from mtp_replay import Compared, compared

from specdec_nn.drafters.module_chain import ModuleDrafter
from specdec_testing.driving import Script

DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
pytestmark = pytest.mark.filterwarnings("ignore:num_speculative_tokens 4 is above")


def run(family: str, folder: Path, modules: int = 1, says: Any = None, **keys: Any) -> Compared:
    """Save a model with modules and compare what they draft."""
    tensors = mtp_models.module_tensors(family, modules)
    return compared(family, mtp_models.save(folder, family, tensors, modules, **(says or {})), tensors, **keys)


@pytest.mark.parametrize("family", MODELS)
def test_one_module_drafts_what_the_formats_say(family: str, tmp_path: Path) -> None:
    found = run(family, tmp_path)
    assert found.count > 60
    assert found.deepest == 4
    assert found.gaps > 0
    assert found.margin > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_its_distributions_are_those_of_the_formats(family: str, tmp_path: Path) -> None:
    found = run(family, tmp_path, temperature=1.3, **DRAWN)
    assert found.count > 60
    assert found.error < 2e-5


@pytest.mark.parametrize(
    ("family", "modules", "k"), [("deepseek", 3, 3), ("deepseek", 2, 4), ("glm4_moe", 4, 4), ("mimo", 3, 2)]
)
def test_several_modules_draft_what_the_formats_say(family: str, modules: int, k: int, tmp_path: Path) -> None:
    """With k above their number the first follows the last one; with k below it only k of them run."""
    found = run(family, tmp_path, modules, running=min(modules, k), k=k)
    assert found.deepest == k
    assert found.gaps > 0
    assert found.margin > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("family", ["deepseek", "glm4_moe"])
def test_their_distributions_are_those_of_the_formats(family: str, tmp_path: Path) -> None:
    found = run(family, tmp_path, 2, running=2, temperature=1.3, **DRAWN)
    assert found.deepest == 4
    assert found.error < 2e-5


def test_one_module_that_begins_again_is_the_one_that_is_used_again(tmp_path: Path) -> None:
    """The rule for drafts behind the last module says of a single module what reuse does."""
    found = run("mimo", tmp_path, change=lambda one: ModuleDrafter([one._head], [one._cache], one._plan._sampler))
    assert found.count > 60
    assert found.margin > 1e-4


def test_module_0_alone_drafts_if_it_is_to_be_used_again(tmp_path: Path) -> None:
    found = run("deepseek", tmp_path, 2, mtp_recurrence="reuse")
    assert found.deepest == 4
    assert found.margin > 1e-4


@pytest.mark.parametrize(("family", "modules"), [("mimo", 1), ("deepseek", 2), ("longcat", 1), ("ernie", 1)])
def test_positions_beyond_the_configured_longest_go_on_as_before_them(
    family: str, modules: int, tmp_path: Path
) -> None:
    life = Script("long", tuple(range(3, 60)), seed=7, chunk=20, steps=4)
    says = {"max_position_embeddings": 16}
    found = run(family, tmp_path, modules, says, running=modules, lives=[life], max_model_len=120)
    assert found.count == 16
    assert found.margin > 1e-4


@pytest.mark.parametrize("name", ["mla_scale_q_lora", "mla_scale_kv_lora"])
def test_a_longcat_that_does_not_scale_its_latents_is_not_scaled(name: str, tmp_path: Path) -> None:
    found = run("longcat", tmp_path, says={name: False}, temperature=1.3, **DRAWN)
    assert found.error < 2e-5


@pytest.mark.parametrize("family", ["deepseek", "mimo"])
def test_a_rotary_base_in_the_old_form_is_read_as_well(family: str, tmp_path: Path) -> None:
    tensors = mtp_models.module_tensors(family)
    folder = mtp_models.save(tmp_path, family, tensors)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("rope_parameters")["rope_theta"] == 100.0
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_theta": 100.0, "rope_scaling": None}))
    assert compared(family, folder, tensors, temperature=1.3, **DRAWN).error < 2e-5
