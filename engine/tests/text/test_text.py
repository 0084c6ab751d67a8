"""From ids to text: what was shown is never taken back, and at the end it is the text of all ids."""

from __future__ import annotations

import itertools
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from runs import assert_grows, run
from words import TEMPLATE, fallback_tokenizer, spaced_tokenizer, tiny_tokenizer

from specdec_core.errors import RequestError
from specdec_engine import LLM, SamplingParams
from specdec_engine.outputs import CompletionOutput, RequestOutput
from specdec_engine.text.stream import TextStream
from specdec_testing.stubs import Fixed, Garbage, Perfect, stub_plugin
from specdec_testing.targets import tiny_target

TEXTS = (
    "the cat sat on the mat",
    "naïve façade, 日本語のテキスト and 한국어",
    "👩‍👩‍👧‍👦 families 🇯🇵 flags ✈️",
    "e\u0301 combining, \u200bzero width,\ttabs\n\nlines  two  spaces ",
    " leading space",
    "ж",
    "don 't . , ! ? n't 's",
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


def shown(tokenizer: Any, ids: list[int], cuts: list[int], params: SamplingParams | None = None) -> list[str]:
    """Every text that a stream shows while ids arrive in pieces that end at `cuts`."""
    stream = TextStream(tokenizer, params or SamplingParams())
    return [stream.update(ids[:stop], finished=stop == len(ids)) for stop in [*cuts, len(ids)]]


def random_cuts(rng: np.random.Generator, count: int) -> list[int]:
    return sorted(rng.choice(np.arange(1, count), min(count - 1, int(rng.integers(0, 12))), replace=False).tolist())


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_arrives_in_pieces_is_the_text(text: str, tokenizer: Any) -> None:
    ids = tokenizer(text)["input_ids"]
    rng = np.random.default_rng(1)
    for cuts in [list(range(1, len(ids)))] + [random_cuts(rng, len(ids)) for _ in range(40)]:
        texts = shown(tokenizer, ids, cuts)
        assert_grows(texts)
        assert texts[-1] == text


def test_a_character_is_shown_when_its_last_byte_is_there(tokenizer: Any) -> None:
    ids = tokenizer("a👋b")["input_ids"]
    assert len(ids) == 6, "the wave is four ids"
    assert shown(tokenizer, ids, [1, 2, 3, 4, 5]) == ["a", "a", "a", "a", "a👋", "a👋b"]


def test_a_block_that_ends_inside_a_character_shows_what_is_complete(tokenizer: Any) -> None:
    ids = tokenizer("the cat 日本👋 sat")["input_ids"]
    for size in range(1, len(ids)):
        cuts = [*range(size, len(ids), size)]
        for cut, text in zip(cuts, shown(tokenizer, ids, cuts), strict=False):
            assert text == tokenizer.decode(ids[:cut]).rstrip("\ufffd")


def test_runs_of_bytes_that_vanish_while_incomplete_are_shown_character_by_character() -> None:
    tokenizer, text = fallback_tokenizer(), "ab 👋日👋🏽é日本 👩‍👩‍👧‍👦 c日本日本日本h"
    ids = tokenizer(text)["input_ids"]
    rng = np.random.default_rng(4)
    for cuts in [list(range(1, len(ids)))] + [random_cuts(rng, len(ids)) for _ in range(40)]:
        texts = shown(tokenizer, ids, cuts)
        assert_grows(texts)
        assert texts[-1] == text
        assert len(set(texts)) > len(cuts) / 4


def test_endless_bytes_that_are_no_text_cost_no_more_per_id_and_are_shown_late(tokenizer: Any) -> None:
    byte = tokenizer("é")["input_ids"][-1]  # one that no character starts with
    decoded: list[int] = []
    stream = TextStream(tokenizer, SamplingParams())
    kept, stream._decode = stream._decode, lambda ids: decoded.append(len(ids)) or kept(ids)  # type: ignore
    ids = [byte] * 400
    texts = [stream.update(ids[:n], finished=n == 400) for n in range(1, 401)]
    assert_grows(texts)
    assert texts[-1] == "\ufffd" * 400
    assert texts[299].count("\ufffd") > 200
    assert max(decoded) < 100


def test_random_ids_that_are_no_text_still_grow_and_end_as_the_decoded_whole(tokenizer: Any) -> None:
    rng = np.random.default_rng(2)
    for _ in range(400):
        ids = rng.integers(0, len(tokenizer), int(rng.integers(2, 40))).tolist()
        texts = shown(tokenizer, ids, random_cuts(rng, len(ids)))
        assert_grows(texts)
        assert texts[-1] == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_a_tokenizer_that_drops_the_first_space_of_a_text_keeps_all_others() -> None:
    spaced, text = spaced_tokenizer(), "the cat sat on the mat and a hat and the mat"
    ids = spaced(text)["input_ids"]
    rng = np.random.default_rng(3)
    for cuts in [list(range(1, len(ids)))] + [random_cuts(rng, len(ids)) for _ in range(20)]:
        texts = shown(spaced, ids, cuts)
        assert_grows(texts)
        assert texts[-1] == text


def test_asking_again_without_new_ids_changes_nothing(tokenizer: Any) -> None:
    stream = TextStream(tokenizer, SamplingParams())
    ids = tokenizer("hat ")["input_ids"]
    assert stream.update(ids, finished=False) == stream.update(ids, finished=False) == "hat "
    ids += tokenizer("日")["input_ids"][:-1]
    assert stream.update(ids, finished=False) == stream.update(ids, finished=False) == "hat "


def test_special_tokens_are_left_out_or_kept(tokenizer: Any) -> None:
    ids = [*tokenizer("cat")["input_ids"], tokenizer.convert_tokens_to_ids("<user>"), *tokenizer("hat")["input_ids"]]
    for skip, expected in ((True, "cathat"), (False, "cat<user>hat")):
        params = SamplingParams(skip_special_tokens=skip)
        texts = shown(tokenizer, ids, list(range(1, len(ids))), params)
        assert_grows(texts)
        assert texts[-1] == expected


def test_without_detokenizing_or_without_a_tokenizer_there_is_no_text(tokenizer: Any) -> None:
    assert shown(tokenizer, [70, 71], [1], SamplingParams(detokenize=False)) == ["", ""]
    assert shown(None, [70, 71], [1]) == ["", ""]


@pytest.mark.parametrize("skip", [True, False])
def test_what_stops_a_text_is_no_part_of_it_and_stays_among_the_ids(skip: bool, tokenizer: Any) -> None:
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    common = {"temperature": 0.0, "skip_special_tokens": skip}
    plain = run(model, ["the cat"], SamplingParams(max_tokens=12, **common), tokenizer=tokenizer)[0].outputs[0]
    stop = next(token for i, token in enumerate(plain.token_ids) if i > 3 and token not in plain.token_ids[:i])
    at = plain.token_ids.index(stop)
    expected = tokenizer.decode(plain.token_ids[:at], skip_special_tokens=skip)
    for stub in (None, Perfect.of_run([tokenizer("the cat")["input_ids"]], [plain_result(plain)])):
        by_id = run(model, ["the cat"], SamplingParams(stop_token_ids=[stop], **common), stub, tokenizer=tokenizer)
        model.config.eos_token_id = stop
        by_eos = run(model, ["the cat"], SamplingParams(**common), stub, tokenizer=tokenizer)
        model.config.eos_token_id = None
        for result, reason in ((by_id, stop), (by_eos, None)):
            output = result[0].outputs[0]
            assert output.token_ids == plain.token_ids[: at + 1]
            assert (output.finish_reason, output.stop_reason) == ("stop", reason)
            assert output.text == expected


def plain_result(completion: CompletionOutput) -> Any:
    class Result:
        outputs = (completion,)

    return Result


def test_an_answer_that_length_cuts_keeps_its_last_id_in_the_text(tokenizer: Any) -> None:
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    output = run(model, ["a"], SamplingParams(temperature=0.0, max_tokens=9), tokenizer=tokenizer)[0].outputs[0]
    assert output.text == tokenizer.decode(output.token_ids, skip_special_tokens=True)


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_streams_grow_by_ids_and_text_and_end_as_generate_does(temperature: float, tokenizer: Any) -> None:
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    prompts = ["the cat", "日本", "a hat"]
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=40, n=1 + i % 2) for i in range(3)]
    whole = run(model, prompts, params, tokenizer=tokenizer)
    config = {"method": "stub", "num_speculative_tokens": 4}
    right = Perfect.of_run([tokenizer(p)["input_ids"] for p in prompts], whole)
    for stub in (right, Garbage(len(tokenizer)), Fixed([80, 81])):
        with LLM(
            hf_model=model, tokenizer=tokenizer, speculative_config=config, plugins={"stub": stub_plugin(stub)}
        ) as llm:
            pictures: dict[str, list[RequestOutput]] = {}
            for output in llm.stream(prompts, params):
                pictures.setdefault(output.request_id, []).append(output)
        assert sorted(pictures) == ["0", "1", "2"]
        for seen, expected in zip((pictures[name] for name in "012"), whole, strict=True):
            assert [picture.finished for picture in seen] == [False] * (len(seen) - 1) + [True]
            for sample, last in enumerate(expected.outputs):
                texts = [picture.outputs[sample].text for picture in seen]
                ids = [picture.outputs[sample].token_ids for picture in seen]
                assert_grows(texts)
                assert all(later[: len(early)] == early for early, later in itertools.pairwise(ids))
                assert (texts[-1], ids[-1]) == (last.text, last.token_ids)
                assert last.text == tokenizer.decode(last.token_ids, skip_special_tokens=True)
    assert len(pictures["0"]) <= 40


