"""One text for the same ids on every path, whatever the tokenizer and whatever the ids."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from words import tiny_tokenizer

from specdec_engine import LLM, SamplingParams
from specdec_engine.text.stream import TextStream
from specdec_testing.stubs import Perfect, stub_plugin
from specdec_testing.targets import tiny_target

BYTES = [f"<0x{value:02X}>" for value in range(256)]
PIECES = ["▁", "▁▁", "a", "b", "the", "▁the", "▁cat", "日", "\ufffd", "."]


def fast(tokenizer: Tokenizer) -> Any:
    """Wrap it, with three special ids and one that is added and not special."""
    from transformers import PreTrainedTokenizerFast

    tokenizer.add_special_tokens(["<s>", "</s>", "<user>"])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def byte_level() -> Any:
    return fast(tiny_tokenizer().backend_tokenizer)


def byte_fallback_bpe() -> Any:
    """As Llama 2's."""
    vocab = {piece: i for i, piece in enumerate(["<unk>", *BYTES, *PIECES])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    replace, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    return fast(tokenizer)


def unigram() -> Any:
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in ["<unk>", *PIECES, "▁日本", "s"]], 0, False))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return fast(tokenizer)


def unigram_of_bytes() -> Any:
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in ["<unk>", *BYTES, *PIECES]], 0, True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return fast(tokenizer)


def word_pieces() -> Any:
    words = ["[UNK]", "the", "cat", "##s", "##日", "日", ".", ",", "'", "##'", "not", "do", "##t"]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return fast(tokenizer)


TOKENIZERS = [byte_level, byte_fallback_bpe, unigram, unigram_of_bytes, word_pieces]


def random_ids(tokenizer: Any, rng: np.random.Generator) -> list[int]:
    """Pieces, bytes of whole characters with an error now and then, special ids and ids beyond the vocabulary."""
    table = tokenizer.get_vocab()
    ids: list[int] = []
    for kind in rng.integers(0, 8, int(rng.integers(1, 30))):
        if kind < 3 and BYTES[0] in table:
            character = "é日👋 a"[int(rng.integers(5))].encode()
            ids += [table[BYTES[byte]] for byte in character[: len(character) - (kind == 0 and rng.random() < 0.3)]]
        elif kind == 3:
            ids.append(table[["<s>", "</s>", "<user>", "<tool>"][int(rng.integers(4))]])
        elif kind == 4 and rng.random() < 0.2:
            ids.append(len(tokenizer) + 3)
        elif kind == 5 and table.get("▁"):
            ids += [table["▁"]] * int(rng.integers(1, 3))
        else:
            ids.append(int(rng.integers(len(tokenizer))))
    return ids


def shown(tokenizer: Any, ids: list[int], cuts: list[int], params: SamplingParams) -> list[str]:
    stream = TextStream(tokenizer, params)
    return [stream.update(ids[:cut], finished=cut == len(ids)) for cut in [*cuts, len(ids)]]


def whole(tokenizer: Any, ids: list[int], skip: bool) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    return text


def repaired(tokenizer: Any, ids: list[int], skip: bool) -> str:
    """The rule of the docs, written again: bytes that are no UTF-8 become "?" ids and then, in the text, U+FFFD."""
    table = tokenizer.get_vocab()
    if BYTES[0] not in table:
        return whole(tokenizer, ids, skip)
    mark, value_of, valid = "\x01", {table[name]: value for value, name in enumerate(BYTES)}, []
    special = {table[name] for name in ("<s>", "</s>", "<user>")} if skip else set()
    kept = [token for token in ids if token < len(tokenizer) and token not in special]
    for is_byte, run in itertools.groupby(kept, lambda token: token in value_of):
        if is_byte:
            text = bytes(value_of[token] for token in run).decode("utf-8", "replace")
            valid += [table[BYTES[byte]] for byte in text.replace("\ufffd", mark).encode()]
        else:
            valid += run
    return whole(tokenizer, valid, skip).replace(mark, "\ufffd")


@pytest.mark.slow
@pytest.mark.parametrize("make", TOKENIZERS)
@pytest.mark.parametrize("skip", [True, False])
def test_text_is_a_function_of_the_ids_and_equals_decoding_where_bytes_are_valid(
    make: Callable[[], Any], skip: bool
) -> None:
    tokenizer, rng = make(), np.random.default_rng(5)
    params, valid = SamplingParams(skip_special_tokens=skip), 0
    for _ in range(500):
        mark = tokenizer.get_vocab().get("<0x01>")  # `repaired` uses it
        ids = [token for token in random_ids(tokenizer, rng) if token != mark] or [0]
        cuts = sorted(rng.choice(len(ids), int(rng.integers(0, len(ids))), replace=False).tolist())
        texts = shown(tokenizer, ids, cuts, params)
        for before, after in itertools.pairwise(texts):
            assert after.startswith(before), (ids, before, after)
        one_by_one = shown(tokenizer, ids, list(range(len(ids))), params)
        at_once = shown(tokenizer, ids, [], params)[-1]
        assert texts[-1] == one_by_one[-1] == at_once == repaired(tokenizer, ids, skip), ids
        if "\ufffd" not in whole(tokenizer, ids, skip):
            valid += 1
            assert at_once == whole(tokenizer, ids, skip)
    assert valid > 20


