"""`lookahead` keeps the contract, its text is plain decoding's, and no row of its window is accepted by accident."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest

from specdec_core.config.resolve import resolve
from specdec_core.draft import BatchView
from specdec_core.errors import ConfigError
from specdec_core.host.verified import Answers, verified_rows
from specdec_core.noise import Noise
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_engine import LLM, SamplingParams
from specdec_plugin_lookahead.options import LookaheadOptions
from specdec_plugin_lookahead.proposer import LookaheadProposer
from specdec_plugin_verifiers.coupled import Coupled
from specdec_testing.contract import ProposerContract
from specdec_testing.fakes import FakeRequest
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.identity import IdentityContract, assert_same_output
from specdec_testing.table import joint, random_table, table_target
from specdec_testing.targets import tiny_target

INFO = TargetInfo(model=None, hf_config={}, vocab_size=128, hidden_size=32, num_layers=2, max_model_len=256)


class TestContract(ProposerContract):
    """With the usual window, and with one that is larger than what may be drafted in most steps."""

    @pytest.fixture
    def method(self):
        return "lookahead"

    @pytest.fixture(params=[(2, 3, 2), (4, 5, 2)], ids=["small", "long"])
    def options(self, request):
        window, length, guesses = request.param
        return {"window_size": window, "ngram_size": length, "guess_set_size": guesses}

    @pytest.fixture
    def k(self, options):
        return LookaheadOptions(**options).nodes


class TestIdentity(IdentityContract):
    ks = (7, 15)

    @pytest.fixture
    def method(self):
        return "lookahead"


def resolved(**options):
    return resolve({"method": "lookahead", **options}, INFO, Registry(Catalog.discover(), strict=True))


@pytest.mark.parametrize(("w", "n", "g", "rows"), [(4, 3, 4, 16), (7, 5, 7, 56), (1, 3, 0, 2)])
def test_k_is_the_number_of_rows_without_the_newest_id(w, n, g, rows):
    found = resolved(window_size=w, ngram_size=n, guess_set_size=g)
    assert found.num_speculative_tokens == rows - 1 == n - 2 + (w - 1 + g) * (n - 1)
    assert found.traits.verified_top_k == 1 and not found.traits.remembers


def test_a_k_that_cuts_the_window_is_refused_with_the_least_one():
    with pytest.raises(ConfigError, match="give at least 7"):
        resolved(num_speculative_tokens=6)
    with pytest.raises(ConfigError, match="15"):
        resolved(num_speculative_tokens=16)


VOCAB, LENGTH = 3, 5
TARGET = random_table(VOCAB, seed=5, concentration=0.8)


def view(tokens, verified, k):
    request = FakeRequest("a", tokens[:2])
    request.extend(tokens[2:])
    one = np.ones(1, np.int32)
    noise = Noise(np.zeros(1, np.uint64), one * len(tokens), np.zeros(1, np.int32))
    return request.view, BatchView(
        [request.view], one * (len(tokens) - 1), np.ones(1, np.bool_), one * k, noise, None, verified
    )


def outcomes(draft, tokens):
    """Every way in which the target's draws go through a tree: (chance, draws by row, accepted nodes, emitted ids)."""
    children = {}
    for node, (parent, token) in enumerate(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)):
        assert children.setdefault((parent, token), node) == node, "siblings differ"
    waiting = [(1.0, {}, [], [])]
    while waiting:
        chance, draws, path, emitted = waiting.pop()
        at = path[-1] if path else -1
        newest = emitted[-1] if emitted else tokens[-1]
        for token in range(VOCAB):
            p = chance * TARGET[newest, token]
            after = (p, {**draws, at + 1: token}, path, [*emitted, token])
            if (at, token) in children:
                waiting.append((after[0], after[1], [*path, children[at, token]], after[3]))
            elif p > 0:
                yield after