def test_pictures_of_a_stream_keep_what_they_showed(tokenizer: Any) -> None:
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    with LLM(hf_model=model, tokenizer=tokenizer) as llm:
        pictures = list(llm.stream("the cat", SamplingParams(temperature=0.0, max_tokens=5)))
    assert [len(picture.outputs[0].token_ids) for picture in pictures] == [1, 2, 3, 4, 5]
    assert [picture.outputs[0].finish_reason for picture in pictures] == [None] * 4 + ["length"]
    assert [picture.metrics.steps for picture in pictures] == [0, 1, 2, 3, 4]


def test_outputs_have_the_names_and_shapes_of_vllm(tokenizer: Any) -> None:
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=4, n=2)
    (result,) = run(model, ["the cat"], params, tokenizer=tokenizer)
    assert {"request_id", "prompt", "prompt_token_ids", "outputs", "finished"} <= {f.name for f in fields(result)}
    assert result.prompt == "the cat"
    assert result.prompt_token_ids == tokenizer("the cat")["input_ids"]
    assert type(result.request_id) is str
    assert result.finished is True
    names = {"index", "text", "token_ids", "cumulative_logprob", "logprobs", "finish_reason", "stop_reason"}
    for index, output in enumerate(result.outputs):
        assert names <= {f.name for f in fields(output)}
        assert (output.index, output.finish_reason, output.stop_reason) == (index, "length", None)
        assert output.finished()
        assert all(type(token) is int for token in output.token_ids)
    by_ids = run(model, [{"prompt_token_ids": tokenizer("the cat")["input_ids"]}], params, tokenizer=tokenizer)[0]
    assert by_ids.prompt is None
    assert [output.text for output in by_ids.outputs] == [output.text for output in result.outputs]


