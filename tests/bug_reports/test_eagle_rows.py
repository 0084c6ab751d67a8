"""Heads over the target's states, docs/bug-reports.md, through the engine: limits, vocabularies, states, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import torch
from perfect import perfect_head
from runs import ids_of, params, prompts, run, target

from specdec_engine import LLM, SamplingParams
from specdec_nn.drafters.draft_sampler import Picks
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.table import random_table, table_target

WIDTH, VOCAB, SMALL = 32, 128, 40
STATES = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}


def head(folder: Path, method: str = "eagle3", vocab: int = SMALL, **settings: Any) -> dict[str, Any]:
    """Write a random head and return the configuration that drafts with it."""
    if method == "eagle":
        tensors = checkpoints.eagle_1(WIDTH)
    else:
        tensors = checkpoints.eagle_3(WIDTH, vocab=VOCAB, draft_vocab=vocab)
    tensors |= settings.pop("tensors", {})
    model = checkpoints.save(folder, tensors, checkpoints.config(WIDTH, **settings))
    states = STATES if method == "eagle3" else {}
    return {"method": method, "model": model, "num_speculative_tokens": 3, **states}


def drafts_made(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return a list to which every later round of chains adds the ids that it drafts."""
    seen: list[list[int]] = []
    original = Picks.draft

    def draft(picks: Picks) -> Any:
        made = original(picks)
        seen.append(made.tokens.tolist())
        return made

    monkeypatch.setattr(Picks, "draft", draft)
    return seen


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_head_trained_for_few_positions_goes_on_in_longer_texts_row_40(method: str, tmp_path: Path) -> None:
    """Its table of positions is as long as the target's, so neither prompt nor text is too long for it."""
    model, texts, sampling = target("llama"), prompts((40, 20)), params(2, max_tokens=30)
    plain = run(model, texts, sampling)
    config = head(tmp_path / "x", method, max_position_embeddings=32)
    spec = run(model, texts, sampling, config=config)
    assert ids_of(spec) == ids_of(plain)
    undrafted = [result.metrics.steps - result.metrics.drafts for result in spec]
    assert undrafted == [1, 1], "only the last id has no room behind it"
    assert [result.metrics.empty for result in spec] == [0, 0], "and for that one nobody was asked"


def test_steps_without_drafts_count_nothing_row_41(tmp_path: Path) -> None:
    model, texts, sampling = target("llama"), prompts((40, 20)), params(2, max_tokens=30)
    config = {**head(tmp_path / "x"), "max_model_len": 32}
    spec = run(model, texts, sampling, config=config)
    assert ids_of(spec) == ids_of(run(model, texts, sampling))
    assert (spec[0].metrics.drafted, spec[0].metrics.proposed) == (0, 0)
    assert spec[0].metrics.empty == 0, "nobody was asked"
    assert 0 < spec[1].metrics.drafted <= 12 * 3