def test_texts_have_the_targets_distribution_by_enumeration():
    """Through the real proposer and verifier, with draws at rows off the path that agree with the drafts there."""
    options = LookaheadOptions(window_size=3, ngram_size=3, guess_set_size=2)
    found = np.zeros((VOCAB,) * LENGTH)
    prompt = [0, 1]
    proposer = LookaheadProposer(options)
    states = [(1.0, prompt, proposer, None)]
    accepted = 0
    while states:
        chance, tokens, proposer, verified = states.pop()
        request, batch = view(tokens, verified, options.nodes)
        if verified is None:
            proposer.start(request)
        draft = proposer.propose(batch)
        for p, draws, path, emitted in outcomes(draft, tokens):
            target_draws = adversarial(draft)
            for row, token in draws.items():
                target_draws[row] = token
            import torch

            verdict = Coupled().verify(draft, None, batch.noise, torch.from_numpy(target_draws), np.array([False]))
            assert verdict.emitted.tolist() == emitted and verdict.path.tolist() == path
            accepted += len(path)
            text = [*tokens, *emitted]
            if len(text) >= len(prompt) + LENGTH:
                found[tuple(text[len(prompt) : len(prompt) + LENGTH])] += chance * p
                continue
            rows = [tokens[-1], *draft.tokens.tolist()]
            top = TARGET[rows].argmax(axis=1).astype(np.int32)[:, None]
            answers = Answers.of(
                np.array(rows, np.int32), draft.parents, np.array(path, np.int32), top, np.zeros(top.shape, np.float32)
            )
            states.append((chance * p, text, copy.deepcopy(proposer), verified_rows([answers], 1)))
    assert accepted > 100
    np.testing.assert_allclose(found.ravel(), joint(TARGET, prompt[-1], LENGTH), atol=1e-12)


def adversarial(draft):
    """Draws that accept a draft at each row that has one."""
    draws = np.zeros(1 + len(draft.tokens), np.int64)
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        draws[parent + 1] = token
    return draws


@pytest.mark.slow
@pytest.mark.parametrize("verifier", ["standard", "coupled"])
def test_sampled_texts_follow_the_targets_distribution(verifier):
    count, size, length = 3000, 4, 3
    table = random_table(size, seed=1, concentration=0.8)
    config = {"method": "lookahead", "window_size": 3, "guess_set_size": 2, "rejection_sample_method": verifier}
    sampling = [SamplingParams(temperature=1.0, seed=i, max_tokens=length + 3, ignore_eos=True) for i in range(count)]
    model = table_target(table, num_layers=1, max_position_embeddings=64)
    with LLM(hf_model=model, speculative_config=config, max_num_seqs=count, strict=True) as llm:
        results = llm.generate([{"prompt_token_ids": [1, 2, 0]}] * count, sampling, use_tqdm=False)
    assert sum(result.metrics.accepted for result in results) > count / 4
    ids = np.array([result.outputs[0].token_ids[:length] for result in results])
    codes = ids @ (size ** np.arange(length)[::-1])
    assert_follows(np.bincount(codes, minlength=size**length), joint(table, 0, length))


def test_what_is_accepted_of_a_ring_is_all_that_n_grams_hold():
    """A target that goes round in a ring is foretold once its n-grams are known, whoever runs beside it."""
    ring = np.full((7, 7), 0.01)
    for i in range(7):
        ring[i, (3 * i + 1) % 7] = 1.0
    model = table_target(ring / ring.sum(axis=1, keepdims=True), num_layers=1, max_position_embeddings=128)
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    prompts = [{"prompt_token_ids": [2, 4, 2]}, {"prompt_token_ids": [1, 6]}]
    plain = LLM(hf_model=model, strict=True).generate(prompts, params, use_tqdm=False)
    config = {"method": "lookahead", "prompt_as_reference": False}
    with LLM(hf_model=model, speculative_config=config, strict=True) as llm:
        spec = llm.generate(prompts, params, use_tqdm=False)
    assert_same_output(plain, spec)
    for result in spec:
        assert result.metrics.accepted > 30


def test_preemption_gaps_and_small_budgets_change_no_text():
    model = tiny_target("llama", max_position_embeddings=512)
    rng = np.random.default_rng(0)
    prompts = [{"prompt_token_ids": rng.integers(3, 128, n).tolist()} for n in (30, 41, 22)]
    params = [SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=45, ignore_eos=True) for i in range(3)]
    plain = LLM(hf_model=model, strict=True).generate(prompts, params, use_tqdm=False)
    for more, llm_more in itertools.product(({}, {"max_step_tokens": 9}), ({}, {"kv_cache_tokens": 144})):
        with LLM(hf_model=model, speculative_config={"method": "lookahead", **more}, strict=True, **llm_more) as llm:
            assert_same_output(plain, llm.generate(prompts, params, use_tqdm=False))