def test_prompts_may_be_text_or_ids_one_or_many(tokenizer: Any) -> None:
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    params = SamplingParams(temperature=0.0, max_tokens=6)
    ids = tokenizer("a hat")["input_ids"]
    forms: list[Any] = ["a hat", ["a hat"], ids, [ids], {"prompt": "a hat"}, [{"prompt_token_ids": ids}]]
    with LLM(hf_model=model, tokenizer=tokenizer) as llm:
        answers = [llm.generate(form, params) for form in forms]
        mixed = llm.generate(["a hat", {"prompt_token_ids": ids}], params)
    texts = [[result.outputs[0].text for result in answer] for answer in answers]
    assert all(len(text) == 1 and text == texts[0] for text in texts)
    assert [result.outputs[0].text for result in mixed] == texts[0] * 2


@pytest.mark.parametrize(("count", "kept"), [(None, 60), (3, 3), (60, 60), (100, 60), (-1, 31)])
def test_a_prompt_is_cut_to_its_last_ids_if_asked(count: int | None, kept: int, tokenizer: Any) -> None:
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    ids, length = tokenizer("the cat sat on the mat " * 12)["input_ids"][:60], 32 if count == -1 else 256
    params = SamplingParams(temperature=0.0, max_tokens=4, truncate_prompt_tokens=count)
    with LLM(hf_model=model, tokenizer=tokenizer, max_model_len=length) as llm:
        (cut,) = llm.generate([ids], params)
        (given,) = llm.generate([ids[-kept:]], SamplingParams(temperature=0.0, max_tokens=4))
        assert cut.prompt_token_ids == ids[-kept:]
        assert cut.outputs[0].token_ids == given.outputs[0].token_ids
        texts = llm.generate(["the cat sat", ids[:9]], [params, SamplingParams(max_tokens=1)])
    assert texts[0].prompt == "the cat sat"
    assert texts[0].prompt_token_ids == tokenizer("the cat sat")["input_ids"][-kept:]
    assert texts[1].prompt_token_ids == ids[:9], "each prompt by its own parameters"


