"""What a script written for vLLM passes: honoured, accepted where it changes nothing, or refused with the reason."""

from __future__ import annotations

import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from words import model_folder, tiny_tokenizer

from specdec_core.config.keys import Refused
from specdec_core.errors import ConfigError, RequestError, TargetError
from specdec_engine import LLM, SamplingParams
from specdec_engine.memory.kv_plan import arena_bytes
from specdec_engine.vllm_api.arguments import ARGUMENTS, CALL_ARGUMENTS, METHODS, Honoured, Missing, NoEffect
from specdec_testing.targets import tiny_target

PARAMETERS = [p.name for p in inspect.signature(LLM.__init__).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
RENAMED = {
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "gpu_memory_utilization",
    "spec_method",
    "spec_model",
    "spec_tokens",
}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_target("llama", vocab_size=len(tiny_tokenizer()))


def test_what_is_a_parameter_here_is_honoured_and_nothing_else() -> None:
    honoured = {name for name, known in ARGUMENTS.items() if isinstance(known, Honoured)}
    assert honoured - RENAMED == set(ARGUMENTS) & set(PARAMETERS)


def test_every_value_that_is_the_default_here_is_accepted(model: Any) -> None:
    for position in (0, -1):
        harmless = {name: k.harmless[position] for name, k in ARGUMENTS.items() if isinstance(k, Refused)}
        anything = {name: object() for name, known in ARGUMENTS.items() if isinstance(known, NoEffect)}
        with LLM(hf_model=model, **harmless, **anything) as llm:
            assert llm.max_num_seqs == 64


@pytest.mark.parametrize("name", [name for name, known in ARGUMENTS.items() if isinstance(known, Refused)])
def test_every_other_value_is_refused_with_the_reason(name: str, model: Any) -> None:
    known = ARGUMENTS[name]
    assert isinstance(known, Refused)
    with pytest.raises(TargetError) as caught:
        LLM(hf_model=model, **{name: "something else"})
    assert f"{name}='something else' cannot be honoured: {known.reason} ({known.step})" in str(caught.value)


def test_all_that_is_wrong_is_in_one_error_with_the_nearest_names(model: Any) -> None:
    with pytest.raises(TargetError) as caught:
        LLM(
            hf_model=model,
            tensor_parallel_size=2,
            max_modl_len=5,
            gpu_memory_utilisation=0.5,
            gpu_memory_utilization=1.5,
            max_num_batched_tokens=8,
            prefill_chunk_size=8,
            kv_cache_memory_bytes=-1,
        )
    said = str(caught.value)
    for part in (
        "tensor_parallel_size=2 cannot be honoured: there is one process and one device",
        "unknown argument 'max_modl_len'; did you mean 'max_model_len'?",
        "unknown argument 'gpu_memory_utilisation'; did you mean 'gpu_memory_utilization'?",
        "gpu_memory_utilization=1.5 is not a number above 0",
        "max_num_batched_tokens and prefill_chunk_size are both given",
        "kv_cache_memory_bytes=-1 is not a whole number",
    ):
        assert part in said


def test_sizes_under_vllms_names_are_those_of_the_engine(model: Any) -> None:
    with LLM(hf_model=model, max_num_batched_tokens=48, max_num_seqs=None, seed=None) as llm:
        assert (llm._engine.target.prefill_chunk_size, llm.max_num_seqs) == (48, 64)
    tokens = []
    for count in (64 * 2**10, 128 * 2**10):
        with LLM(hf_model=model, kv_cache_memory_bytes=count) as llm:
            tokens.append(llm.kv_cache_tokens)
    assert 0 < tokens[0] < 2 * tokens[0] == tokens[1] < 64 * llm.max_model_len


def test_the_speculative_keys_may_be_arguments_of_their_own(model: Any) -> None:
    with LLM(hf_model=model, spec_method="ngram", spec_tokens=3) as llm:
        assert llm.resolved_config is not None
        assert (llm.resolved_config.method, llm.resolved_config.num_speculative_tokens) == ("ngram", 3)
    with pytest.raises(ConfigError, match="spec_tokens has it too"):
        LLM(hf_model=model, speculative_config={"method": "ngram", "num_speculative_tokens": 4}, spec_tokens=3)


def test_a_bound_on_a_gpus_memory_bounds_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    giga = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * giga, 80 * giga))
    gpu = torch.device("cuda")

    def room(share: float | None) -> float:
        return arena_bytes(60 * giga, gpu, share) / giga

    assert room(None) == pytest.approx(24)
    assert room(0.9) == pytest.approx(24)  # 52 are left, and the engine takes less
    assert room(0.3) == pytest.approx(4)  # 20 of 24 are in use
    with pytest.raises(TargetError, match=r"20\.0 of 80\.0 GiB are in use"):
        room(0.2)


