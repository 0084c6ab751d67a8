"""Sampling and losslessness: the inputs of docs/bug-reports.md, as far as what exists now can meet them."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from runs import ids_of, prompts, run, target

from specdec_core import hookimpl
from specdec_core.draft import Draft
from specdec_core.noise import Noise, Purpose
from specdec_core.traits import MethodTraits
from specdec_engine import LLM, SamplingParams
from specdec_engine.compare import first_difference
from specdec_nn.ops.race.reference import race_reference
from specdec_plugin_verifiers.coupled import Coupled
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.stubs import Fixed, Garbage, Perfect, Soft, Stub, stub_plugin
from specdec_testing.table import random_table, table_target

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
# The distribution of the reports, the same after every id.
P, Q = np.tile([0.5, 0.3, 0.2], (3, 1)), np.tile([0.2, 0.5, 0.3], (3, 1))


def fast(table: Any) -> Any:
    """The table's model with one layer and a short context, for fifty thousand draws."""
    return table_target(table, num_layers=1, max_position_embeddings=64)


def transitions(results: Any, size: int) -> Any:
    """How often each id followed each other id in all samples."""
    counts = np.zeros((size, size), np.int64)
    for result in results:
        for sample in result.outputs:
            ids = result.prompt_token_ids[-1:] + sample.token_ids
            np.add.at(counts, (ids[:-1], ids[1:]), 1)
    return counts


class ArgmaxOfSoft(Stub):
    """Drafts argmax(q) and says that it drew from q, which is not true."""

    traits = MethodTraits(draft_distribution="soft", shares_noise=True)

    def propose(self, batch: Any) -> Draft:
        self.calls += 1
        draft = Draft.of([[int(Q[0].argmax())] * int(m) for m in batch.max_draft])
        draft.q = torch.tensor(Q[:1], dtype=torch.float32)
        draft.q_row = np.zeros(len(draft.tokens), np.int32)
        return draft


@pytest.mark.slow
def test_a_greedy_draft_that_reports_a_soft_distribution_biases_nothing_row_1() -> None:
    params = SamplingParams(temperature=1.0, seed=1, n=1000, max_tokens=50)
    results = run(fast(P), [[0]], params, ArgmaxOfSoft(), k=1, max_num_seqs=1000)
    counts = transitions(results, 3)
    assert counts.sum() == 50_000
    assert results[0].metrics.accepted > 10_000
    assert_follows(counts, P)


def test_a_point_mass_that_reports_a_soft_distribution_is_refused_and_the_text_is_right_row_1() -> None:
    class Liar(ArgmaxOfSoft):
        traits = MethodTraits(draft_distribution="deterministic")

    params = SamplingParams(temperature=1.0, seed=1, max_tokens=30)
    plugins = {"stub": stub_plugin(Liar())}
    config = {"method": "stub", "num_speculative_tokens": 1}
    with LLM(hf_model=table_target(P), speculative_config=config, plugins=plugins) as llm:
        spec = llm.generate([[0]], params)
        assert llm.get_metrics().failures > 0
        assert llm.get_metrics().drafted == 0
    assert ids_of(spec) == ids_of(run(table_target(P), [[0]], params))


class Watching:
    """`coupled`, which looks at its inputs before and after."""

    def __init__(self) -> None:
        self.inner, self.calls, self.soft = Coupled(), 0, 0
        self.wrong: list[str] = []
        self.table: Any = None

    def verify(self, draft: Any, logits: Any, noise: Any, target_draws: Any, greedy: Any) -> Any:
        self.calls += 1
        logits_kept, draws_kept, tokens_kept = logits.clone(), target_draws.clone(), draft.tokens.copy()
        verdict = self.inner.verify(draft, logits, noise, target_draws, greedy)
        same = torch.equal(logits, logits_kept) and torch.equal(target_draws, draws_kept)
        if not same or not np.array_equal(draft.tokens, tokens_kept):
            self.wrong.append("inputs were written to")
        if len(logits) != sum(draft.lengths) + len(draft.lengths) or len(noise.keys) != len(logits):
            self.wrong.append("rows do not add up")
        if draft.q is not None:
            self._check_distributions(draft)
        return verdict

    def _check_distributions(self, draft: Any) -> None:
        """A draft after the first of its row must have been drawn from the row of the draft before it."""
        ends = np.cumsum([0, *draft.lengths])
        for start, end in itertools.pairwise(ends):
            for at in range(start + 1, end):
                self.soft += 1
                if not np.array_equal(draft.q[draft.q_row[at]].numpy(), self.table[draft.tokens[at - 1]]):
                    self.wrong.append(f"draft {at} has a distribution of another row")


