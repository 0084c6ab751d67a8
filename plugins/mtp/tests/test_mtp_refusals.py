"""What is detected, and what is refused: by the checkpoint and its tensors, with what was found and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mtp_folders import DRAFTING, LLAMA, config, deepseek, folder_of, model_of, resolve_config
from mtp_rows import ROWS

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import DraftSource, TargetInfo
from specdec_plugin_mtp.families import FAMILIES
from specdec_plugin_mtp.overriding import family_of
from specdec_plugin_mtp.plugin import mtp


def test_modules_with_positions_of_an_unknown_type_are_refused_before_weights_are_read(tmp_path: Path) -> None:
    folder = model_of(tmp_path / "mimo", "mimo", rope_scaling={"type": "spiral"})
    with pytest.raises(ConfigError, match=r"no MTP modules can be made.*type 'spiral'.*known are default, linear"):
        resolve_config(folder)


# Detection


@pytest.mark.parametrize("family", DRAFTING)
def test_a_checkpoint_with_its_familys_modules_is_claimed_by_config_and_tensors(family: str, tmp_path: Path) -> None:
    claim = mtp.specdec_detect_method(draft=DraftSource(model_of(tmp_path / "plain", family)))
    assert claim is not None
    assert (claim.method, claim.strength) == ("mtp", "likely")
    kind, number, tensors = claim.evidence
    assert kind == f"model_type {DRAFTING[family][0]['model_type']!r}"
    assert number in ("num_nextn_predict_layers 1", "mtp_num_hidden_layers 1", "the family's default 1")
    assert tensors.removeprefix("tensors of ") in DRAFTING[family][1][0]


@pytest.mark.parametrize("family", DRAFTING)
def test_a_model_of_the_family_without_the_tensors_is_not_claimed(family: str, tmp_path: Path) -> None:
    settings, names = DRAFTING[family]
    for dropped in names:
        folder = folder_of(tmp_path / "mtp-model", settings, [name for name in names if name != dropped])
        assert mtp.specdec_detect_method(draft=DraftSource(folder)) is None


def test_a_config_that_counts_no_modules_is_not_claimed_whatever_tensors_there_are(tmp_path: Path) -> None:
    for number in (0, None, "1", True):
        folder = model_of(tmp_path / "model", "deepseek", num_nextn_predict_layers=number)
        assert mtp.specdec_detect_method(draft=DraftSource(folder)) is None


def test_other_checkpoints_are_not_claimed(tmp_path: Path) -> None:
    names = DRAFTING["deepseek"][1]
    eagle = config("deepseek_v3", "MistralLarge3ForCausalLM", num_nextn_predict_layers=1)
    nameless = {key: value for key, value in LLAMA.items() if key not in ("model_type", "architectures")}
    for settings in (LLAMA, nameless, eagle, config("eagle", "x", num_nextn_predict_layers=1)):
        folder = folder_of(tmp_path / "deepseek_mtp", settings, names)
        assert mtp.specdec_detect_method(draft=DraftSource(folder)) is None


def test_a_gemma_assistant_is_claimed_by_its_config_as_it_is_nothing_else(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "x", config("gemma4_assistant", "Gemma4AssistantForCausalLM"))
    claim = mtp.specdec_detect_method(draft=DraftSource(folder))
    assert claim is not None
    assert claim.strength == "certain"


def test_a_checkpoint_whose_tensors_cannot_be_read_is_nobodys(tmp_path: Path) -> None:
    folder = Path(model_of(tmp_path / "x", "deepseek"))
    (folder / "model.safetensors").write_bytes(b"not a file of tensors")
    assert mtp.specdec_detect_method(draft=DraftSource(str(folder))) is None


def test_a_checkpoint_given_without_a_method_is_recognised(tmp_path: Path) -> None:
    target = deepseek(tmp_path / "target", 2)
    registry = Registry(Catalog.discover(), strict=True)
    resolved = resolve({"model": target}, TargetInfo.from_folder(target), registry)
    assert (resolved.method, resolved.num_speculative_tokens) == ("mtp", 2)


def test_a_method_that_was_named_is_never_turned_into_mtp(tmp_path: Path) -> None:
    """vLLM makes mtp of any draft of such a family; here the checkpoint is the named method's, config and all."""
    target = deepseek(tmp_path / "target", 2)

    class Other:
        from specdec_core.markers import hookimpl

        @hookimpl
        def specdec_make_proposer(self) -> None: ...

        @hookimpl
        def specdec_method_traits(self) -> Any:
            from specdec_core.traits import MethodTraits

            return MethodTraits(weights="own")

    registry = Registry(Catalog.discover().with_local({"other": Other()}), strict=True)
    keys = {"method": "other", "model": target, "num_speculative_tokens": 2}
    resolved = resolve(keys, TargetInfo.from_folder(target), registry)
    assert resolved.method == "other"
    assert resolved.draft is not None
    assert resolved.draft.hf_config == json.loads(Path(target, "config.json").read_text())