def test_a_prompt_that_is_too_long_even_when_cut_is_refused(tokenizer: Any) -> None:
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    with LLM(hf_model=model, tokenizer=tokenizer, max_model_len=16) as llm:
        with pytest.raises(RequestError, match="has 20 ids"):
            llm.generate([[5] * 40], SamplingParams(truncate_prompt_tokens=20))


def test_chat_goes_through_the_template_with_its_special_tokens(tokenizer: Any) -> None:
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    params = SamplingParams(temperature=0.0, max_tokens=6)
    talk = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    user, answers = (tokenizer.convert_tokens_to_ids(name) for name in ("<user>", "<model>"))
    cat, sat = tokenizer("the cat")["input_ids"], tokenizer("sat")["input_ids"]
    with LLM(hf_model=model, tokenizer=tokenizer) as llm:
        (one,) = llm.chat(talk, params)
        assert one.prompt_token_ids == [user, *cat, answers, *sat, answers]
        assert one.outputs[0].text == llm.generate([one.prompt_token_ids], params)[0].outputs[0].text
        many = llm.chat([talk[:1], talk], params)
        assert [r.prompt_token_ids for r in many] == [[user, *cat, answers], one.prompt_token_ids]
        (bare,) = llm.chat(talk[:1], params, add_generation_prompt=False)
        assert bare.prompt_token_ids == [user, *cat]
        (other,) = llm.chat(talk[:1], params, chat_template="{{ messages[0]['content'] }}")
        assert other.prompt_token_ids == cat


def test_chat_without_a_template_or_a_tokenizer_is_refused(tokenizer: Any) -> None:
    model = tiny_target("llama", vocab_size=len(tokenizer))
    talk = [{"role": "user", "content": "hi"}]
    for given in (None, tiny_tokenizer(chat_template=None)):
        with LLM(hf_model=model, tokenizer=given) as llm:
            with pytest.raises(RequestError, match="chat template"):
                llm.chat(talk)
    with LLM(hf_model=model, tokenizer=tiny_tokenizer(chat_template=None)) as llm:
        assert llm.chat_prompts(talk, chat_template=TEMPLATE)[0]["prompt_token_ids"]
