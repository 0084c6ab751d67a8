"""How a token is drawn: greedy rows take the argmax, others the race of the noise's definition, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runs import ids_of, run, target

from specdec_core.noise import Purpose, exponential, request_key
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.kernels import Kernels
from specdec_engine import LLM, SamplingParams
from specdec_engine.requests.request import Request
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_engine.sampling.draw_rows import DrawRows
from specdec_engine.sampling.sampler import Sampler
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.stubs import Fixed, Soft, stub_plugin
from specdec_testing.table import random_table, table_target

VOCAB = 10
TABLE = random_table(VOCAB, seed=21)


def sampler() -> Sampler:
    kernels = Kernels(Catalog.discover())
    return Sampler(kernels.get("draw"), kernels.get("truncate"))


def works(*params: dict[str, Any], counts: list[int] | None = None) -> list[ScheduledRows]:
    """Rows of one request a set of parameters, as many as `counts` says: the newest id's and those of drafts."""
    prompt = np.array([1, 2, 3], np.int32)
    requests = [Request(f"{i}-0", 0, prompt, SamplingParams(**p), 77 + i, i) for i, p in enumerate(params)]
    ids = [np.full(count, 3, np.int32) for count in counts or [1] * len(requests)]
    return [ScheduledRows(r, 2, some, False, len(some) - 1, len(some)) for r, some in zip(requests, ids, strict=True)]


def spelled_out(key: int, prompt: list[int], count: int, temperature: float, seq_index: int = 0) -> list[int]:
    """Tokens of the table model, one p / e at a time; e is keyed by the place where the token will stand."""
    ids = list(prompt)
    for _ in range(count):
        weights = [p ** (1 / temperature) for p in TABLE[ids[-1]].tolist()]
        best, chosen = -1.0, -1
        for token, weight in enumerate(weights):
            score = weight / sum(weights) / exponential(key, len(ids), seq_index, Purpose.TARGET, token)
            if score > best:
                best, chosen = score, token
        ids.append(chosen)
    return ids[len(prompt) :]


def test_a_greedy_row_takes_the_lowest_of_equal_ids() -> None:
    rows = DrawRows.of(works({"temperature": 0.0}, {"temperature": 0.0}, {"temperature": 0.0}))
    logits = torch.zeros(3, 9)
    logits[0, [3, 5]] = 2.0
    logits[1, [8, 2, 7]] = 1.0
    assert sampler().draw(logits, sampler().noise(rows), rows).tolist() == [3, 2, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_go_to_the_lowest_id_through_the_engine_too(dtype: torch.dtype) -> None:
    table = np.full((4, 4), 0.05)
    for before, tied in enumerate([(1, 3), (2, 3), (0, 3), (1, 2)]):
        table[before, list(tied)] = 0.45
    results = run(
        table_target(table, dtype=dtype), [[0]], SamplingParams(temperature=0.0, max_tokens=6), Fixed([1, 2, 0])
    )
    assert ids_of(results) == [[[1, 2, 0, 1, 2, 0]]]
    assert results[0].metrics.accepted > 0


def test_greedy_and_sampled_rows_stand_side_by_side() -> None:
    items = works(*({"temperature": t} for t in (0.0, 0.5, 0.0, 2.0)), counts=[2, 3, 1, 2])
    rows = DrawRows.of(items)
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(1))
    one = sampler()
    together = one.draw(one.process(logits, rows), one.noise(rows), rows)
    for item, start in zip(items, rows.starts.tolist(), strict=True):
        part, own = logits[start : start + item.wants], DrawRows.of([item])
        alone = one.draw(one.process(part, own), one.noise(own), own)
        assert together[start : start + item.wants].tolist() == alone.tolist()
        if item.request.sampling_params.greedy:
            assert alone.tolist() == part.argmax(-1).tolist()


