"""Faults that users of other engines reported about MTP: each stays away, by its row in docs/bug-reports.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from mtp_folders import DRAFTING, LLAMA, deepseek, folder_of, model_of, resolve_config

from specdec_core.errors import ConfigError, ConfigWarning


def test_a_checkpoint_that_does_not_fit_the_named_method_is_said_to_be_so_with_both_fixes_row_66(
    tmp_path: Path,
) -> None:
    target = deepseek(tmp_path / "target", 1)
    plain = folder_of(tmp_path / "plain", LLAMA)
    with pytest.raises(ConfigError, match=r"model_type 'llama'.* and the method is mtp") as caught:
        resolve_config(target, model=plain)
    assert "leave model out for the target's own modules, or name the method" in str(caught.value)


@pytest.mark.parametrize("kind", [None, "eagle"])
def test_a_config_that_no_library_knows_is_read_as_plain_json_row_70(kind: str | None, tmp_path: Path) -> None:
    settings = {key: value for key, value in LLAMA.items() if key != "model_type"}
    target = deepseek(tmp_path / "target", 1)
    odd = folder_of(tmp_path / "odd", settings if kind is None else {**settings, "model_type": kind})
    with pytest.raises(ConfigError, match=f"model_type {kind or ''!r}, architectures"):
        resolve_config(target, model=odd)


@pytest.mark.parametrize("modules", [1, 3])
def test_k_defaults_to_the_number_of_modules_row_71(modules: int, tmp_path: Path) -> None:
    assert resolve_config(deepseek(tmp_path / "target", modules)).num_speculative_tokens == modules


def test_a_module_is_used_again_with_a_warning_only_row_73(tmp_path: Path) -> None:
    target = model_of(tmp_path / "target", "deepseek")
    with pytest.warns(ConfigWarning, match="3 is above the n_predict of mtp, 1: its modules are used 3 times"):
        assert resolve_config(target, num_speculative_tokens=3).num_speculative_tokens == 3


def test_a_target_without_keys_of_other_families_is_settled_row_79(tmp_path: Path) -> None:
    resolved = resolve_config(model_of(tmp_path / "target", "ernie"))
    assert resolved.draft is not None
    assert not {"image_token_index", "draft_vocab_size", "quantization_config"} & set(resolved.draft.hf_config)


@pytest.mark.parametrize("family", DRAFTING)
def test_an_export_without_the_modules_tensors_is_refused_by_their_names_row_80(family: str, tmp_path: Path) -> None:
    settings, names = DRAFTING[family]
    target = folder_of(tmp_path / "target", settings)
    with pytest.raises(ConfigError, match="lacks tensors of its MTP modules") as caught:
        resolve_config(target)
    parts = [name.removeprefix("model.").removesuffix(".weight").removesuffix(".m") for name in names]
    assert all(part.removesuffix(".input_layernorm") in str(caught.value) for part in parts)
