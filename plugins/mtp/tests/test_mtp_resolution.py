"""What is resolved for MTP modules: where they are, k and its rules, names of old, what is run, what explain says."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from mtp_folders import DEEPSEEK, DRAFTING, deepseek, folder_of, model_of, reasons, resolve_config

from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError, ConfigWarning, DeprecatedNameWarning
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_plugin_mtp.options import MtpOptions
from specdec_testing.commands import run_specdec

K = "num_speculative_tokens"
OLD_NAMES = """
deepseek_mtp dots3_note_mtp mimo_mtp mimo_v2_mtp glm4_moe_mtp glm4_moe_lite_mtp glm_ocr_mtp ernie_mtp nemotron_h_mtp
exaone_moe_mtp exaone4_5_mtp qwen3_next_mtp qwen4_exp_mtp qwen3_5_mtp longcat_flash_mtp bailing_hybrid_v3_mtp
minimax_m3_mtp bailing_hybrid_mtp kimi_k3_mtp pangu_ultra_moe_mtp step3p5_mtp hy_v3_mtp hy_v4_mtp gemma4_mtp inkling_mtp
glm5_next_mtp step5_mtp
""".split()


# Where the modules are


@pytest.mark.parametrize("family", DRAFTING)
def test_without_a_model_the_modules_are_those_of_the_target(family: str, tmp_path: Path) -> None:
    target = model_of(tmp_path / "target", family)
    before = json.loads(Path(target, "config.json").read_text())
    resolved = resolve_config(target)
    assert resolved.draft is not None
    assert resolved.draft.model == target
    assert resolved.draft.hf_config["n_predict"] == 1
    assert reasons(resolved)["model"] == "MTP modules are in the target's own checkpoint"
    assert resolved.draft.original.hf_config == before


def test_the_modules_may_be_in_another_checkpoint(tmp_path: Path) -> None:
    target = folder_of(tmp_path / "target", {**DEEPSEEK, "num_nextn_predict_layers": 0})
    resolved = resolve_config(target, model=deepseek(tmp_path / "modules", 2))
    assert resolved.draft is not None
    assert resolved.draft.model == str(tmp_path / "modules")
    assert resolved.num_speculative_tokens == 2
    assert reasons(resolved)["model"] == "given; the draft checkpoint"


def test_the_modules_are_read_at_the_targets_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = deepseek(tmp_path / "target", 1)
    asked: list[tuple[str, str | None]] = []

    def locate(model: str, patterns: Any = None, revision: str | None = None) -> Path:
        asked.append((model, revision))
        return Path(folder)

    monkeypatch.setattr("specdec_core.config.checkpoint.locate", locate)
    info = TargetInfo.from_config("owner/name", {**DEEPSEEK})
    registry = Registry(Catalog.discover(), strict=True)
    resolve({"method": "mtp"}, info, registry)
    assert set(asked) == {("owner/name", None)}
    asked.clear()
    resolve({"method": "mtp"}, TargetInfo(**{**vars(info), "revision": "v2"}), registry)
    assert set(asked) == {("owner/name", "v2")}


def test_a_target_that_came_as_an_object_needs_a_model(tmp_path: Path) -> None:
    info = TargetInfo.from_config(None, DEEPSEEK)
    registry = Registry(Catalog.discover(), strict=True)
    with pytest.raises(ConfigError, match=r"model: .* the target came without one .*give the target's folder"):
        resolve({"method": "mtp", K: 1}, info, registry)
    given = resolve({"method": "mtp", "model": deepseek(tmp_path / "x", 1)}, info, registry)
    assert given.num_speculative_tokens == 1


# k


@pytest.mark.parametrize("modules", [1, 2, 3])
def test_k_is_the_number_of_modules_and_the_reason_names_the_key(modules: int, tmp_path: Path) -> None:
    resolved = resolve_config(deepseek(tmp_path / "target", modules))
    assert resolved.num_speculative_tokens == modules
    assert resolved.traits.n_predict == modules
    assert reasons(resolved)[K] == f"n_predict of DeepSeek V3, R1, V3.1: num_nextn_predict_layers is {modules}"


def test_a_number_that_is_the_familys_own_is_said_to_be(tmp_path: Path) -> None:
    resolved = resolve_config(model_of(tmp_path / "target", "longcat"))
    assert reasons(resolved)[K] == "n_predict of LongCat-Flash: the family's default is 1"


def test_k_may_be_less_than_n_predict_without_a_word(tmp_path: Path) -> None:
    resolved = resolve_config(deepseek(tmp_path / "target", 3), num_speculative_tokens=2)
    assert (resolved.num_speculative_tokens, reasons(resolved)[K]) == (2, "given")


def test_k_above_n_predict_is_a_multiple_with_a_warning_or_refused(tmp_path: Path) -> None:
    target = deepseek(tmp_path / "target", 2)
    with pytest.warns(ConfigWarning, match="4 is above the n_predict of mtp, 2: its modules are used 2 times") as said:
        resolved = resolve_config(target, num_speculative_tokens=4)
    assert len(said) == 1
    assert resolved.num_speculative_tokens == 4
    with pytest.raises(ConfigError, match=r"5 given, and above its n_predict of 2 mtp takes only multiples of 2"):
        resolve_config(target, num_speculative_tokens=5)


def test_without_a_number_k_must_be_given_and_any_is_right(tmp_path: Path) -> None:
    settings, names = DRAFTING["deepseek"]
    target = folder_of(tmp_path / "target", {k: v for k, v in settings.items() if "nextn" not in k}, names)
    with pytest.raises(ConfigError, match=rf"{K}: is required: mtp has no default for it here"):
        resolve_config(target)
    resolved = resolve_config(target, num_speculative_tokens=5)
    assert (resolved.num_speculative_tokens, resolved.traits.n_predict) == (5, None)


# Names of old


@pytest.mark.parametrize("name", OLD_NAMES)
def test_each_old_name_is_the_method_with_one_warning(name: str, tmp_path: Path) -> None:
    target = deepseek(tmp_path / "target", 1)
    info = TargetInfo.from_folder(target)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        resolved = resolve({"method": name}, info, Registry(Catalog.discover(), strict=True))
    assert [(w.category, str(w.message)) for w in said] == [
        (DeprecatedNameWarning, f"proposer name {name!r} is deprecated; use 'mtp'")
    ]
    assert resolved.method == "mtp"
    assert resolved.draft is not None
    assert resolved.draft.hf_config["architectures"] == ["DeepSeekMTPModel"]  # by config.json, whatever the name


def test_no_other_name_is_an_alias() -> None:
    points = distribution("specdec-plugin-mtp").entry_points
    assert sorted(p.name for p in points if p.group == "specdec.aliases.v1") == sorted(OLD_NAMES)
    assert len(OLD_NAMES) == 27


# What runs


@pytest.mark.parametrize(
    ("given", "modules", "runs"),
    [
        ("auto", 1, "reuse"),
        ("auto", 3, "modules"),
        ("reuse", 1, "reuse"),
        ("reuse", 3, "reuse"),
        ("modules", 1, "modules"),
        ("modules", 3, "modules"),
    ],
)
def test_several_modules_run_one_after_the_other_unless_told_otherwise(given: Any, modules: int, runs: str) -> None:
    assert MtpOptions(mtp_recurrence=given).recurrence(modules) == runs


def test_the_traits_are_those_of_modules_in_the_target(tmp_path: Path) -> None:
    traits = resolve_config(deepseek(tmp_path / "target", 2)).traits
    assert (traits.shape, traits.rows, traits.draft_distribution, traits.weights) == (
        "chain",
        "all",
        "deterministic",
        "target",
    )
    assert (traits.hidden, traits.aux_layers, traits.when_off, traits.max_tokens) == (True, (), "gap", None)


def test_mimo_reads_the_state_before_the_last_norm(tmp_path: Path) -> None:
    traits = resolve_config(model_of(tmp_path / "target", "mimo")).traits
    assert (traits.hidden, traits.aux_layers) == (False, (3,))


def test_drawn_drafts_are_soft_and_share_the_noise_where_it_is_asked_for(tmp_path: Path) -> None:
    target = deepseek(tmp_path / "target", 1)
    drawn = resolve_config(target, draft_sample_method="probabilistic")
    assert (drawn.traits.draft_distribution, drawn.traits.shares_noise, drawn.verifier) == ("soft", False, "standard")
    shared = resolve_config(target, draft_sample_method="probabilistic", rejection_sample_method="coupled")
    assert (shared.traits.shares_noise, shared.verifier) == (True, "coupled")


def test_the_hash_changes_with_the_recurrence(tmp_path: Path) -> None:
    target = deepseek(tmp_path / "target", 2)
    kinds = {resolve_config(target, mtp_recurrence=kind).compute_hash() for kind in ("auto", "reuse", "modules")}
    assert len(kinds) == 3


# What explain says


def explained(target: str, **keys: Any) -> subprocess.CompletedProcess[str]:
    config = json.dumps({"method": "mtp", **keys})
    return run_specdec("explain", "--model", target, "--speculative-config", config, "--json")


def test_explain_says_where_the_modules_are_what_k_is_and_how_the_config_is_read(tmp_path: Path) -> None:
    target = deepseek(tmp_path / "target", 2)
    done = explained(target)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    decisions = {each["key"]: (each["value"], each["reason"]) for each in said["decisions"]}
    assert said["draft"] == target
    assert decisions["model"] == (target, "MTP modules are in the target's own checkpoint")
    assert decisions[K] == (2, "n_predict of DeepSeek V3, R1, V3.1: num_nextn_predict_layers is 2")
    read = {"model_type": "deepseek_mtp", "n_predict": 2, "architectures": ["DeepSeekMTPModel"]}
    assert decisions["hf_config"] == (read, "config.json is read this way by mtp")


def test_explain_says_why_a_family_does_not_draft(tmp_path: Path) -> None:
    target = folder_of(tmp_path / "target", {**DEEPSEEK, "model_type": "nemotron_h"})
    done = explained(target)
    assert done.returncode == 2
    assert "mtp does not draft for Nemotron-H" in done.stderr
    assert "its target has recurrent layers" in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_the_plugin_loads_neither_pydantic_nor_torch_and_resolving_needs_no_torch(tmp_path: Path) -> None:
    heavy = "('pydantic', 'numpy', 'torch', 'transformers')"
    target = deepseek(tmp_path / "target", 1)
    code = f"""
import sys
import specdec_plugin_mtp.plugin
print([name for name in {heavy} if name in sys.modules])
sys.path.insert(0, {str(Path(__file__).parent)!r})
from mtp_folders import resolve_config
before = 'torch' in sys.modules
resolve_config({target!r})
print(before, [name for name in ('torch', 'transformers') if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "False []"]