class WatchingPlugin:
    """Offers the verifier above."""

    def __init__(self, verifier: Watching) -> None:
        self.verifier = verifier

    @hookimpl
    def specdec_verifier_emits_host_draws(self) -> bool:
        return True  # it is `coupled` that decides

    @hookimpl
    def specdec_make_verifier(self) -> Watching:
        return self.verifier


def test_a_verifier_writes_to_none_of_its_inputs_row_3() -> None:
    watching = Watching()
    config = {**NGRAM, "num_speculative_tokens": 2, "rejection_sample_method": "watching"}
    params = SamplingParams(temperature=1.0, seed=3, n=20, max_tokens=60)
    table = random_table(4, seed=3)
    results = run(table_target(table), [[0]], params, config=config, plugins={"watching": WatchingPlugin(watching)})
    assert watching.calls > 20
    assert watching.wrong == []
    assert_follows(transitions(results, 4), table)


@pytest.mark.slow
@pytest.mark.parametrize(("verifier", "drafts"), [("coupled", [3, 3]), ("standard", [1, 3])])
def test_drafts_are_scored_with_the_requests_own_temperature_and_nucleus_row_4(
    verifier: str, drafts: list[int]
) -> None:
    """At temperature 0.7 the nucleus of 0.5 is {0, 1}: ids outside never appear, and the others follow it."""
    table = np.tile([0.4, 0.3, 0.2, 0.1], (4, 1))
    params = SamplingParams(temperature=0.7, top_p=0.5, seed=4, n=1000, max_tokens=50)
    config = {"rejection_sample_method": verifier}
    results = run(fast(table), [[0]], params, Fixed(drafts), k=2, config=config, max_num_seqs=1000)
    counts = transitions(results, 4)
    assert counts.sum() == 50_000
    distribution = np.array([0.4, 0.3, 0.0, 0.0]) ** (1 / 0.7)
    assert_follows(counts.sum(axis=0), distribution / distribution.sum())


def test_greedy_and_sampled_rows_share_a_batch_row_5() -> None:
    model, texts = target("llama"), prompts((9, 20, 14))
    more = {"seed": 5, "max_tokens": 24, "ignore_eos": True, "top_p": 0.9, "top_k": 30}
    params = [SamplingParams(temperature=t, **more) for t in (0.0, 0.8, 0.0)]
    plain = run(model, texts, params)
    perfect = Perfect.of_run(texts, plain)
    config = {"method": "stub", "num_speculative_tokens": 2}
    with LLM(hf_model=model, speculative_config=config, plugins={"stub": stub_plugin(perfect)}, strict=True) as llm:
        before: dict[str, Any] = {}
        for _ in llm.stream(texts, params):
            now = {k: v for k, v in asdict(llm.get_metrics()).items() if isinstance(v, int)}
            assert all(now[key] >= value >= 0 for key, value in before.items()), "counters never decrease"
            before = now
        assert ids_of(llm.generate(texts, params)) == ids_of(plain)
        assert llm.get_metrics().accepted == llm.get_metrics().drafted > 0
    alone = [run(model, [text], [one])[0] for text, one in zip(texts, params, strict=True)]
    assert ids_of(plain) == ids_of(alone)


def test_an_unseeded_row_among_seeded_ones_changes_nothing_row_6() -> None:
    model, texts = target("llama"), prompts((9, 20, 14))
    params = [SamplingParams(temperature=0.1, seed=seed, max_tokens=24, ignore_eos=True) for seed in (7, None, 9)]
    for stub in (Garbage(128), Fixed([5, 5])):
        together = ids_of(run(model, texts, params, stub, k=4))
        for i in (0, 2):
            assert together[i] == ids_of(run(model, texts[i : i + 1], params[i : i + 1]))[0]
        assert together == ids_of(run(model, texts, params))
        assert all(0 <= token < 128 for token in together[1][0])
        assert len(set(together[1][0])) > 3