@pytest.mark.parametrize("method", ["generate", "chat"])
def test_arguments_of_a_call_are_refused_unless_they_are_none(method: str, model: Any) -> None:
    with LLM(hf_model=model, tokenizer=tiny_tokenizer()) as llm:
        texts: Any = "a cat" if method == "generate" else [{"role": "user", "content": "a cat"}]
        call = getattr(llm, method)
        params = SamplingParams(max_tokens=1)
        assert call(texts, params, **{name: known.harmless[0] for name, known in CALL_ARGUMENTS.items()})
        for name in CALL_ARGUMENTS:
            with pytest.raises(RequestError, match=f"{method}: {name}=7 cannot be honoured"):
                call(texts, params, **{name: 7})
        with pytest.raises(RequestError, match="no argument 'sampling_parms'; did you mean 'sampling_params'"):
            call(texts, sampling_parms=params)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_vllm_is_there_or_says_why_not(name: str) -> None:
    known = METHODS[name]
    llm = object.__new__(LLM)
    assert hasattr(llm, name) is isinstance(known, Honoured)
    if isinstance(known, Missing):
        with pytest.raises(AttributeError) as caught:
            getattr(llm, name)
        assert str(caught.value).endswith(known.reason)


def test_methods_that_need_no_engine_answer(model: Any) -> None:
    tokenizer = tiny_tokenizer()
    with LLM(hf_model=model, tokenizer=tokenizer) as llm:
        assert llm.get_tokenizer() is tokenizer
        assert llm.apply_model(lambda module: type(module).__name__) == ["LlamaForCausalLM"]
        assert (llm.get_world_size(), llm.reset_prefix_cache()) == (1, True)
        assert llm.get_default_sampling_params() == SamplingParams()
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            llm.nonsense  # noqa: B018


def test_a_tokenizer_by_name_of_its_folder(model: Any, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    for name in (tmp_path / "tokenizer", str(tmp_path / "tokenizer")):
        with LLM(hf_model=model, tokenizer=name, tokenizer_mode="hf") as llm:
            assert (
                llm.generate("the cat", SamplingParams(max_tokens=1))[0].prompt_token_ids
                == tokenizer("the cat")["input_ids"]
            )
    with pytest.raises(TargetError, match="there is no such folder"):
        LLM(hf_model=model, tokenizer="./nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TargetError, match=r"the folder has none of tokenizer\.json"):
        LLM(hf_model=model, tokenizer=tmp_path / "empty")
    with pytest.raises(TargetError, match="tokenizer_revision='v1' is of a hub id"):
        LLM(hf_model=model, tokenizer=tmp_path / "tokenizer", tokenizer_revision="v1")
    with pytest.raises(TargetError, match="tokenizer_mode='mistral' is none of"):
        LLM(hf_model=model, tokenizer=tmp_path / "tokenizer", tokenizer_mode="mistral")


def test_a_broken_tokenizer_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(TargetError, match=r"has a tokenizer \(tokenizer\.json.*\) that cannot be read") as caught:
        LLM(folder)
    assert "skip_tokenizer_init=True" in str(caught.value)
    with LLM(folder, skip_tokenizer_init=True) as llm:
        assert llm.get_tokenizer() is None
        with pytest.raises(RequestError, match="no tokenizer"):
            llm.generate("text")
    with LLM(folder, tokenizer=tiny_tokenizer()) as llm:
        assert llm.get_tokenizer() is not None


@pytest.mark.parametrize(
    ("package", "config", "files"),
    [
        ("sentencepiece", {"tokenizer_class": "LlamaTokenizer"}, {"tokenizer.model": "\0"}),
        (
            "fugashi",
            {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"},
            {"vocab.txt": "[UNK]"},
        ),
    ],
)
def test_the_package_that_a_tokenizer_needs_is_named(
    package: str, config: dict[str, str], files: dict[str, str], tmp_path: Path
) -> None:
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    folder = model_folder(tmp_path / "model")
    for name in ("tokenizer.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)
    for name, text in {**files, "tokenizer_config.json": json.dumps(config)}.items():
        (folder / name).write_text(text)
    with pytest.raises(TargetError, match=rf"needs the package {package}: .*Next: pip install {package};"):
        LLM(folder)


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)
    with LLM(folder) as llm:
        assert llm.get_tokenizer() is None
