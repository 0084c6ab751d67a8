"""Drawn drafts: the reported q is the one that they are drawn from, and the text keeps the target's distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draft_model_folders import asked, drafter, keys, patch, saved
from draft_model_oracle import Ids, Oracle
from draft_model_tokenizers import numbered

from specdec_engine import LLM, SamplingParams
from specdec_testing.fakes import FakeRequest, FakeTarget
from specdec_testing.goodness_of_fit import assert_follows, count
from specdec_testing.table import random_table, table_target
from specdec_testing.targets import tiny_target

V = 6
DISTRIBUTION = random_table(V, seed=1, concentration=0.8)
OTHER = random_table(V, seed=2, concentration=0.8)
DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
REQUESTS = 64


@pytest.mark.parametrize("way", ["one by one", "in one pass", "shared tokens"])
def test_reported_distributions_are_the_softmax_of_the_stock_models_logits(way: str, tmp_path: Path) -> None:
    """At the request's temperature; a greedy request beside others gets point masses. Ids not shared have no chance."""
    words = [f"w{i}" for i in range(128)]
    own = numbered({i: f"w{i + 28}" for i in range(100)}, unk="w28")
    mapped = way == "shared tokens"
    model = saved(tmp_path / "d", tiny_target("llama", seed=5), own if mapped else numbered(words))
    options = {"in one pass": {"parallel_drafting": True}, "shared tokens": {"use_heterogeneous_vocab": True}}
    target = FakeTarget(tiny_target("llama"), tokenizer=numbered(words))
    proposer, traits = drafter(patch(model, pard_token=99), target, **DRAWN, **options.get(way, {}))
    to_draft = {i + 28: i for i in range(100)} if mapped else {i: i for i in range(128)}
    oracle = Oracle(model, Ids(to_draft, {ours: theirs for theirs, ours in to_draft.items()}))
    requests = [FakeRequest(f"r{i}", [9, 40, 77 + i], temperature=t) for i, t in enumerate((0.7, 0.0, 1.3))]
    for request in requests:
        proposer.start(request)
    draft = asked(proposer, requests, 4)
    draft.check([4] * 3, 128, traits)
    assert draft.q is not None
    assert draft.q_row is not None
    offsets = torch.zeros(draft.q.shape[1], dtype=torch.int64) if draft.d2t is None else draft.d2t
    columns = (torch.arange(len(offsets)) + offsets).tolist()
    for i, request in enumerate(requests):
        tokens = draft.tokens[4 * i : 4 * i + 4].tolist()
        text = oracle.ids.spell(request.tokens)
        for depth, token in enumerate(tokens):
            before = [99] * depth if way == "in one pass" else oracle.ids.spell(tokens[:depth])
            logits = oracle.logits([*text, *before])[-1]
            temperature, row = request.sampling_params.temperature, int(draft.q_row[4 * i + depth])
            if temperature == 0:
                assert row == -1
                assert token == oracle.ids.to_target[int(logits.argmax())]
                continue
            distribution = (logits / temperature).softmax(-1)[[oracle.ids.to_draft[column] for column in columns]]
            torch.testing.assert_close(draft.q[row].double(), distribution, atol=1e-4, rtol=0)
            assert float(distribution.sum()) == pytest.approx(1.0)


def test_drafts_follow_the_reported_distribution_and_each_place_is_drawn_anew(tmp_path: Path) -> None:
    model = saved(tmp_path / "d", table_target(OTHER))
    proposer, _ = drafter(model, FakeTarget(table_target(DISTRIBUTION), max_num_seqs=REQUESTS), 2, **DRAWN)
    requests = [FakeRequest(f"r{i}", [2], temperature=1.0) for i in range(REQUESTS)]
    for request in requests:
        proposer.start(request)
    pairs = np.concatenate([asked(proposer, requests, 2, step).tokens.reshape(-1, 2) for step in range(60)])
    expected = OTHER[2][:, None] * OTHER
    assert_follows(count(pairs[:, 0] * V + pairs[:, 1], V * V), expected.ravel())


def texts(config: dict[str, Any], draws: int, tokenizer: Any = None, **sampling: Any) -> np.ndarray:
    """Return `draws` texts of three ids behind id 2, [draws, 3]."""
    params = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True, n=draws, seed=5, **sampling)
    with LLM(
        hf_model=table_target(DISTRIBUTION),
        tokenizer=tokenizer,
        speculative_config=config,
        strict=True,
        max_num_seqs=256,
    ) as llm:
        (result,) = llm.generate([{"prompt_token_ids": [2]}], params)
        metrics = llm.get_metrics()
        assert 0 < metrics.accepted < metrics.drafted
    return np.array([sample.token_ids for sample in result.outputs])


def truncated(table: np.ndarray, top_p: float) -> np.ndarray:
    """The smallest set of likeliest ids whose mass reaches top_p, renormalised, row by row."""
    rows = []
    for row in table:
        order = np.argsort(-row)
        keep = order[: 1 + int(np.searchsorted(np.cumsum(row[order]), top_p))]
        rows.append(np.where(np.isin(np.arange(len(row)), keep), row, 0.0))
    kept = np.array(rows)
    return kept / kept.sum(1, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["standard", "block", "shared tokens", "ending early"])
def test_the_text_has_the_targets_distribution_with_top_p_on_the_target_alone(way: str, tmp_path: Path) -> None:
    """Draft ids outside of the nucleus never appear; all pairs of ids are as likely as without drafts."""
    words = [f"w{i}" for i in range(V)]
    # The drafter knows five of the six words, under other ids.
    own = (
        numbered({0: "w5", 1: "w3", 2: "w2", 3: "w1", 4: "w0", 5: "unk"}, unk="unk") if way == "shared tokens" else None
    )
    model = saved(tmp_path / "d", table_target(OTHER), own)
    options: dict[str, Any] = {
        "standard": DRAWN,
        "block": {**DRAWN, "rejection_sample_method": "block"},
        "shared tokens": {**DRAWN, "use_heterogeneous_vocab": True},
        "ending early": {**DRAWN, "draft_confidence_threshold": 0.3},
    }[way]
    found = texts(keys(model, 2, **options), 2500, numbered(words) if own is not None else None, top_p=0.8)
    distribution = truncated(DISTRIBUTION, 0.8)
    assert (distribution == 0).any()
    first, second = distribution[2], distribution
    assert_follows(count(found[:, 0], V), first)
    assert_follows(count(found[:, 1] * V + found[:, 2], V * V), ((first @ second)[:, None] * distribution).ravel())


def test_an_unsure_token_ends_a_draft_and_is_part_of_it(tmp_path: Path) -> None:
    """Whether a draft goes on may depend on what was drawn; whether a token that was drawn is in it may not."""
    table = np.full((V, V), 0.02)
    for i, mass in enumerate((0.9, 0.9, 0.5, 0.9, 0.9, 0.9)):
        table[i, (i + 1) % V] = mass
        table[i, (i + 3) % V] = 1.0 - mass - 0.02 * (V - 2)
    model = saved(tmp_path / "d", table_target(table))
    target = FakeTarget(table_target(DISTRIBUTION))
    for parallel, expected in ((False, {0: [1, 2, 3], 3: [4, 5, 0, 1], 2: [3]}), (True, {2: [3]})):
        options = {"parallel_drafting": True} if parallel else {}
        proposer, _ = drafter(patch(model, pard_token=2), target, draft_confidence_threshold=0.6, **options)
        for start, ids in expected.items():
            request = FakeRequest(f"r{start}", [start])
            proposer.start(request)
            assert asked(proposer, [request], 4).tokens.tolist() == ids