def test_a_seed_gives_the_same_ids_in_a_fresh_engine_row_7() -> None:
    params = SamplingParams(temperature=2.0, seed=42, max_tokens=10, ignore_eos=True)
    first = ids_of(run(target("llama"), [[5, 6, 7]], params))
    assert ids_of(run(target("llama"), [[5, 6, 7]], params)) == first
    assert ids_of(run(target("llama"), [[5, 6, 7]], params, config=NGRAM)) == first


def test_unseeded_calls_one_after_the_other_say_different_things_row_8() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=10, ignore_eos=True)
    for config in (None, NGRAM):
        with LLM(hf_model=target("llama"), speculative_config=config) as llm:
            texts = [tuple(llm.generate([5, 6, 7], params)[0].outputs[0].token_ids) for _ in range(8)]
        assert len(set(texts)) == 8


@pytest.mark.slow
def test_each_row_of_a_batch_keeps_its_own_distribution_row_9() -> None:
    # Four requests live in four blocks of one table, so that each sees a table of its own.
    blocks = [random_table(3, seed=90 + i, concentration=0.7) for i in range(4)]
    table, drafts = np.zeros((12, 12)), np.zeros((12, 12))
    for i, block in enumerate(blocks):
        table[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] = block
        drafts[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] = random_table(3, seed=80 + i)
    params = [SamplingParams(temperature=0.3, seed=i, n=250, max_tokens=50) for i in range(4)]
    stub = Soft(drafts, shared=True)
    results = run(fast(table), [[0], [3], [6], [9]], params, stub, k=3, max_num_seqs=1000)
    for i, (result, block) in enumerate(zip(results, blocks, strict=True)):
        distribution = block ** (1 / 0.3)
        counts = transitions([result], 12)[3 * i : 3 * i + 3, 3 * i : 3 * i + 3]
        assert counts.sum() == 12_500
        assert result.metrics.accepted > 0
        assert_follows(counts, distribution / distribution.sum(axis=1, keepdims=True))


def test_distributions_travel_with_their_drafts_through_preemption_rows_9_and_10() -> None:
    watching = Watching()
    stub = Soft(random_table(128, seed=10), shared=True)
    watching.table = stub.q
    model, texts = target("llama"), prompts((30, 41, 22, 35))
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=60, ignore_eos=True) for i in range(4)]
    spec = run(
        model,
        texts,
        params,
        stub,
        config={"rejection_sample_method": "watching"},
        plugins={"watching": WatchingPlugin(watching)},
        kv_cache_tokens=224,
    )
    assert ("preempted" in {reason for _, reason in stub.finished}) and watching.soft > 100
    assert watching.wrong == []
    plain = run(model, texts, params)
    assert ids_of(spec) == ids_of(plain)
    perfect = Perfect.of_run(texts, plain)
    spec = run(model, texts, params, perfect, kv_cache_tokens=224)
    assert "preempted" in {reason for _, reason in perfect.finished}
    assert all(result.metrics.accepted == result.metrics.drafted > 0 for result in spec), "none met another's row"


def test_temperature_zero_is_greedy_whatever_the_seed_row_12() -> None:
    model, texts = target("llama"), prompts((9, 20))
    answers = []
    for seed, top_p in ((1, 0.9), (1, 0.9), (2, 1.0), (None, 0.01)):
        params = SamplingParams(temperature=0.0, top_p=top_p, seed=seed, max_tokens=20, ignore_eos=True)
        answers += [ids_of(run(model, texts, params)), ids_of(run(model, texts, params, Garbage(128)))]
    assert all(answer == answers[0] for answer in answers)


