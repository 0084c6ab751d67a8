"""Two models that know one song by heart, each in its own tokens: drafting on the level of texts, in the engine."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_model_folders import drafter, keys, saved
from draft_model_tokenizers import byte_level, metaspace, numbered

from specdec_core.errors import ConfigError, MakeStageError
from specdec_engine import LLM, SamplingParams
from specdec_plugin_draft_model.running import Runner
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import assert_same_output
from specdec_testing.table import table_target

TEXT = {"use_heterogeneous_vocab": True, "heterogeneous_vocab_method": "text"}
WORDS = ("the", "boats", "came", "home", "smelled", "of", "flour", "Naïve", "日本語", "twelve", "quiet", "fourteenth")


@functools.cache
def tokenizers() -> tuple[Any, Any]:
    return byte_level(), metaspace()


def tokens_of(tokenizer: Any, word: str) -> list[int]:
    return list(tokenizer.encode("x " + word, add_special_tokens=False))[
        len(tokenizer.encode("x", add_special_tokens=False)) :
    ]


@functools.cache
def song() -> tuple[str, ...]:
    """Words of which no two have a token in common, for either tokenizer: the last token says what comes next."""
    chosen: list[str] = []
    for word in WORDS:
        one = [tokens_of(t, word) for t in tokenizers()]
        known = [[token for w in chosen for token in tokens_of(t, w)] for t in tokenizers()]
        if all(len(set(ids)) == len(ids) and not set(ids) & set(old) for ids, old in zip(one, known, strict=True)):
            chosen.append(word)
    assert len(chosen) >= 4
    return tuple(chosen)


def singer(which: int) -> Any:
    """A model that goes on with the song behind each of its tokens, and with id 3 behind all others."""
    tokenizer = tokenizers()[which]
    size = len(tokenizer.get_vocab())
    table = np.full((size, size), 0.1 / (size - 1))
    line = [token for word in song() for token in tokens_of(tokenizer, word)]
    table[:, 3] = 0.9
    for token, following in zip(line, [*line[1:], line[0]], strict=True):
        table[token] = 0.1 / (size - 1)
        table[token, following] = 0.9
    return table_target(table / table.sum(1, keepdims=True), max_position_embeddings=1024)


@functools.cache
def target() -> Any:
    return singer(0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("d"), singer(1), tokenizers()[1])


def sung(model: str, prompts: list[str], max_tokens: Any, k: int = 4, **options: Any) -> tuple[list[Any], Any]:
    """Return results and metrics; the ids are those of plain decoding."""
    llm = options.pop("llm", {})
    counts = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompts)
    sampling = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in counts]
    common = {"hf_model": target(), "tokenizer": tokenizers()[0], **llm}
    with LLM(**common) as engine:
        plain = engine.generate(prompts, sampling)
    with LLM(**common, speculative_config=keys(model, k, **options), strict=True) as engine:
        results = engine.generate(prompts, sampling)
        metrics = engine.get_metrics()
    assert_same_output(plain, results)
    return results, metrics


def test_a_drafter_that_knows_the_text_is_believed_whatever_its_tokens_are(model: str) -> None:
    """On the level of tokens it is not, as half of the words are no tokens of both.

    The last id of a draft is often the beginning of a word that is not whole yet, and the target has one for all of it.
    """
    prompts = [f"{one} {other}" for one, other in zip(song(), song()[1:4], strict=False)]
    _, texts = sung(model, prompts, 120, **TEXT)
    _, tokens = sung(model, prompts, 120, use_heterogeneous_vocab=True)
    assert all(a > 0.8 * d for a, d in zip(texts.accepted_per_pos[:2], texts.drafted_per_pos[:2], strict=True))
    assert texts.mean_acceptance_length > 3
    assert texts.mean_acceptance_length > tokens.mean_acceptance_length + 0.5


def test_a_request_is_caught_up_after_speculation_was_off_and_after_preemption(model: str) -> None:
    prompts = [f"{one} {other}" for one, other in zip(song(), [*song()[1:4], song()[0]], strict=False)]
    (long, *_), _ = sung(model, prompts, [150, 12, 12, 12], **TEXT, disable_by_batch_size=2)
    assert long.metrics.accepted > 60
    _, metrics = sung(model, prompts[:3], 90, **TEXT, llm={"kv_cache_tokens": 224})
    assert metrics.accepted_per_pos[0] > 0.8 * metrics.drafted_per_pos[0] > 40


def test_a_step_runs_the_ids_that_came_and_no_more(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is spelled anew at its end only, and of what is spelled alike the rows are kept."""
    ran: list[int] = []
    forward = Runner._forward
    monkeypatch.setattr(
        Runner, "_forward", lambda self, pieces: (ran.extend(len(p.ids) for p in pieces), forward(self, pieces))[1]
    )
    lyrics = " ".join(song() * 20)
    assert 300 < len(tokenizers()[1].encode(lyrics)) < 512
    (result,), _ = sung(model, [lyrics], 100, **TEXT)
    assert max(ran[1:]) <= 8
    assert sum(ran[1:]) < 250
    assert result.metrics.accepted > 50


def test_drafts_end_at_the_drafters_own_end_and_its_own_context(tmp_path: Path) -> None:
    """Its longest context counts its own ids, and an id that ends its text ends the draft."""
    short = singer(1)
    short.config.max_position_embeddings = 60
    model = saved(tmp_path / "short", short, tokenizers()[1])
    (result,), metrics = sung(model, ["the boats"], 150, **TEXT)
    assert metrics.accepted > 10
    assert result.metrics.empty > 40, "beyond it the request is decoded plainly"

    ending = singer(1)
    last = tokens_of(tokenizers()[1], song()[2])[-1]
    ending.generation_config.eos_token_id = last
    _, metrics = sung(saved(tmp_path / "end", ending, tokenizers()[1]), ["the boats"], 60, **TEXT)
    _, without = sung(saved(tmp_path / "no", singer(1), tokenizers()[1]), ["the boats"], 60, **TEXT)
    assert 0 < metrics.drafted < without.drafted


def test_an_unsure_token_ends_a_draft_of_a_text_as_well(model: str) -> None:
    _, sure = sung(model, ["the boats"], 60, **TEXT, draft_confidence_threshold=0.5)
    _, unsure = sung(model, ["the boats"], 60, **TEXT, draft_confidence_threshold=0.95)
    assert sure.mean_acceptance_length > unsure.mean_acceptance_length > 1


@pytest.mark.parametrize("method", ["token", "text"])
def test_both_tokenizers_are_needed(method: str, model: str, tmp_path: Path) -> None:
    options = {"use_heterogeneous_vocab": True, "heterogeneous_vocab_method": method}
    with pytest.raises((ConfigError, MakeStageError), match="the target has none"):
        drafter(model, FakeTarget(target()), **options)
    bare = saved(tmp_path / "bare", singer(1))
    with pytest.raises((ConfigError, MakeStageError), match="the drafter has none"):
        drafter(bare, FakeTarget(target(), tokenizer=tokenizers()[0]), **options)
    with pytest.raises((ConfigError, MakeStageError), match="id 0 is"):
        drafter(model, FakeTarget(target(), tokenizer=numbered(["a", "b"])))