def test_a_tree_deeper_than_k_ends_with_the_context_row_42(tmp_path: Path) -> None:
    model, texts = target("llama"), prompts((30, 9))
    sampling = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    config = {**head(tmp_path / "x"), "num_speculative_tokens": 2, "tree_top_k": 4, "tree_depth": 8}
    spec = run(model, texts, sampling, config=config, max_model_len=48)
    plain = run(model, texts, sampling, max_model_len=48)
    assert ids_of(spec) == ids_of(plain)
    assert [len(ids) for (ids,) in ids_of(spec)] == [18, 39]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_where_every_draft_is_rejected_the_next_starts_from_the_last_committed_row_47(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step then commits one row, and the state behind it decides the drafts, whatever was drafted before."""
    model, texts, sampling = target("llama"), prompts((9, 14)), params(2, max_tokens=12)
    rejected = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.0, 0.0, 0.0]}
    seen = drafts_made(monkeypatch)
    spec = run(model, texts, sampling, config={**head(tmp_path / "x", method), **rejected})
    assert ids_of(spec) == ids_of(run(model, texts, sampling))
    assert all(result.metrics.accepted == 0 < result.metrics.drafted for result in spec)
    in_steps = [tokens for tokens in seen if len(tokens) == 6]
    seen.clear()
    for first in (1, 4, 6):
        again = [
            {"prompt_token_ids": t["prompt_token_ids"] + ids[0][:first]}
            for t, ids in zip(texts, ids_of(spec), strict=True)
        ]
        run(model, again, params(2, max_tokens=8), config={**head(tmp_path / "y", method), **rejected})
        assert seen[0] == in_steps[first], "the drafts of a text that was run at once"
        seen.clear()


def test_states_and_drafts_are_those_of_solo_runs_both_times_row_55(tmp_path: Path) -> None:
    model, texts = target("llama"), prompts((3, 5))
    seen: list[torch.Tensor] = []
    with LLM(hf_model=model, speculative_config=head(tmp_path / "x"), strict=True) as llm:
        assert llm._engine.runner is not None
        inner = llm._engine.runner._proposer.propose

        def propose(batch: Any) -> Any:
            seen.append(batch.rows.aux.clone())
            return inner(batch)

        llm._engine.runner._proposer.propose = propose  # type: ignore[method-assign]

        def first_states(some: Any) -> torch.Tensor:
            seen.clear()
            llm.generate(some, SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True))
            return seen[0]

        alone = [first_states(texts[i : i + 1]) for i in range(2)]
        assert [len(states) for states in alone] == [3, 5]
        for _ in range(2):
            torch.testing.assert_close(first_states(texts), torch.cat(alone), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{}, {"tree_top_k": 3, "tree_depth": 3}])
def test_the_drafters_cache_is_freed_and_the_fifth_request_still_has_drafts_row_56(
    shape: dict[str, int], tmp_path: Path
) -> None:
    model = target("llama")
    sampling = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    config = {**head(tmp_path / "x"), **shape, "cut_by_cost": False}
    with LLM(hf_model=model, speculative_config=config, kv_cache_tokens=512, max_num_seqs=2, strict=True) as llm:
        assert llm._engine.runner is not None
        arena = llm._engine.runner._proposer._cache.arena  # type: ignore[attr-defined]
        for _ in range(5):
            (result,) = llm.generate(prompts((200,)), sampling)
            assert result.metrics.drafted > 0
            assert (result.metrics.steps - result.metrics.drafts, result.metrics.empty) == (1, 0)
            arena.check_integrity([])


@pytest.mark.slow
def test_a_head_of_fewer_ids_leaves_the_targets_distribution_row_58(tmp_path: Path) -> None:
    """Its distributions are zero on the ids that it lacks."""
    size, table = 8, random_table(8, seed=58)
    tensors = checkpoints.eagle_3(size, vocab=size, draft_vocab=5)
    draft = checkpoints.save(tmp_path / "x", tensors, checkpoints.config(size))
    config = {"model": draft, "num_speculative_tokens": 2, "draft_sample_method": "probabilistic", **STATES}
    model = table_target(table, num_layers=2, max_position_embeddings=64)
    sampling = SamplingParams(temperature=1.0, seed=3, n=120, max_tokens=50)
    results = run(model, [[0]], sampling, config=config, max_num_seqs=120)
    counts = np.zeros((size, size), np.int64)
    for sample in results[0].outputs:
        ids = [0, *sample.token_ids]
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    assert results[0].metrics.accepted > 700
    assert_follows(counts, table)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{}, {"tree_top_k": 3}, {"draft_sample_method": "probabilistic"}])
def test_padding_of_a_head_is_never_drafted_row_59(shape: dict[str, Any], tmp_path: Path) -> None:
    """The rows above the target's ids have by far the largest logits, one or another of them everywhere."""
    rows = checkpoints.Weights(59).matrix(VOCAB + 8, WIDTH, 2.0)
    rows[VOCAB:] *= 50
    model, texts = target("llama"), prompts((9, 30))
    sampling = params(2, temperature=0.7)
    config = {**head(tmp_path / "x", "eagle", tensors={"lm_head.weight": rows}), **shape}
    spec = run(model, texts, sampling, config=config)  # ids out of range would be raised
    assert all(result.metrics.drafted > 20 for result in spec)
    if not shape:
        assert ids_of(spec) == ids_of(run(model, texts, sampling))


def test_a_map_is_used_though_both_sizes_of_the_head_agree_row_63(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its vocab_size and draft_vocab_size are the same; what counts is the target's."""
    made = drafts_made(monkeypatch)
    config = head(tmp_path / "x", vocab_size=SMALL, draft_vocab_size=SMALL)
    run(target("llama"), prompts((9, 30)), params(2, max_tokens=40), config=config)
    tensors = checkpoints.eagle_3(WIDTH, vocab=VOCAB, draft_vocab=SMALL)
    drafted = {token for tokens in made for token in tokens}
    assert drafted <= set((torch.arange(SMALL) + tensors["d2t"]).tolist())
    assert max(drafted) >= SMALL


def test_an_own_head_that_differs_decides_the_drafts_row_83(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of its own whose rows are the target's in another order drafts the ids in that order."""
    model, drafts = target("llama"), drafts_made(monkeypatch)

    def first_draft(name: str, tensors: dict[str, torch.Tensor]) -> int:
        drafts.clear()
        config = {**head(tmp_path / name, "eagle", tensors=tensors), "num_speculative_tokens": 1}
        run(model, prompts((9,)), params(1, max_tokens=3), config=config)
        return drafts[0][0]

    own = model.get_output_embeddings().weight.detach().flip(0).clone()
    borrowed = first_draft("a", {})
    assert first_draft("b", {"lm_head.weight": own}) == VOCAB - 1 - borrowed


def test_a_request_that_was_off_for_a_while_is_drafted_for_again_row_77(tmp_path: Path) -> None:
    """Rows of the steps between are gone; a head that needs the newest id only is as good as before."""
    table = random_table(24, seed=5, concentration=0.3)
    model = table_target(table, num_layers=1, max_position_embeddings=128)
    config = {"method": "eagle", "model": perfect_head(tmp_path / "x", 24), "num_speculative_tokens": 3}
    lengths = (60, 12, 12, 12)
    sampling = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
    texts = [[3, 4], [5, 6, 7], [8], [9] * 20]
    spec = run(model, texts, sampling, config={**config, "disable_by_batch_size": 2}, max_num_seqs=4)
    assert ids_of(spec) == ids_of(run(model, texts, sampling))
    assert spec[0].metrics.steps - spec[0].metrics.drafts > 5
    assert spec[0].metrics.empty == 0, "nobody was asked while it was off"
    assert spec[0].metrics.accepted == spec[0].metrics.drafted > 20


@pytest.mark.parametrize("shape", [{}, {"tree_top_k": 3, "tree_depth": 3}])
def test_preempted_requests_are_drafted_for_anew_and_say_the_same_row_38(shape: dict[str, int], tmp_path: Path) -> None:
    model, texts, sampling = target("llama"), prompts((30, 40, 50)), params(3, max_tokens=40)
    config = {**head(tmp_path / "x"), **shape}
    limits = {"kv_cache_tokens": 128, "max_num_seqs": 3}
    with LLM(hf_model=model, speculative_config=config, strict=True, **limits) as llm:
        spec = llm.generate(texts, sampling)
        assert llm._engine.scheduler.preemptions > 0
        assert llm._engine.runner is not None
        llm._engine.runner._proposer._cache.arena.check_integrity([])  # type: ignore[attr-defined]
    assert ids_of(spec) == ids_of(run(model, texts, sampling))
