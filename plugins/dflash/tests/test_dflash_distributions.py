"""Drawn drafts report the q that they were drawn from; confidence is the oracle's, and may end a draft."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_layouts import EVERY, Layout
from dflash_oracle import distribution
from dflash_replay import Moment, moments, watched

from specdec_testing.driving import Driver, Script
from specdec_testing.goodness_of_fit import assert_follows

TEMPERATURES = {"warm": 0.7, "greedy": 0.0, "hot": 1.4}
SCRIPTS = [
    Script(name, tuple(range(3 + i, 20 + 3 * i)), seed=i, temperature=temperature, limits=(4, 2))
    for i, (name, temperature) in enumerate(TEMPERATURES.items())
]
DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}


def drive(layout: Layout, folder: Path, scripts: list[Script] = SCRIPTS, **options: Any) -> Iterator[Moment]:
    proposer, resolved, target = layout.build(folder, 4, **options)
    recorder = watched(proposer, resolved.traits)
    driver = Driver(recorder, resolved.traits, target)
    driver.run(scripts)
    assert driver.problems == []
    yield from moments(recorder)


@pytest.mark.parametrize(
    "name",
    [
        "dflash: standard",
        "dflash: small vocabulary",
        "dflash: padded head",
        "dspark: from the anchor",
        "dspark: filling in",
        "dspark: candidates by config",
        "dspark: candidates of a small vocabulary",
    ],
)
def test_reported_distributions_are_the_softmax_of_the_oracles_logits(name: str, tmp_path: Path) -> None:
    layout = EVERY[name]
    oracle, compared, differing = layout.oracle(), 0, 0
    for moment in drive(layout, tmp_path / "x", **DRAWN):
        wanted = oracle.draft(moment.rows, moment.newest, moment.limit, given=moment.tokens, whole=4)
        draft, temperature = moment.draft, TEMPERATURES[moment.name]
        if temperature == 0.0:
            assert draft.q_row is None or (draft.q_row[moment.flat] == -1).all()
            assert moment.tokens == [int(logits.argmax()) for logits in wanted.logits]
            continue
        assert draft.q is not None
        assert draft.q_row is not None
        for logits, row, token in zip(wanted.logits, draft.q_row[moment.flat].tolist(), moment.tokens, strict=True):
            q = torch.zeros(len(logits), dtype=torch.float64)
            ids = torch.arange(draft.q.shape[1])
            q[ids if draft.d2t is None else ids + draft.d2t] = draft.q[row].double()
            torch.testing.assert_close(q, distribution(logits, temperature), atol=2e-5, rtol=1e-3)
            assert q[token] > 0
            compared += 1
            differing += token != int(logits.argmax())
    assert compared > 20
    assert differing >= 2, "drafts were drawn, not the likeliest ones"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dflash: small vocabulary", "dspark: filling in"])
def test_draws_of_every_place_follow_the_reported_distribution(name: str, tmp_path: Path) -> None:
    """Ids are gathered in classes by their probability within each distribution, which makes one table of all draws."""
    layout, count = EVERY[name], 700
    scripts = [Script(f"r{i}", (5, 6, 7), seed=i, temperature=1.3, limits=(3,), steps=1) for i in range(count)]
    scripts = [Script(**{**vars(script), "join": i // 12 * 3}) for i, script in enumerate(scripts)]
    classes = np.zeros((3, 4), np.int64)
    expected = np.zeros((3, 4))
    edges = np.array([0.25, 0.5, 0.75])
    for moment in drive(layout, tmp_path / "x", scripts, **DRAWN):
        draft = moment.draft
        assert draft.q is not None
        assert draft.q_row is not None
        for depth, row in enumerate(draft.q_row[moment.flat].tolist()):
            q = draft.q[row].double()
            token = moment.tokens[depth]
            ids = torch.arange(len(q)) + (0 if draft.d2t is None else draft.d2t)
            below = torch.cat([torch.zeros(1).double(), q.cumsum(0)])
            index = int((ids == token).nonzero())
            # the class of a draw: where the middle of its piece of the line lies
            middle = (below[:-1] + below[1:]) / 2
            group = np.searchsorted(edges, middle.numpy())
            classes[depth, group[index]] += 1
            expected[depth] += [float(q[torch.from_numpy(group == c)].sum()) for c in range(4)]
    totals = classes.sum(axis=1)
    assert (totals >= count).all()
    assert_follows(classes, expected / totals[:, None])


def test_drafts_with_shared_noise_are_the_targets_draws_where_the_distributions_agree(tmp_path: Path) -> None:
    """The host's draw at a place is the race of its row with the noise of that place; here it is run on q itself."""
    from specdec_core.noise import Noise, Purpose, request_key
    from specdec_nn.ops.race.reference import race_reference

    layout = EVERY["dflash: standard"]
    oracle, compared = layout.oracle(), 0
    options = {"draft_sample_method": "probabilistic", "rejection_sample_method": "coupled"}
    for moment in drive(layout, tmp_path / "x", **options):
        temperature = TEMPERATURES[moment.name]
        assert moment.draft.q is None
        if temperature == 0.0:
            continue
        wanted = oracle.draft(moment.rows, moment.newest, moment.limit, given=moment.tokens, whole=4)
        seed, n = list(TEMPERATURES).index(moment.name), moment.rows[-1][0] + 1
        for depth, (logits, token) in enumerate(zip(wanted.logits, moment.tokens, strict=True)):
            key, position = request_key(seed, 0, 0), n + 1 + depth
            noise = Noise(np.array([key], np.uint64), np.array([position], np.int32), np.zeros(1, np.int32))
            assert (
                int(race_reference(distribution(logits, temperature)[None].float(), noise, Purpose.TARGET)[0]) == token
            )
            compared += 1
    assert compared > 10


@pytest.mark.parametrize("name", ["dspark: confidence", "dspark: confidence with Markov"])
def test_a_draft_ends_before_the_first_token_below_the_threshold(name: str, tmp_path: Path) -> None:
    layout = EVERY[name]
    oracle, ends, threshold = layout.oracle(), set[int](), 0.5
    for moment in drive(layout, tmp_path / "x", confidence_threshold=threshold):
        wanted = oracle.draft(moment.rows, moment.newest, moment.limit, whole=4)
        sure = [c >= threshold for c in wanted.confidence]
        length = sure.index(False) if False in sure else len(sure)
        assert moment.tokens == wanted.tokens[:length]
        confidence = moment.draft.confidence
        assert confidence is not None
        np.testing.assert_allclose(confidence[moment.flat], np.cumprod(wanted.confidence)[:length], atol=1e-5)
        ends.add(length)
    assert {0, 1, 2} & ends
    assert len(ends) > 1


def test_drawn_drafts_that_are_cut_keep_their_distributions(tmp_path: Path) -> None:
    layout = EVERY["dspark: confidence with Markov"]
    oracle, compared = layout.oracle(), 0
    for moment in drive(layout, tmp_path / "x", confidence_threshold=0.4, **DRAWN):
        temperature, draft = TEMPERATURES[moment.name], moment.draft
        if temperature == 0.0 or not moment.tokens:
            continue
        padded = moment.tokens + [0] * (moment.limit - len(moment.tokens))
        wanted = oracle.draft(moment.rows, moment.newest, moment.limit, given=padded, whole=4)
        assert draft.q is not None
        assert draft.q_row is not None
        for logits, row in zip(wanted.logits, draft.q_row[moment.flat].tolist(), strict=False):
            torch.testing.assert_close(draft.q[row].double(), distribution(logits, temperature), atol=2e-5, rtol=1e-3)
            compared += 1
    assert compared > 4
