"""Bad input gives one clear error before anything runs, and leaves nothing half done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import ids_of, params, prompts, run, target

from specdec_core.errors import ConfigError, RequestError, TargetError, UnknownNameError
from specdec_engine import LLM, SamplingParams

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
CONFIGS: dict[str, tuple[Any, str]] = {
    "unknown key": ({**NGRAM, "prompt_lookup_mx": 3}, "prompt_lookup_max"),
    "wrong type": ({**NGRAM, "num_speculative_tokens": "four"}, "num_speculative_tokens"),
    "true for a number": ({**NGRAM, "num_speculative_tokens": True}, "num_speculative_tokens"),
    "k of zero": ({**NGRAM, "num_speculative_tokens": 0}, "num_speculative_tokens"),
    "negative k": ({**NGRAM, "num_speculative_tokens": -1}, "num_speculative_tokens"),
    "no k": ({"method": "ngram"}, "num_speculative_tokens"),
    "method not installed": ({"method": "telepathy", "num_speculative_tokens": 2}, "telepathy"),
    "text that is no JSON": ('{"method": "ngram", ', "JSON"),
    "a JSON list": ("[1, 2]", "list"),
    "a file that is not there": ("@nowhere.json", "nowhere.json"),
    "min above max": ({**NGRAM, "prompt_lookup_min": 5, "prompt_lookup_max": 2}, "prompt_lookup"),
    "context above the target's": ({**NGRAM, "max_model_len": 10**6}, "max_model_len"),
    "verifier not installed": ({**NGRAM, "rejection_sample_method": "hope"}, "hope"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_bad_configuration_is_refused_by_name(case: str) -> None:
    config, named = CONFIGS[case]
    with pytest.raises(ConfigError, match=named):
        LLM(hf_model=target("llama"), speculative_config=config)


def test_a_method_that_is_not_installed_is_answered_with_what_is() -> None:
    with pytest.raises(UnknownNameError) as caught:
        LLM(hf_model=target("llama"), speculative_config={"method": "ngran", "num_speculative_tokens": 2})
    assert "ngram" in caught.value.installed and "'ngram'" in str(caught.value)


def test_several_problems_come_in_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(
            hf_model=target("llama"), speculative_config={**NGRAM, "num_speculative_tokens": 0, "prompt_lookup_max": -1}
        )
    assert {problem.key for problem in caught.value.problems} >= {"num_speculative_tokens", "prompt_lookup_max"}


FOLDERS: dict[str, tuple[dict[str, str], str]] = {
    "empty": ({}, "no config.json"),
    "without weights": ({"config.json": json.dumps({"model_type": "llama"})}, "no weights"),
    "unknown model type": ({"config.json": json.dumps({"model_type": "xyz"}), "model.safetensors": ""}, "xyz"),
    "config that is no JSON": ({"config.json": "{", "model.safetensors": ""}, "config"),
    "broken weights": (
        {"config.json": json.dumps({"model_type": "llama", "num_hidden_layers": 1}), "model.safetensors": "x"},
        "cannot be loaded",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_that_is_no_model_is_refused_with_what_is_missing(case: str, tmp_path: Path) -> None:
    files, expected = FOLDERS[case]
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(TargetError, match=expected):
        LLM(str(tmp_path))


@pytest.mark.parametrize("model", [None, "/no/such/folder", "./nothing-here"])
def test_a_model_that_is_not_there_is_refused(model: str | None) -> None:
    with pytest.raises(TargetError, match="model"):
        LLM(model)


PROMPTS: dict[str, tuple[Any, str]] = {
    "empty text of ids": ([], "empty"),
    "empty ids": ([{"prompt_token_ids": []}], "empty"),
    "too long": ([5] * 600, "600 ids"),
    "as long as the context": ([5] * 512, "512"),
    "id above the vocabulary": ([5, 128], "128"),
    "negative id": ([5, -1], "-1"),
    "placeholder of an image": ([5, 10**6], "1000000"),
    "fractions": ([[0.5, 1.5]], "neither"),
    "text without a tokenizer": ("hello", "no tokenizer"),
    "a number": (7, "int"),
    "unknown keys": ({"ids": [1, 2]}, "ids"),
    "second of two is bad": ([[5, 6], [5, 999]], "prompt 1"),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_a_bad_prompt_is_refused_and_nothing_is_queued(case: str) -> None:
    prompt, expected = PROMPTS[case]
    model, text, sampling = target("llama"), prompts((9,)), params(1)
    with LLM(hf_model=model) as llm:
        if case == "empty text of ids":
            assert llm.generate(prompt, sampling[0]) == [], "no prompts, no answers"
            return
        with pytest.raises(RequestError, match=expected):
            llm.generate(prompt, SamplingParams(max_tokens=3))
        assert not llm._engine.scheduler.waiting and not llm._engine.scheduler.running
        assert ids_of(llm.generate(text, sampling)) == ids_of(run(model, text, sampling))


PARAMS: dict[str, tuple[dict[str, Any], str]] = {
    "negative temperature": ({"temperature": -0.1}, "temperature=-0.1"),
    "temperature that is no number": ({"temperature": float("nan")}, "temperature"),
    "infinite temperature": ({"temperature": float("inf")}, "temperature"),
    "no tokens": ({"max_tokens": 0}, "max_tokens=0"),
    "half a token": ({"max_tokens": 1.5}, "max_tokens"),
    "no samples": ({"n": 0}, "n=0"),
    "a seed of text": ({"seed": "x"}, "seed"),
    "stop ids of text": ({"stop_token_ids": ["x"]}, "stop_token_ids"),
}


@pytest.mark.parametrize("case", PARAMS)
def test_a_bad_sampling_parameter_is_refused_by_name(case: str) -> None:
    given, expected = PARAMS[case]
    with pytest.raises(RequestError, match=expected):
        SamplingParams(**given)


# A value of the wrong kind or size for each parameter.
WRONG: dict[str, Any] = {
    "top_p": 0.0,
    "top_k": -2,
    "min_p": 1.5,
    "stop": ["x", ""],
    "min_tokens": -1,
    "presence_penalty": 2.5,
    "frequency_penalty": float("nan"),
    "repetition_penalty": 0.0,
    "logprobs": -2,
    "prompt_logprobs": 1.5,
    "logit_bias": {3: float("inf")},
    "bad_words": ["x", []],
    "allowed_token_ids": [],
    "logits_processors": ["x"],
    "structured_outputs": {"json": "{}"},
    "include_stop_str_in_output": 1,
    "truncate_prompt_tokens": 0,
    "detokenize": None,
    "extra_args": ["specdec"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_with_the_parameters_name(name: str) -> None:
    with pytest.raises(RequestError, match=f"parameter {name}="):
        SamplingParams(**{name: WRONG[name]})


def test_parameters_that_exclude_each_other_are_refused() -> None:
    for given in ({"min_tokens": 20}, {"stop": "x", "detokenize": False}):
        with pytest.raises(RequestError, match=next(iter(given))):
            SamplingParams(**given)


@pytest.mark.parametrize(
    "name", ["max_model_len", "max_num_seqs", "kv_cache_tokens", "decode_width", "prefill_chunk_size"]
)
@pytest.mark.parametrize("value", [0, -3, 2.5, True])
def test_a_limit_that_is_no_positive_whole_number_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(TargetError, match=name):
        LLM(hf_model=target("llama"), **{name: value})


def test_options_of_a_request_are_refused_where_nothing_reads_them() -> None:
    model = target("llama")
    for config in (None, NGRAM):
        with LLM(hf_model=model, speculative_config=config) as llm:
            for extra in ({"specdec": {"depth": 3}}, {"other": 1}):
                with pytest.raises(RequestError):
                    llm.generate([5, 6], SamplingParams(extra_args=extra))


def test_numpy_prompts_and_numbers_of_params_that_do_not_match() -> None:
    with LLM(hf_model=target("llama")) as llm:
        array = np.array([5, 6, 7], np.int64)
        assert ids_of(llm.generate([array], params(1))) == ids_of(llm.generate([5, 6, 7], params(1)))
        with pytest.raises(RequestError, match=r"2 sampling params .* 1 prompt"):
            llm.generate([5, 6, 7], params(2))


def test_a_closed_engine_says_so() -> None:
    llm = LLM(hf_model=target("llama"))
    llm.close()
    llm.close()
    with pytest.raises(RequestError, match="closed"):
        llm.generate([5, 6, 7])


def test_an_error_at_load_leaves_the_callers_model_as_it_was() -> None:
    model = target("llama")
    marks = [set(module.__dict__) for module in model.modules()]
    with pytest.raises(ConfigError):
        LLM(hf_model=model, speculative_config={**NGRAM, "nope": 1})
    assert [set(module.__dict__) for module in model.modules()] == marks
    assert all(not module._forward_hooks for module in model.modules())


def test_texts_are_no_conversations() -> None:
    class Tokenizer:
        chat_template = "{{ messages }}"

    with LLM(hf_model=target("llama"), tokenizer=Tokenizer()) as llm:
        for wrong in ("hello", ["hello"], [["hello"]]):
            with pytest.raises(RequestError, match="role"):
                llm.chat(wrong)


LOADS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a path that is not there": ({"model": Path("nowhere/at/all")}, TargetError, "nowhere"),
    "a device that is none": ({"device": "teapot"}, TargetError, "teapot"),
    "a device that is not here": ({"device": "cuda:77"}, TargetError, "cuda:77"),
    "a dtype that is none": ({"dtype": "float7"}, TargetError, "float7"),
    "plugins without names": ({"plugins": "./mine.py"}, ConfigError, "mapping"),
}


@pytest.mark.parametrize("case", LOADS)
def test_a_bad_argument_of_llm_is_refused_by_name(case: str) -> None:
    arguments, kind, expected = LOADS[case]
    model = {} if "model" in arguments else {"hf_model": target("llama")}
    with pytest.raises(kind, match=expected):
        LLM(**arguments, **model)


def test_other_spellings_of_off_are_no_error() -> None:
    assert SamplingParams(top_k=-1, stop=[], logit_bias={}).temperature == 1.0


class SwapPlugin:
    """Knows that a folder with `drafter_of` in its config.json stands for a target with a drafter."""

    from specdec_core import hookimpl

    @hookimpl
    def specdec_swap_target(self, source: Any) -> Any:
        from specdec_core.sources import TargetSwap

        model = source.hf_config.get("drafter_of")
        config = {"method": "ngram", "num_speculative_tokens": 3}
        return None if model is None else TargetSwap(model=model, speculative_config=config, reason="it says so")

    @hookimpl
    def specdec_make_proposer(self) -> Any:
        raise AssertionError


def test_a_draft_checkpoint_given_as_the_model_runs_as_the_pair_it_stands_for(tmp_path: Path) -> None:
    model, folder, drafter = target("llama"), tmp_path / "target", tmp_path / "drafter"
    model.save_pretrained(folder)
    drafter.mkdir()
    (drafter / "config.json").write_text(json.dumps({"drafter_of": str(folder)}))
    (drafter / "model.safetensors").write_text("")
    text, sampling = prompts((9,)), params(1)
    with LLM(drafter, plugins={"swap": SwapPlugin()}) as llm:
        assert llm.resolved_config is not None and llm.resolved_config.method == "ngram"
        assert ids_of(llm.generate(text, sampling)) == ids_of(run(model, text, sampling))
    with pytest.raises(TargetError, match="drafter"):
        LLM(drafter)
