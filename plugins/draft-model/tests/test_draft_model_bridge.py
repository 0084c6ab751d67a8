"""Texts in the ids of another tokenizer: spelled as if anew at every step, at bounded cost, and brought back."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
from draft_model_tokenizers import CORPUS, byte_level, fast, metaspace
from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

from specdec_plugin_draft_model.bridge import LONG, Bridge

TEXT = "\n".join(CORPUS)


@functools.cache
def llama_like() -> Any:
    """A space is put before every text by the normalizer, also before one that begins with a space, as in Llama 2."""
    specials = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=specials, limit_alphabet=60, show_progress=False, max_token_length=6
    )
    tokenizer.train_from_iterator(" ".join(CORPUS).split(), trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    vocab = trained["vocab"] | {f"<0x{byte:02X}>": len(trained["vocab"]) + byte for byte in range(256)}
    merges = [tuple(pair) for pair in trained["merges"]]
    tokenizer.model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return fast(tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


KINDS: dict[str, Any] = {
    "bytes": functools.cache(byte_level),
    "pieces": functools.cache(metaspace),
    "llama": llama_like,
}
PAIRS = [("bytes", "pieces"), ("pieces", "bytes"), ("bytes", "llama"), ("llama", "pieces")]


def bridge(target: str, draft: str) -> tuple[Bridge, Any, Any]:
    a, b = KINDS[target](), KINDS[draft]()
    return Bridge(a, b, len(a.get_vocab()), len(b.get_vocab())), a, b


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_step_by_step_a_text_is_spelled_as_all_at_once(target: str, draft: str) -> None:
    """What was frozen stays, the ids that are spelled anew are bounded, and nothing differs from one call for all."""
    pair, reader, speller = bridge(target, draft)
    tokens = np.array(reader.encode(TEXT), np.int32)
    spelled = pair.begin()
    for end in range(1, len(tokens), 3):
        frozen = list(spelled.frozen)
        ids = pair.read(spelled, tokens[:end])
        assert ids[: len(frozen)] == frozen
        assert end - spelled.mark <= LONG + 3
        assert ids == pair.read(pair.begin(), tokens[:end])
    opening = speller.encode("")
    assert ids[: len(opening)] == opening
    whole = reader.decode(tokens[:end], skip_special_tokens=True)
    assert ids[len(opening) :] == speller.encode(whole, add_special_tokens=False)
    assert len(spelled.frozen) > len(ids) // 2


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_draft_that_knows_the_text_comes_back_as_the_targets_own_ids(target: str, draft: str) -> None:
    """Whatever is answered goes on with the text; but for a last word that is not whole, in the target's own ids."""
    pair, reader, _ = bridge(target, draft)
    tokens = np.array(reader.encode(TEXT), np.int32)
    every = pair.read(pair.begin(), tokens)
    answered = asked = right = 0
    for end in range(3, len(tokens) - 12):
        ids = pair.read(pair.begin(), tokens[:end])
        if every[: len(ids)] != ids:
            continue  # the drafter spells this end in another way than inside the whole text
        asked += 1
        answer = pair.answer(tokens[:end], ids, every[len(ids) : len(ids) + 6])
        answered += bool(answer)
        said = reader.decode([*tokens[:end], *answer], skip_special_tokens=True)
        assert TEXT.startswith(said.rstrip("\ufffd"))
        right += answer[:-3] == tokens[end : end + len(answer) - 3].tolist()
    assert asked > 100
    assert answered > 0.95 * asked
    assert right > 0.97 * asked


def test_characters_that_are_not_whole_yet_wait_and_are_completed_by_the_draft() -> None:
    """The target writes 鴎 byte by byte: its text stops before a broken character, and drafts must begin with it."""
    pair, reader, speller = bridge("bytes", "pieces")
    tokens = np.array(reader.encode("le\n鴎鷗鵜"), np.int32)
    start = len(reader.encode("le\n"))
    assert [len(reader.encode(c)) for c in "鴎鷗鵜"] == [3, 3, 3], "each character is three ids"
    context = pair.read(pair.begin(), tokens[:start])

    def as_bytes(text: str) -> list[int]:
        return [speller.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in text.encode()]

    for pending in range(3):
        assert pair.read(pair.begin(), tokens[: start + pending]) == context
        drafted = as_bytes("鴎鷗")
        answer = pair.answer(tokens[: start + pending], context, drafted)
        assert answer == tokens[start + pending : start + 6].tolist()
        half = pair.answer(tokens[: start + pending], context, drafted[:4])
        assert half == tokens[start + pending : start + 3].tolist(), "what the draft leaves broken is left out"
    other = as_bytes("鵜")
    assert pair.answer(tokens[: start + 2], context, other) == [], "another character than the one that was begun"
    assert pair.answer(tokens[:start], context, other) == reader.encode("鵜")


def test_bytes_that_never_become_a_character_are_read_as_what_they_are() -> None:
    pair, reader, _ = bridge("bytes", "pieces")
    broken = reader.encode("日")[:1]
    tokens = np.array([*reader.encode("the boats"), *broken * 5, *reader.encode(" came home")], np.int32)
    for end in range(8, len(tokens)):
        assert pair.read(pair.begin(), tokens[:end])


def test_nothing_is_answered_where_the_target_would_have_spelled_its_end_in_another_way() -> None:
    pair, reader, speller = bridge("bytes", "pieces")
    whole = reader.encode(" boats")
    assert len(whole) < len(reader.encode(" boa")) + len(reader.encode("ts"))
    tokens = np.array([*reader.encode("the"), *reader.encode(" boa")], np.int32)
    context = pair.read(pair.begin(), tokens)
    drafted = [speller.convert_tokens_to_ids(piece) for piece in ("t", "s")]
    assert pair.answer(tokens, context, drafted) == []
    assert pair.answer(tokens, context, []) == []


def test_the_drafters_opening_ids_stand_for_the_targets() -> None:
    """An opening id is no text: the target's is not spelled out, and the drafter gets its own or none."""
    pair, reader, speller = bridge("llama", "pieces")
    tokens = np.array(reader.encode("the boats"), np.int32)
    assert pair.read(pair.begin(), tokens) == speller.encode("the boats")
    assert speller.encode("the boats")[0] == speller.bos_token_id
    back, reader, speller = bridge("pieces", "bytes")
    tokens = np.array(reader.encode("the boats"), np.int32)
    assert tokens[0] == reader.bos_token_id
    assert back.read(back.begin(), tokens) == speller.encode("the boats")


def test_ids_that_a_model_has_no_rows_for_are_neither_read_nor_answered() -> None:
    target, draft = byte_level(), metaspace()
    rows = draft.convert_tokens_to_ids("▁the")
    pair = Bridge(target, draft, target.convert_tokens_to_ids("Ġthe"), rows)
    tokens = np.array(target.encode("at the boats"), np.int32)
    assert max(pair.read(pair.begin(), tokens)) < rows
    context = pair.read(pair.begin(), tokens[:1])
    drafted = draft.encode(" the", add_special_tokens=False)
    answer = pair.answer(tokens[:1], context, drafted)
    assert all(token < target.convert_tokens_to_ids("Ġthe") for token in answer)
