"""A target whose type transformers does not know is loaded as the method says; no other target, by no other method."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specdec_core import hookimpl
from specdec_core.errors import CheckStageError, TargetError
from specdec_engine import LLM, SamplingParams
from specdec_testing.stubs import Null
from specdec_testing.targets import tiny_target

KEYS = {"method": "knowing", "num_speculative_tokens": 2}
ANSWER = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "auto_map": None}


class Knowing:
    """Answers as it is told to, and keeps what it was asked."""

    def __init__(self, answer: Any = ANSWER) -> None:
        self.answer = answer
        self.asked: list[Mapping[str, Any]] = []

    @hookimpl
    def specdec_load_target_as(self, method: str, hf_config: Mapping[str, Any]) -> Any:
        assert method == "knowing"
        self.asked.append(hf_config)
        return self.answer

    @hookimpl
    def specdec_make_proposer(self) -> Any:
        return Null()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_target("llama").save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, **keys: Any) -> dict[str, Any]:
    config = {**json.loads((folder / "config.json").read_text()), **keys}
    (folder / "config.json").write_text(json.dumps(config))
    return config


def text(llm: LLM) -> list[int]:
    (result,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], SamplingParams(temperature=0.0, max_tokens=8))
    return list(result.outputs[0].token_ids)


def test_it_is_loaded_by_the_methods_keys_and_says_the_same(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with LLM(hf_model=tiny_target("llama")) as plain:
        wanted = text(plain)
    config = rewrite(folder, model_type="unheard", auto_map={"AutoModelForCausalLM": "code.Class"})
    plugin = Knowing()
    with caplog.at_level(logging.WARNING, "specdec_engine"):
        with LLM(folder, KEYS, plugins={"knowing": plugin}, strict=True) as llm:
            assert text(llm) == wanted
    assert plugin.asked == [config]
    message = f"transformers does not know model_type 'unheard' of {str(folder)!r}; it is loaded as 'llama', as knowing"
    assert message in caplog.text


def test_a_target_of_a_known_type_is_not_asked_about(folder: Path) -> None:
    plugin = Knowing()
    with LLM(folder, KEYS, plugins={"knowing": plugin}, strict=True) as llm:
        assert text(llm)
    rewrite(folder, num_attention_heads="many")
    with pytest.raises(TargetError):
        LLM(folder, KEYS, plugins={"knowing": plugin})
    assert plugin.asked == []


@pytest.mark.parametrize("answer", [None, {}])
def test_a_method_that_does_not_know_it_either_leaves_the_target_refused(answer: Any, folder: Path) -> None:
    rewrite(folder, model_type="unheard")
    with pytest.raises(TargetError, match="unheard"):
        LLM(folder, KEYS, plugins={"knowing": Knowing(answer)})


@pytest.mark.parametrize("config", [None, {"method": "ngram", "num_speculative_tokens": 2}])
def test_without_a_method_that_knows_it_every_installed_one_is_asked(config: Any, folder: Path) -> None:
    with LLM(folder) as plain:
        wanted = text(plain)
    rewrite(folder, model_type="unheard")
    plugin = Knowing()
    with LLM(folder, config, plugins={"knowing": plugin}) as llm:
        assert text(llm) == wanted
    assert len(plugin.asked) == 1


def test_an_answer_that_is_no_mapping_is_the_plugins_error(folder: Path) -> None:
    rewrite(folder, model_type="unheard")
    with pytest.raises(CheckStageError, match="specdec_load_target_as returned str, not a mapping"):
        LLM(folder, KEYS, plugins={"knowing": Knowing("llama")})