# Refusals


def refused(target: str, **keys: Any) -> dict[str, str]:
    """Return the problems by key."""
    with pytest.raises(ConfigError) as caught:
        resolve_config(target, **{"num_speculative_tokens": 1, **keys})
    return {problem.key: str(problem) for problem in caught.value.problems}


def test_a_module_whose_tensors_are_missing_is_refused_by_their_names(tmp_path: Path) -> None:
    settings, names = DRAFTING["deepseek"]
    target = folder_of(tmp_path / "target", settings, names[:1])
    (problem,) = refused(target).values()
    assert "lacks tensors of its MTP modules: layers.3.hnorm, layers.3.eh_proj" in problem


def test_modules_that_do_not_run_need_not_be_there(tmp_path: Path) -> None:
    target = model_of(tmp_path / "target", "deepseek", num_nextn_predict_layers=2)
    assert "layers.4.enorm, layers.4.hnorm, layers.4.eh_proj" in refused(target)["model"]
    resolved = resolve_config(target, mtp_recurrence="reuse")
    assert isinstance(resolved, ResolvedConfig)


@pytest.mark.parametrize("other", ["model.mtp.norm_scale.weight", "model.old_mtp.norm.weight", "mtp.norms.0"])
def test_a_tensor_that_only_looks_like_a_modules_is_none(other: str, tmp_path: Path) -> None:
    settings, names = DRAFTING["longcat"]
    target = folder_of(tmp_path / "target", settings, [other, *names[1:]])
    assert refused(target)["model"].partition(" (")[0].endswith("of its MTP modules: mtp.norm")


def test_a_checkpoint_of_no_family_is_refused_with_its_type_and_what_to_do(tmp_path: Path) -> None:
    target = deepseek(tmp_path / "target", 1)
    plain = folder_of(tmp_path / "mtp", LLAMA)
    problem = refused(target, model=plain)["model"]
    assert "of no family with MTP modules (model_type 'llama', architectures ['LlamaForCausalLM'])" in problem
    assert "leave model out for the target's own modules, or name the method that this checkpoint is for" in problem
    assert "name another method" in refused(plain)["model"]


def test_a_config_without_model_type_is_read_as_plain_json_and_refused(tmp_path: Path) -> None:
    target = deepseek(tmp_path / "target", 1)
    plain = folder_of(tmp_path / "x", {"hidden_size": 8})
    assert "model_type '', architectures []" in refused(target, model=plain)["model"]


@pytest.mark.parametrize("number", [0, -1, "1", True, 1.5])
def test_a_number_that_cannot_be_is_refused(number: Any, tmp_path: Path) -> None:
    target = model_of(tmp_path / "target", "deepseek", num_nextn_predict_layers=number)
    assert f"num_nextn_predict_layers of {target!r} is {number!r}" in refused(target)["model"]