@pytest.mark.parametrize("make", [byte_fallback_bpe, unigram_of_bytes])
def test_one_wrong_byte_spoils_no_character_before_it_and_each_appears_with_its_last_byte(
    make: Callable[[], Any],
) -> None:
    tokenizer = make()
    table = tokenizer.get_vocab()
    values = "é日".encode() + b"\xe6\x97" + b"x\xff"
    ids = [table[BYTES[byte]] for byte in values]
    assert whole(tokenizer, ids, True) == "\ufffd" * len(values), "decoded at once, a run with an error is all lost"
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    expected = list(itertools.accumulate(decoder.decode(bytes([byte])) for byte in values))
    assert shown(tokenizer, [*ids, table["a"]], list(range(1, len(ids) + 1)), SamplingParams()) == [
        *expected,
        "é日\ufffdx\ufffda",
    ]
    assert shown(tokenizer, ids[:7], [], SamplingParams())[-1] == "é日\ufffd", "an incomplete character at the end"


def test_special_ids_that_are_left_out_change_no_space_however_many_there_are() -> None:
    for make in (byte_fallback_bpe, unigram, word_pieces):
        tokenizer = make()
        table = tokenizer.get_vocab()
        word = table.get("▁the", table["the"])
        ids = [word, *[table["<s>"]] * 40, word, *[table["</s>"]] * 40, word]
        assert shown(tokenizer, ids, list(range(len(ids))), SamplingParams())[-1] == "the the the"


def test_the_context_does_not_grow_with_the_text() -> None:
    for make in TOKENIZERS:
        tokenizer = make()
        table = tokenizer.get_vocab()
        for token in {table.get("<0x80>", 5), table.get("▁", 6), table["<tool>"], len(tokenizer) + 9}:
            stream = TextStream(tokenizer, SamplingParams())
            stream.update([token] * 300, finished=False)
            assert len(stream._window) < 20, (make, token)


def test_decoded_tokens_are_the_ids_alone_and_do_not_add_up_to_the_text() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    bias = {token: 100.0 for token in tokenizer("é")["input_ids"][-1:]}
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=0, logit_bias=bias)
    with LLM(hf_model=model, tokenizer=tokenizer) as llm:
        (result,) = llm.generate([{"prompt_token_ids": tokenizer("the")["input_ids"]}], params)
    output = result.outputs[0]
    texts = [entry[token].decoded_token for token, entry in zip(output.token_ids, output.logprobs, strict=True)]
    assert texts == [tokenizer.decode([token]) for token in output.token_ids]
    fallback = byte_fallback_bpe()
    ids = [fallback.get_vocab()[piece] for piece in ("▁the", "▁cat")]
    assert "".join(fallback.decode([token]) for token in ids) == "thecat"
    assert shown(fallback, ids, [], SamplingParams())[-1] == "the cat"


@pytest.mark.parametrize("make", [byte_level, byte_fallback_bpe])
def test_streams_generate_and_stop_texts_read_one_text_with_and_without_drafts(make: Callable[[], Any]) -> None:
    tokenizer = make()
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    prompt = {"prompt_token_ids": [5, 6, 7]}
    params = SamplingParams(temperature=2.0, seed=3, max_tokens=40)
    with LLM(hf_model=model, tokenizer=tokenizer) as llm:
        (plain,) = llm.generate([prompt], params)
    text = plain.outputs[0].text
    assert text == shown(tokenizer, plain.outputs[0].token_ids, [], params)[-1]
    stop = text[len(text) // 2 :][:3]
    stopping = SamplingParams(temperature=2.0, seed=3, max_tokens=40, stop=[stop])
    config = {"method": "stub", "num_speculative_tokens": 5}
    stub = stub_plugin(Perfect.of_run([[5, 6, 7]], [plain]))
    with LLM(hf_model=model, tokenizer=tokenizer, speculative_config=config, plugins={"stub": stub}) as llm:
        assert llm.generate([prompt], params)[0].outputs[0].text == text
        seen = [output.outputs[0].text for output in llm.stream([prompt], params)]
        (stopped,) = llm.generate([prompt], stopping)
        ends = [output.outputs[0].text for output in llm.stream([prompt], stopping)]
    assert seen[-1] == text
    assert all(text.startswith(part) for part in seen)
    assert stopped.outputs[0].stop_reason == stop
    assert stopped.outputs[0].text == ends[-1] == text[: text.index(stop)]