def test_float32_is_identical_and_a_difference_comes_with_index_and_margin_row_13() -> None:
    texts = prompts((40, 60, 33, 120))
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    config = {**NGRAM, "num_speculative_tokens": 4}
    exact = target("llama")
    assert ids_of(run(exact, texts, params, config=config)) == ids_of(run(exact, texts, params))
    rough = target("llama", torch.bfloat16)
    with LLM(hf_model=rough, speculative_config=config) as spec, LLM(hf_model=rough) as plain:
        for a, b in zip(plain.generate(texts, params), spec.generate(texts, params), strict=True):
            found = plain.compare(a, b, params)
            assert (found is None) == (ids_of([a]) == ids_of([b]))
            if found is not None:
                index = first_difference(a.outputs[0].token_ids, b.outputs[0].token_ids)
                assert (found.index, found.verdict) == (index, "rounding")
                assert found.margin <= found.noise


def saying(result: Any, ids: list[int]) -> Any:
    """The same result with another text."""
    return replace(result, outputs=[replace(result.outputs[0], token_ids=ids)])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_wrong_token_is_called_a_fault_with_its_margin_row_13(temperature: float) -> None:
    text, params = prompts((40,)), SamplingParams(temperature=temperature, seed=2, max_tokens=20, ignore_eos=True)
    with LLM(hf_model=target("llama")) as llm:
        (plain,) = llm.generate(text, params)
        ids = plain.outputs[0].token_ids
        assert llm.compare(plain, plain, params) is None
        wrong = [*ids[:7], (ids[7] + 1) % 128, *ids[8:]]
        found = llm.compare(plain, saying(plain, wrong), params)
        assert found is not None
        assert (found.index, found.plain, found.other, found.verdict) == (7, ids[7], wrong[7], "fault")
        assert found.margin > found.noise >= 0
        assert f"index 7 ({ids[7]} against {wrong[7]})" in str(found)
        short = llm.compare(plain, saying(plain, ids[:5]), params)
        assert short is not None
        assert (short.index, short.other) == (5, None)
        assert ids_of(llm.generate(text, params)) == [[ids]], "the engine serves on"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_that_ties_with_the_plain_one_is_called_rounding_row_13(dtype: torch.dtype) -> None:
    text, params = prompts((40,)), SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    model = target("llama", dtype)
    ((said,),) = ids_of(run(model, text, params))
    twin = said[0] + 1
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[twin] = head[said[0]]
    with LLM(hf_model=model) as llm:
        (plain,) = llm.generate(text, params)
        assert plain.outputs[0].token_ids[0] == said[0]
        other = [twin, *plain.outputs[0].token_ids[1:]]
        found = llm.compare(plain, saying(plain, other), params)
    assert found is not None
    assert (found.index, found.verdict) == (0, "rounding")
    assert 0 <= found.margin <= found.noise


def test_emitting_the_targets_own_draw_is_exact_and_a_second_draw_is_not_row_15() -> None:
    """The report calls the first rule biased; it is the second that is."""
    rng = np.random.default_rng(15)
    n = 60_000
    keys = rng.integers(0, 2**63, n).astype(np.uint64)
    place = Noise(keys, np.full(n, 5, np.int32), np.zeros(n, np.int32))
    probs = torch.tensor(P[:1], dtype=torch.float32).expand(n, 3).contiguous()
    draws = race_reference(probs, place, Purpose.TARGET)
    drafted = rng.choice(3, n, p=Q[0]).astype(np.int32)
    lengths = [1] * n
    both = torch.stack([draws, draws], 1).reshape(-1)  # the second row of each chain does not matter here
    noise = Noise(np.repeat(keys, 2), np.tile(np.array([5, 6], np.int32), n), np.zeros(2 * n, np.int32))
    sampled = np.zeros(n, np.bool_)
    verdict = Coupled().verify(Draft(lengths, drafted), probs.repeat_interleave(2, 0).log(), noise, both, sampled)
    firsts = verdict.emitted[np.cumsum(verdict.accepted + 1) - verdict.accepted - 1]
    assert_follows(np.bincount(firsts, minlength=3), P[0])
    second = race_reference(probs, place, Purpose.RESIDUAL).numpy()
    redrawn = np.where(drafted == draws.numpy(), drafted, second)
    with pytest.raises(AssertionError, match="do not follow the distribution"):
        assert_follows(np.bincount(redrawn, minlength=3), P[0])