def test_modules_for_another_target_are_refused_with_both_sizes(tmp_path: Path) -> None:
    target = deepseek(tmp_path / "target", 1)
    other = deepseek(tmp_path / "other", 1, layers=5, hidden_size=16, vocab_size=40)
    problem = refused(target, model=other)["model"]
    assert "hidden size 16, the target's 8; vocabulary 40, the target's 32; layers 5, the target's 3" in problem


@pytest.mark.parametrize("row", [row for row in ROWS if row[2] is not None], ids=lambda row: row[0])
def test_a_family_of_which_only_the_config_is_read_is_refused_with_the_reason(row: Any, tmp_path: Path) -> None:
    family = family_of(row[1])
    if family is None or not family.why_not:
        return
    target = folder_of(tmp_path / "target", {**LLAMA, **row[1]})
    problem = refused(target)["method"]
    assert f"mtp does not draft for {family.title}" in problem
    assert family.why_not in problem


@pytest.mark.parametrize("row", [row for row in ROWS if row[2] is not None], ids=lambda row: row[0])
def test_a_host_with_modules_of_its_own_gets_every_family_that_it_has_a_class_for(row: Any, tmp_path: Path) -> None:
    family = family_of(row[1])
    if family is None or not family.why_not:
        return
    target = TargetInfo.from_folder(folder_of(tmp_path / "target", {**LLAMA, **row[1]}, family.modules))
    keys = {"method": "mtp", "num_speculative_tokens": 1}

    def asked() -> ResolvedConfig:
        return resolve(keys, target, Registry(Catalog.discover()), host_has_methods=True)

    if family.title in ("Mistral Large 3", "DeepSeek V4.1"):
        with pytest.raises(ConfigError, match=family.why_not):
            asked()
    else:
        (problem,) = asked().drafter_problems
        assert family.why_not in problem.message


def test_eleven_families_draft_and_every_other_one_says_why_not() -> None:
    drafting = [family.title for family in FAMILIES if not family.why_not]
    assert drafting == [
        "speculators' type mtp, a layer of Qwen2",
        "speculators' type mtp, a layer of Qwen3",
        "DeepSeek V3, R1, V3.1",
        "MiMo-7B",
        "GLM-4.5, 4.6, 4.7",
        "Ernie 4.5 MoE",
        "Qwen3-Next",
        "Qwen3.5",
        "Qwen3.5 MoE",
        "LongCat-Flash",
        "Gemma 4 assistants",
    ]
    drafting_inside = [family for family in FAMILIES if not family.why_not and family.reads != "keys"]
    assert all(family.modules for family in drafting_inside)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("deepseek_v3", "MistralLarge3ForCausalLM", "it is an EAGLE head, whatever its model_type"),
        ("nemotron_h", "NemotronHForCausalLM", "recurrent layers"),
        ("pangu_ultra_moe", "PanguUltraMoEForCausalLM", "transformers has no class for its target"),
    ],
)
def test_the_reason_is_the_familys_own(kind: str, name: str, words: str, tmp_path: Path) -> None:
    target = folder_of(tmp_path / "target", config(kind, name, num_nextn_predict_layers=1))
    assert words in refused(target)["method"]


def test_sharing_indices_is_refused_by_name_and_not_sharing_them_is_what_happens(tmp_path: Path) -> None:
    target = deepseek(tmp_path / "target", 1)
    problem = refused(target, index_share_for_mtp_iteration=True)["index_share_for_mtp_iteration"]
    assert "has indices to share" in problem
    resolve_config(target, index_share_for_mtp_iteration=False)
    assert "got 'yes'" in refused(target, index_share_for_mtp_iteration="yes")["index_share_for_mtp_iteration"]


def test_a_recurrence_that_there_is_not_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    target = deepseek(tmp_path / "target", 1)
    assert "'auto', 'reuse' or 'modules'" in refused(target, mtp_recurrence="loop")["mtp_recurrence"]
