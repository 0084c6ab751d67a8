"""Stop texts: a request ends where one first appears in its text, whatever ids spell it and come at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from runs import assert_grows, run
from words import pieces_tokenizer, tiny_tokenizer

from specdec_core.errors import RequestError
from specdec_engine import LLM, SamplingParams
from specdec_testing.stubs import Fixed, Garbage, Perfect, Stub, stub_plugin
from specdec_testing.table import table_target
from specdec_testing.targets import tiny_target

FIRST = 2  # ids 0 and 1: the prompt, and an end of text; the pieces that the model says come after them


def speaker(pieces: Sequence[str | bytes]) -> Any:
    """A model that says the pieces one after the other, once it is given id 0, and begins again."""
    size = FIRST + len(pieces)
    path = [*range(FIRST, size)]
    table = np.full((size, size), 1 / size)
    for before, after in zip([0, *path], [*path, FIRST], strict=True):
        table[before] = np.eye(size)[after]
    return table_target(table)


def proposers(size: int) -> dict[str, Stub | None]:
    path = [*range(FIRST, size)] * 30
    return {
        "none": None,
        "perfect": Perfect(lambda request: path),
        "garbage": Garbage(size),
        "fixed": Fixed([size - 1, FIRST]),
    }


def answers(pieces: Sequence[str | bytes], eos: int | None = None, **given: Any) -> list[Any]:
    """The answer of every proposer, and each picture that a stream showed on the way checked against it."""
    model, tokenizer = speaker(pieces), pieces_tokenizer(["<prompt>", "<eos>", *pieces])
    model.config.eos_token_id = eos
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 20, **given})
    found = []
    for stub in proposers(FIRST + len(pieces)).values():
        config = {} if stub is None else {"speculative_config": {"method": "stub", "num_speculative_tokens": 6}}
        plugins = {} if stub is None else {"stub": stub_plugin(stub)}
        with LLM(hf_model=model, tokenizer=tokenizer, plugins=plugins, strict=True, **config) as llm:
            (whole,) = llm.generate([[0]], params)
            pictures = [picture.outputs[0] for picture in llm.stream([[0]], params)]
        assert_grows([picture.text for picture in pictures])
        assert pictures[-1] == whole.outputs[0]
        found.append(whole.outputs[0])
    return found


Case = tuple[list[str], dict[str, Any], int, str, Any]
ABC = ["a", "b", "c", "d", "e"]
CASES: dict[str, Case] = {
    "spelled over several ids": (["So ", "<", "E", "ND", ">", "more"], {"stop": "<END>"}, 5, "So ", "<END>"),
    "ending inside an id": (["So ", "<E", "ND> and more", "x"], {"stop": "<END>"}, 3, "So ", "<END>"),
    "starting inside an id": (["So <E", "ND>", "x"], {"stop": ["<END>"]}, 2, "So ", "<END>"),
    "inside one id": (["so", " a<END>b", "x"], {"stop": ["<END>"]}, 2, "so a", "<END>"),
    "all of the first id": (["<END>", "x"], {"stop": ["<END>"]}, 1, "", "<END>"),
    "kept in the text": (
        ["So ", "<E", "ND> and more"],
        {"stop": "<END>", "include_stop_str_in_output": True},
        3,
        "So <END>",
        "<END>",
    ),
    "a start that goes on otherwise": (["a<", "a<", "b>", "x"], {"stop": "a<b>"}, 3, "a<", "a<b>"),
    "the one that ends first": (ABC, {"stop": ["abcd", "c"]}, 3, "ab", "c"),
    "the one that ends first in one id": (["one two"], {"stop": ["two", "ne"]}, 1, "o", "ne"),
    "two that end at one place": (ABC, {"stop": ["c", "bc"]}, 3, "ab", "c"),
    "two that end at one place, the longer first": (ABC, {"stop": ["bc", "c"]}, 3, "a", "bc"),
    "at the last id allowed": (ABC, {"stop": "cd", "max_tokens": 4}, 4, "ab", "cd"),
    "a stop id at the same id": (ABC, {"stop": "c", "stop_token_ids": [FIRST + 2]}, 3, "ab", FIRST + 2),
    "a stop id before it": (ABC, {"stop": "d", "stop_token_ids": [FIRST + 2]}, 3, "ab", FIRST + 2),
    "it before a stop id": (ABC, {"stop": "b", "stop_token_ids": [FIRST + 2]}, 2, "a", "b"),
    "a stop id kept in the text": (
        ABC,
        {"stop": "x", "stop_token_ids": [FIRST + 2], "include_stop_str_in_output": True},
        3,
        "abc",
        FIRST + 2,
    ),
    "not before min_tokens": (["a", "b"], {"stop": "b", "min_tokens": 3}, 4, "aba", "b"),
    "not at min_tokens": (["a", "b"], {"stop": "b", "min_tokens": 2}, 4, "aba", "b"),
    "from before min_tokens to after it": (ABC, {"stop": "bc", "min_tokens": 2}, 3, "a", "bc"),
    "a special token's text": (ABC, {"stop": "c", "skip_special_tokens": False}, 3, "ab", "c"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_text_ends_at_its_first_stop_text_and_the_ids_with_the_one_that_completes_it(case: str) -> None:
    pieces, params, count, text, stop = CASES[case]
    path = [*range(FIRST, FIRST + len(pieces))] * 4
    for output in answers(pieces, **params):
        assert output.token_ids == path[:count]
        assert output.text == text
        assert (output.finish_reason, output.stop_reason) == ("stop", stop)


@pytest.mark.parametrize("stop", ["END", "あ", "END あ", "あ!"])
def test_an_id_may_end_a_stop_text_and_begin_a_character_and_the_other_way_round(stop: str) -> None:
    pieces = [b"so END \xe3", b"\x81", b"\x82! and", "more"]
    ends = {"END": (1, "so "), "あ": (3, "so END "), "END あ": (3, "so "), "あ!": (3, "so END ")}
    for output in answers(pieces, stop=stop):
        assert (len(output.token_ids), output.text, output.stop_reason) == (*ends[stop], stop)


@pytest.mark.parametrize(
    ("params", "count", "text"),
    [({"stop": "cd", "max_tokens": 3}, 3, "abc"), ({"stop": "abd"}, 20, "abcde" * 4), ({"stop": []}, 20, "abcde" * 4)],
)
def test_a_stop_text_that_is_never_complete_ends_nothing_and_nothing_is_lost(
    params: dict[str, Any], count: int, text: str
) -> None:
    for output in answers(ABC, **params):
        assert (len(output.token_ids), output.text) == (count, text)
        assert (output.finish_reason, output.stop_reason) == ("length", None)


def test_an_end_of_text_comes_before_a_stop_text_of_the_same_id() -> None:
    for keep, text in ((False, "ab"), (True, "abc")):
        for output in answers(ABC, eos=FIRST + 2, stop="c", include_stop_str_in_output=keep):
            assert (len(output.token_ids), output.text, output.stop_reason) == (3, text, None)


def test_a_stop_text_in_the_prompt_ends_nothing() -> None:
    for output in answers(["<prompt", ">", "b"], stop="<prompt>b", max_tokens=5):
        assert (output.text, output.stop_reason) == ("", "<prompt>b")
    for output in answers(["x", "b"], stop="<prompt>", max_tokens=3):
        assert (output.text, output.finish_reason) == ("xbx", "length")


def test_a_block_that_a_stop_text_cuts_counts_what_stayed() -> None:
    pieces = [*"abcdefghij"]
    model, tokenizer = speaker(pieces), pieces_tokenizer(["<prompt>", "<eos>", *pieces])
    right = Perfect(lambda request: [*range(FIRST, 12)] * 3)
    params = SamplingParams(temperature=0.0, max_tokens=20, stop="cd")
    (result,) = run(model, [[0]], params, right, k=6, tokenizer=tokenizer)
    metrics = result.metrics
    # "a" comes with the prompt; one step accepts 6 and could emit 7, of which b, c and d stay.
    assert (metrics.steps, metrics.drafted, metrics.accepted, metrics.accepted_kept) == (1, 6, 6, 3)
    assert (metrics.emitted_with_draft, metrics.kept_with_draft, metrics.emitted) == (7, 3, 3)
    assert right.finished == [("0-0", "done")]


def test_a_stream_holds_back_what_may_become_a_stop_text() -> None:
    pieces = [*"abcdefgh"]
    model, tokenizer = speaker(pieces), pieces_tokenizer(["<prompt>", "<eos>", *pieces])
    with LLM(hf_model=model, tokenizer=tokenizer) as llm:
        for params, seen in (
            ({"stop": ["defg", "x"], "max_tokens": 6}, ["", "", "", "a", "ab", "abcdef"]),
            ({"stop": ["cde"], "max_tokens": 9}, ["", "", "a", "ab", "ab"]),
            ({"stop": ["cde"], "include_stop_str_in_output": True}, ["a", "ab", "abc", "abcd", "abcde"]),
            ({"max_tokens": 3}, ["a", "ab", "abc"]),
        ):
            pictures = llm.stream([[0]], SamplingParams(temperature=0.0, **params))
            assert [picture.outputs[0].text for picture in pictures] == seen


@pytest.mark.parametrize("stop", ["日", "日本", "é", "é日", "👋🏽", "x👋"])
def test_characters_of_several_ids_make_a_stop_text(stop: str) -> None:
    tokenizer = tiny_tokenizer()
    said = "né日本x👋🏽 end"
    ids = tokenizer(said)["input_ids"]
    expected = said.partition(stop)[0]
    # The ids repeat bytes, so a table cannot say them; the model is led by a bias through its own vocabulary.
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    completing = next(n for n in range(1, len(ids) + 1) if stop in tokenizer.decode(ids[:n]))
    for cut in (None, 6):
        output = led(model, tokenizer, ids, cut, stop)
        assert (output.text, output.stop_reason, output.token_ids) == (expected, stop, ids[:completing])


def led(model: Any, tokenizer: Any, ids: list[int], k: int | None, stop: str) -> Any:
    """What comes out if the target says `ids`: its logits are replaced by theirs."""
    from specdec_engine.sampling.sampler import Sampler

    def process(self: Sampler, logits: Any, rows: Any) -> Any:
        forced = logits.new_zeros(logits.shape)
        for row, position in enumerate(rows.positions.tolist()):
            forced[row, ids[position] if position < len(ids) else 0] = 50.0
        return forced

    kept = Sampler.process
    Sampler.process = process  # type: ignore[method-assign]
    try:
        right = None if k is None else Perfect(lambda request: ids)
        params = SamplingParams(temperature=0.0, max_tokens=len(ids), stop=stop)
        return run(model, [[0]], params, right, k=k or 1, tokenizer=tokenizer)[0].outputs[0]
    finally:
        Sampler.process = kept  # type: ignore[method-assign]


def expected_cut(tokenizer: Any, ids: list[int], stops: Sequence[str], min_tokens: int) -> tuple[int, str, str | None]:
    """Ids, text and stop text by decoding every prefix anew: the definition, slow."""
    texts = [tokenizer.decode(ids[:n], skip_special_tokens=True).rstrip("\ufffd") for n in range(len(ids) + 1)]
    for n in range(1, len(ids) + 1):
        hits = []
        for stop in stops:
            ends = [end for end in range(len(texts[n - 1]) + 1, len(texts[n]) + 1) if texts[n][:end].endswith(stop)]
            hits += [(end, index, stop) for index, end in enumerate(ends)][:1]
        if hits and n > min_tokens:
            end, _, stop = min(hits, key=lambda hit: hit[0])
            return n, texts[n][: end - len(stop)], stop
    return len(ids), tokenizer.decode(ids, skip_special_tokens=True), None


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_any_piece_of_a_random_text_ends_it_as_the_definition_says(temperature: float) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    texts = ("the cat", "日本", "a hat and", "mat", "on", "cat and", "a", "sat")
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    common = {"temperature": temperature, "max_tokens": 40}
    params = [SamplingParams(seed=i, **common) for i in range(len(texts))]
    plain = run(model, prompts, params, tokenizer=tokenizer)
    rng = np.random.default_rng(1)
    asked, expected = [], []
    for i, result in enumerate(plain):
        text, length = result.outputs[0].text, int(rng.integers(1, 4))
        parts = [text[start : start + length] for start in range(3, len(text) - length)]
        readable = [part for part in parts if "\ufffd" not in part]
        stops = rng.choice(readable, int(rng.integers(1, 4))).tolist()
        least = int(rng.choice([0, 5, 15]))
        asked.append(SamplingParams(seed=i, stop=stops, min_tokens=least, **common))
        expected.append(expected_cut(tokenizer, result.outputs[0].token_ids, stops, least))
    assert sum(stop is not None for _, _, stop in expected) >= 6
    for stub in (None, Perfect.of_run(prompts, plain), Garbage(len(tokenizer)), Fixed([80, 81])):
        spec = run(model, prompts, asked, stub, k=5, tokenizer=tokenizer)
        found = [(len(o.token_ids), o.text, o.stop_reason) for o in (result.outputs[0] for result in spec)]
        assert found == expected
        for result, whole in zip(spec, plain, strict=True):
            assert result.outputs[0].token_ids == whole.outputs[0].token_ids[: len(result.outputs[0].token_ids)]


def test_without_a_tokenizer_a_stop_text_is_refused_by_name_and_nothing_is_queued() -> None:
    with LLM(hf_model=speaker(ABC)) as llm:
        with pytest.raises(RequestError, match="stop needs text, but this model has no tokenizer"):
            llm.generate([[0], [0]], [SamplingParams(), SamplingParams(stop="x")])
        assert not llm._engine.scheduler.waiting
        assert len(llm.generate([[0]], SamplingParams(stop=[]))) == 1
