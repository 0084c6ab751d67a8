"""Drafts of Gemma 4 assistants are those of the formulas, in the kit's host and in the engine, whose text stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from assistant_models import TARGETS, VOCAB, WINDOW, assistant, layout, over, target
from assistant_oracle import Nodes, Oracle

from specdec_engine import LLM
from specdec_testing.watching import Row, assert_all_are, driven, said, watched


def prompts(seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, length).tolist() for length in (5, 40, 2)]


def account_of(oracle: Oracle) -> Any:
    def account(row: Row) -> Nodes:
        return oracle.chain(row.text, row.state.double().numpy(), row.limit)

    return account


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("position", ["last", "newest"])
def test_drafts_over_chunks_rejections_pauses_lost_rows_and_preemption(
    name: str, position: str, tmp_path: Path
) -> None:
    model = assistant(name, centroids=position == "newest", final_logit_softcapping=5.0 if position == "last" else None)
    _, built = over(name)
    folder = layout(model).save(tmp_path / "x")
    watch = driven(*built(folder, num_speculative_tokens=4, assistant_position=position), gaps=True)
    assert max(len(row.text) for row in watch.rows) > 2 * WINDOW
    oracle = Oracle(target(name), model, -1 if position == "last" else 0)
    assert_all_are(watch.rows, account_of(oracle), clear=1e-6)


@pytest.mark.parametrize("name", TARGETS)
def test_drafts_in_the_engine_are_of_the_targets_own_pages(name: str, tmp_path: Path) -> None:
    """In mixed batches of greedy and sampled requests, of which two run at a time, with chunked prompts."""
    made = assistant(name)
    config = {"method": "mtp", "model": layout(made).save(tmp_path / "x"), "num_speculative_tokens": 3}
    model, mixed = target(name), (0.0, 0.8)
    with LLM(hf_model=model, strict=True) as llm:
        plain, _ = said(llm, prompts(1), mixed)
    with LLM(hf_model=model, speculative_config=config, strict=True, prefill_chunk_size=9, max_num_seqs=2) as llm:
        watch = watched(llm)
        texts, results = said(llm, prompts(1), mixed)
        assert watch.inner.memory_bytes() == 0
    assert texts == plain
    assert sum(result.metrics.drafted for result in results) > 30
    oracle = Oracle(model, made)
    for row in watch.rows:
        _, states = oracle.forward(row.text[:-1])
        np.testing.assert_allclose(row.state.numpy(), states[-1], rtol=2e-3, atol=2e-3)
    assert_all_are(watch.rows, account_of(oracle), clear=1e-6)


def test_text_stays_when_drafts_are_accepted_and_room_is_short(tmp_path: Path) -> None:
    """Pages of accepted drafts are read, by a rule that accepts many; pauses and preemption change no text."""
    made, model = assistant(), target()
    config = {"model": layout(made).save(tmp_path / "x"), "num_speculative_tokens": 3}  # the method is detected
    half = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.6, 0.4]}
    with LLM(hf_model=model, speculative_config={**config, **half}, strict=True) as llm:
        watch = watched(llm)
        _, results = said(llm, prompts(2))
    assert sum(result.metrics.accepted for result in results) > 8
    assert_all_are(watch.rows, account_of(Oracle(model, made)), clear=1e-6)
    with LLM(hf_model=model, strict=True) as llm:
        plain, _ = said(llm, prompts(5))
    for engine in ({}, {"kv_cache_tokens": 96}):
        off = {**config, "disable_by_batch_size": 2}
        with LLM(hf_model=model, speculative_config=off, strict=True, **engine) as llm:
            texts, results = said(llm, prompts(5))
        assert texts == plain
        assert sum(result.metrics.drafted for result in results) > 0


@pytest.mark.parametrize("width", [None, 5])
def test_text_is_that_of_plain_decoding_whatever_is_drafted(width: int | None, tmp_path: Path) -> None:
    model = target("shared keys", torch.bfloat16) if width else target("shared keys")
    config = {
        "method": "mtp", "model": layout(assistant("shared keys")).save(tmp_path / "x"), "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic", "rejection_sample_method": "coupled",
    }  # fmt: skip
    mixed = (0.0, 0.9)
    with LLM(hf_model=model, strict=True, decode_width=width) as llm:
        plain, _ = said(llm, prompts(3), mixed)
    with LLM(hf_model=model, speculative_config=config, strict=True, decode_width=width) as llm:
        texts, results = said(llm, prompts(3), mixed)
    assert texts == plain
    assert sum(result.metrics.drafted for result in results) > 20


def test_suppressed_ids_are_never_drafted(tmp_path: Path) -> None:
    model = assistant()
    suppressed = tuple(range(0, VOCAB, 2))
    saved = layout(model)
    object.__setattr__(saved, "suppressed", suppressed)
    _, built = over("own keys")
    watch = driven(*built(saved.save(tmp_path / "x"), num_speculative_tokens=3), seeds=1, least=20)
    assert all(token % 2 for row in watch.rows for token in row.tokens)
    assert_all_are(watch.rows, account_of(Oracle(target(), model, suppressed=suppressed)), clear=1e-6)


def test_the_network_is_the_one_of_transformers() -> None:
    """One step of the oracle against the stock assistant, over keys that fit into the window."""
    name = "shared keys"
    model, oracle = assistant(name).double(), Oracle(target(name), assistant(name))
    ids = prompts(4)[0]
    keys, states = oracle.forward(ids[:-1])
    embedded = oracle.stock.get_input_embeddings()(torch.tensor([ids[-1:]]))
    with torch.inference_mode():
        out = model(
            inputs_embeds=torch.cat([embedded, torch.from_numpy(states[-1:])[None]], -1),
            position_ids=torch.tensor([[len(ids) - 2]]),
            shared_kv_states={kind: tuple(torch.from_numpy(x)[None] for x in both) for kind, both in keys.items()},
        )
    logits, behind = oracle.step(ids[-1], states[-1], len(ids) - 2, keys)
    np.testing.assert_allclose(out.last_hidden_state[0, 0].numpy(), behind, atol=1e-5)  # its norms are in float32
    head = model.model.embed_tokens.weight.detach().numpy()
    assert head.shape == (VOCAB, len(head[0])) and int(logits.argmax()) == int(out.logits[0, 0].argmax())


def test_it_drafts_as_a_part_of_a_combination(tmp_path: Path) -> None:
    lookup = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    own = {"method": "mtp", "model": layout(assistant()).save(tmp_path / "x"), "num_speculative_tokens": 3}
    config = {"method": "combine", "methods": [lookup, own], "num_speculative_tokens": 3}
    with LLM(hf_model=target(), strict=True) as llm:
        plain, _ = said(llm, prompts(6))
    with LLM(hf_model=target(), speculative_config=config, strict=True) as llm:
        texts, results = said(llm, prompts(6))
    assert texts == plain
    assert sum(result.metrics.drafted for result in results) > 30