def test_greedy_rows_that_ask_for_nothing_cost_no_copy() -> None:
    rows = DrawRows.of(works({"temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1}, {"temperature": 0.0}))
    logits = torch.randn(2, 50)
    assert sampler().process(logits, rows) is logits


def test_temperature_divides_each_rows_logits_and_leaves_the_given_ones() -> None:
    rows = DrawRows.of(works(*({"temperature": t} for t in (0.0, 0.25, 2.0)), counts=[1, 2, 3]))
    logits = torch.randn(6, 5, dtype=torch.float64).to(torch.bfloat16)
    kept = logits.clone()
    processed = sampler().process(logits, rows)
    assert processed.dtype == torch.float32
    divisors = torch.tensor([1.0, 0.25, 0.25, 2.0, 2.0, 2.0])[:, None]
    assert torch.equal(processed, kept.float() / divisors)
    assert torch.equal(logits, kept)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_draws_through_the_engine_equal_the_definition(temperature: float) -> None:
    prompts = [[1], [4, 4, 2], [0, 9, 8, 7, 6]]
    seeds = [0, 2**63 + 12345, 2**64 - 3]
    params = [SamplingParams(temperature=temperature, seed=seed, max_tokens=40) for seed in seeds]
    expected = [
        [spelled_out(seed % 2**64, prompt, 40, temperature)] for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    model = table_target(TABLE)
    assert ids_of(run(model, prompts, params)) == expected
    assert ids_of(run(model, prompts, params, Fixed([4, 2, 1, 4]))) == expected


def test_an_unseeded_request_is_keyed_by_engine_seed_and_arrival() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=25)
    with LLM(hf_model=table_target(TABLE), seed=5) as llm:
        first = llm.generate([[1], [1]], params)
        second = llm.generate([1], params)
    expected = [[spelled_out(request_key(None, 5, arrival), [1], 25, 1.0)] for arrival in range(3)]
    assert ids_of([*first, *second]) == expected


def test_samples_of_a_prompt_differ_by_their_sequence_index_alone() -> None:
    results = run(table_target(TABLE), [[3, 1]], SamplingParams(temperature=1.0, seed=9, max_tokens=30, n=4))
    assert ids_of(results) == [[spelled_out(9, [3, 1], 30, 1.0, seq_index=i) for i in range(4)]]
    assert [sample.index for sample in results[0].outputs] == [0, 1, 2, 3]
    assert len({tuple(ids) for ids in ids_of(results)[0]}) == 4


def test_a_seed_gives_the_same_text_again_and_another_seed_another() -> None:
    texts: dict[int, set[tuple[int, ...]]] = {}
    with LLM(hf_model=target("llama")) as llm:
        for seed in (1, 2, 3) * 2:
            params = SamplingParams(temperature=1.0, seed=seed, max_tokens=20, ignore_eos=True)
            texts.setdefault(seed, set()).add(tuple(llm.generate([5, 6, 7], params)[0].outputs[0].token_ids))
    assert all(len(said) == 1 for said in texts.values())
    assert len(set.union(*texts.values())) == 3


def test_a_text_that_was_cut_goes_on_as_if_it_had_not_been() -> None:
    model = target("llama")
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=24, ignore_eos=True)
    ((whole,),) = ids_of(run(model, [[5, 6, 7]], params))
    rest = SamplingParams(temperature=1.0, seed=4, max_tokens=14, ignore_eos=True)
    assert ids_of(run(model, [[5, 6, 7, *whole[:10]]], rest)) == [[whole[10:]]]


def test_unseeded_requests_are_independent_draws_from_the_distribution() -> None:
    with LLM(hf_model=table_target(TABLE), max_num_seqs=256) as llm:
        results = llm.generate([[2]] * 4000, SamplingParams(temperature=1.0, max_tokens=2))
    counts, pairs = np.zeros(VOCAB, np.int64), np.zeros((VOCAB, VOCAB), np.int64)
    for result in results:
        a, b = result.outputs[0].token_ids
        counts[a] += 1
        pairs[a, b] += 1
    assert_follows(counts, TABLE[2])
    assert_follows(pairs, TABLE)
    firsts = [result.outputs[0].token_ids[0] for result in results]
    neighbours = np.zeros((VOCAB, VOCAB), np.int64)
    np.add.at(neighbours, (firsts[:-1], firsts[1:]), 1)
    assert_follows(neighbours, np.tile(TABLE[2], (VOCAB, 1)))


@pytest.mark.parametrize("temperature", [1e-3, 1e-8, 1e-39, 1e-60])
def test_a_temperature_near_zero_takes_the_most_likely_id(temperature: float) -> None:
    greedy = ids_of(run(target("llama"), [[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)))
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=12, ignore_eos=True)
    assert ids_of(run(target("llama"), [[5, 6, 7]], params)) == greedy


@pytest.mark.parametrize("temperature", [1e6, 1e300])
def test_a_temperature_without_end_draws_every_id_alike(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=50, n=40)
    results = run(table_target(TABLE), [[1]], params)
    assert_follows(np.bincount(np.ravel(ids_of(results)), minlength=VOCAB), np.full(VOCAB, 1 / VOCAB))


@pytest.mark.parametrize("verifier", ["standard", "block"])
def test_a_verifier_that_draws_for_itself_leaves_the_sampler_the_steps_without_drafts(
    verifier: str, monkeypatch: Any
) -> None:
    drawn: list[int] = []
    draw = Sampler.draw

    def counted(self: Sampler, processed: torch.Tensor, noise: Any, rows: DrawRows) -> torch.Tensor:
        drawn.append(len(rows))
        return draw(self, processed, noise, rows)

    monkeypatch.setattr(Sampler, "draw", counted)
    sampling = [SamplingParams(temperature=t, seed=5, max_tokens=30) for t in (1.0, 0.0)]
    config = {"method": "stub", "num_speculative_tokens": 3, "rejection_sample_method": verifier}
    plugins = {"stub": stub_plugin(Soft(TABLE))}
    texts = {}
    for alone in (True, False):  # and with what the host draws, the text is the same
        with LLM(hf_model=table_target(TABLE), speculative_config=config, plugins=plugins, strict=True) as llm:
            contained = llm._engine.stepper.speculation.verifier
            assert contained.draws_for_itself
            contained.draws_for_itself = alone
            drawn.clear()
            results = llm.generate([[1], [2]], sampling)
            texts[alone] = ids_of(results)
            steps = max(result.metrics.steps for result in results)
            assert steps > 5
            # The prompts' step, and at most a last one for which no draft has room.
            assert len(drawn) <= 2 if alone else len(drawn) >= steps
    assert texts[True] == texts[False]


@pytest.mark.parametrize(("temperatures", "known"), [((0.0, 0.0), True), ((0.0, 1.0), False)])
def test_a_verifier_is_handed_the_largest_logits_where_they_are_known(
    temperatures: tuple[float, float], known: bool, monkeypatch: Any
) -> None:
    """Looking for rows without a distribution has found them: a second pass over the logits would find the same."""
    handed: list[bool] = []
    sampling = [SamplingParams(temperature=t, seed=5, max_tokens=12) for t in temperatures]
    config = {"method": "stub", "num_speculative_tokens": 3}
    plugins = {"stub": stub_plugin(Fixed([4, 2, 7]))}
    with LLM(hf_model=table_target(TABLE), speculative_config=config, plugins=plugins, strict=True) as llm:
        contained = llm._engine.stepper.speculation.verifier
        verify = contained.verify

        def watched(draft: Any, logits: torch.Tensor, noise: Any, draws: torch.Tensor | None, greedy: Any) -> Any:
            handed.append(draws is not None)
            assert draws is None or torch.equal(draws, logits.argmax(-1))
            return verify(draft, logits, noise, draws, greedy)

        monkeypatch.setattr(contained, "verify", watched)
        llm.generate([[1], [2]], sampling)
    assert handed
    assert set(handed) == {known}
