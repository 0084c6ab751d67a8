"""Drawn drafts: the reported distributions are the oracle's, and the draws follow them, in chains and in trees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from host import PLANS, Call, Host, Life
from layouts import LAYOUTS, PARALLEL, FamilyTarget, Layout

from specdec_core.config.resolve import resolve
from specdec_core.draft import BatchView, Draft
from specdec_core.host.factory import make_verifier
from specdec_core.noise import Noise, Purpose, request_key
from specdec_core.protocols import Verifier
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.token_tree import TokenTree
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import ChainPlan, Round
from specdec_nn.ops.race.reference import race_reference
from specdec_plugin_eagle.static_tree import StaticTreePlan
from specdec_testing.fakes import FakeRequest
from specdec_testing.goodness_of_fit import assert_follows

TREE = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 1, 0))
TEMPERATURES = (0.7, 0.0, 1.3)


def hosted(layout: Layout, folder: Path, k: int = 4, **options: object) -> Host:
    keys = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard", **options}
    proposer, resolved, target = layout.build(folder, k, **keys)
    plans = [replace(p, temperature=t, limits=(k, k, 1)) for p, t in zip(PLANS, TEMPERATURES, strict=True)]
    return Host(proposer, resolved.traits, target, plans, seed=layout.seed)


def nodes_of(call: Call) -> list[tuple[Life, int]]:
    """Return whose each node of a draft is, and its index within its own row."""
    return [(life, i) for life in call.lives for i in range(len(life.drafts[-1][0]))]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"speculative_token_tree": str(list(TREE))}], ids=["chain", "tree"])
@pytest.mark.parametrize("name", ["eagle", "eagle-minicpm-own-head", "eagle3", "eagle3-padded-head", "peagle"])
def test_reported_distributions_are_the_softmax_of_the_oracles_logits(
    name: str, options: dict[str, str], tmp_path: Path
) -> None:
    layout = {**LAYOUTS, **PARALLEL}[name]
    if options and name == "peagle":
        options = {**options, "parallel_drafting": False}  # the same tensors, drafting one by one
    head = layout.head()
    host = hosted(layout, tmp_path / "x", len(TREE), **options)
    compared = 0
    for _ in range(8):
        call = host.step()
        if call is None:
            continue
        trees = {}
        for life in call.lives:
            tokens, parents = life.drafts[-1]
            parallel = name == "peagle" and not options and tokens
            trees[life.plan.name] = (
                oracle.parallel(head, life.rows, len(tokens), 5)
                if parallel
                else oracle.followed(head, life.rows, tokens, parents)
            )
        q, q_row = call.draft.q, call.draft.q_row
        for at, (life, node) in enumerate(nodes_of(call)):
            logits = trees[life.plan.name].nodes[node].logits
            if life.plan.temperature == 0:
                rank = sum(parent == life.drafts[-1][1][node] for parent in life.drafts[-1][1][:node])
                assert life.drafts[-1][0][node] == int(logits.argsort(descending=True)[rank])
                assert q_row is None or q_row[at] == -1
                continue
            assert q is not None
            assert q_row is not None
            distribution = (logits / life.plan.temperature).softmax(-1)[logits.isfinite()]
            torch.testing.assert_close(q[q_row[at]].double(), distribution, atol=1e-4, rtol=0)
            compared += 1
    assert compared > 30


def test_children_differ_and_share_the_distribution_of_their_parent(tmp_path: Path) -> None:
    host = hosted(LAYOUTS["eagle3"], tmp_path / "x", len(TREE), speculative_token_tree=str(list(TREE)))
    seen = 0
    for _ in range(8):
        call = host.step()
        if call is None or call.draft.q_row is None:
            continue
        families: dict[tuple[str, int], set[tuple[int, int]]] = {}
        for at, (life, node) in enumerate(nodes_of(call)):
            tokens, parents = life.drafts[-1]
            family = families.setdefault((life.plan.name, parents[node]), set())
            assert tokens[node] not in {token for token, _ in family}
            family.add((tokens[node], int(call.draft.q_row[at])))
        for family in families.values():
            assert len({row for _, row in family}) == 1
        rows = [{row for _, row in family} for family in families.values()]
        drawn = [row for some in rows for row in some if row >= 0]
        assert len(set(drawn)) == len(drawn), "each parent has a distribution of its own"
        seen += len(drawn)
    assert seen > 20


class FlatHead:
    """A head with the same logits everywhere; it keeps nothing."""

    d2t = None

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return self._logits.expand(len(states), -1)


def many(temperature: float, draws: int, seed: int = 0, *, step: int = 0) -> Round:
    """Return a round of requests that differ in their keys, and every second one in its position."""
    keys = np.array([request_key(None, seed, i) for i in range(draws)], np.uint64)
    positions = np.where(np.arange(draws) % 2, 40, 9).astype(np.int32) + np.int32(step)
    request = FakeRequest("any", [3, 4], temperature=temperature)
    batch = BatchView(
        requests=[request] * draws,
        run_len=np.ones(draws, np.int32),
        newest_known=np.ones(draws, np.bool_),
        max_draft=np.full(draws, 4, np.int32),
        noise=Noise(keys, positions, np.zeros(draws, np.int32)),
    )
    limits = np.full(draws, 4, np.int32)
    return Round(np.arange(draws), ["any"] * draws, limits, batch.run_len, torch.zeros(draws, 1), batch)


def family_of(logits: torch.Tensor, temperature: float, draws: int, children: int, seed: int = 0) -> Draft:
    """Draw families of children of one node, one for each of many requests."""
    sampler = DraftSampler("probabilistic", race_reference, len(logits))
    plan = StaticTreePlan(TokenTree(tuple((i,) for i in range(children))), sampler, lambda *args: args)
    drafts = many(temperature, draws, seed)
    drafts.limits[:] = children
    return plan(drafts, FlatHead(logits), None)  # type: ignore[arg-type] # nothing is run below the first level


def test_the_first_two_children_are_drawn_without_replacement() -> None:
    draws, logits = 30_000, torch.tensor([1.2, 0.1, -0.4, 0.8, -1.5])
    distribution = (logits.double() / 0.8).softmax(0).numpy()
    tokens = family_of(logits, 0.8, draws, 3).tokens.reshape(draws, 3)
    pairs = np.outer(distribution, distribution) / (1 - distribution)[:, None]
    np.fill_diagonal(pairs, 0.0)
    assert_follows(np.bincount(tokens[:, 0], minlength=5), distribution)
    assert_follows(np.bincount(tokens[:, 0] * 5 + tokens[:, 1], minlength=25), pairs.ravel())
    thirds = np.zeros((5, 5, 5))
    for a in range(5):
        for b in range(5):
            rest = distribution.copy()
            rest[[a, b]] = 0.0
            thirds[a, b] = 0.0 if a == b else pairs[a, b] * rest / rest.sum()
    codes = tokens @ np.array([25, 5, 1])
    assert_follows(np.bincount(codes, minlength=125), thirds.ravel())


def test_chains_draw_each_place_anew_and_each_step_anew() -> None:
    draws, logits = 30_000, torch.tensor([0.3, 0.0, -0.9])
    distribution = logits.double().softmax(0).numpy()

    def first_two(step: int) -> np.ndarray:
        picks = DraftSampler("probabilistic", race_reference, 3).begin(many(1.0, draws, step=step), None)
        everyone = np.arange(draws)
        return np.stack([picks.pick(logits.expand(draws, -1), everyone, depth).numpy() for depth in range(2)], 1)

    now, later = first_two(0), first_two(17)
    together = np.outer(distribution, distribution).ravel()
    for a, b in ((now[:, 0], now[:, 1]), (now[:, 0], later[:, 0]), (now[:, 1], later[:, 0])):
        assert_follows(np.bincount(a * 3 + b, minlength=9), together)
    np.testing.assert_array_equal(first_two(0), now)


def test_drafts_are_independent_of_the_targets_own_draws_with_the_same_keys() -> None:
    """They must be, as the verifier accepts by a rule that takes them for fresh; only shared noise is the target's."""
    draws, logits = 30_000, torch.tensor([0.3, 0.0, -0.9])
    distributions = logits.softmax(0).expand(draws, -1)
    drafts = many(1.0, draws)
    target = race_reference(distributions, drafts.batch.noise, Purpose.TARGET).numpy()
    chain = DraftSampler("probabilistic", race_reference, 3).begin(drafts, None)
    first = chain.pick(logits.expand(draws, -1), np.arange(draws), 0).numpy()
    children = family_of(logits, 1.0, draws, 2).tokens.reshape(draws, 2)[:, 0]
    together = np.outer(distributions[0], distributions[0]).ravel()
    for drawn in (first, children):
        assert_follows(np.bincount(drawn * 3 + target, minlength=9), together)
    shared = DraftSampler("shared", race_reference, 3).begin(drafts, None)
    same = shared.pick(logits.expand(draws, -1), np.arange(draws), 0).numpy()
    np.testing.assert_array_equal(same, target)


@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_a_tree_of_drawn_children_leaves_the_targets_distribution_whatever_underflows(temperature: float) -> None:
    """At a low temperature all but one id have probability 0 in float32, and further children cannot be drawn."""
    draws, logits = 30_000, torch.tensor([6.0, 0.0, -1.0, -2.0])
    draft = family_of(logits, temperature, draws, 3)
    assert draft.q is not None
    assert draft.q_row is not None
    soft = draft.q_row >= 0
    assert (draft.q[draft.q_row[soft], draft.tokens[soft]] > 0).all(), "an id of probability 0 was not drawn"
    assert soft.sum() == (draws if temperature < 0.1 else 3 * draws)

    wanted = np.array([0.1, 0.4, 0.3, 0.2])
    target = torch.from_numpy(np.log(wanted)).float().expand(4 * draws, -1)
    keys = np.repeat([request_key(None, 7, i) for i in range(draws)], 4).astype(np.uint64)
    noise = Noise(keys, np.full(4 * draws, 5, np.int32), np.zeros(4 * draws, np.int32))
    verdict = standard_verifier().verify(draft, target, noise, None, np.zeros(draws, np.bool_))
    ends = np.cumsum(verdict.accepted + 1) - 1 - verdict.accepted
    assert_follows(np.bincount(verdict.emitted[ends], minlength=4), wanted)


def standard_verifier() -> Verifier:
    registry = Registry(Catalog.discover(), strict=True)
    config = {"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "standard"}
    return make_verifier(resolve(config, FamilyTarget(1.0).info, registry), registry)


def test_a_request_at_temperature_zero_beside_others_gets_the_likeliest_and_no_distribution() -> None:
    logits = torch.tensor([0.2, 0.3, 0.1])
    drafts = many(1.0, 50)
    drafts.batch = replace(
        drafts.batch, requests=[FakeRequest("any", [3], temperature=float(i % 2)) for i in range(50)]
    )
    drafts.limits[:] = 1
    draft = ChainPlan(DraftSampler("probabilistic", race_reference, 3))(drafts, FlatHead(logits), None)  # type: ignore[arg-type]
    assert draft.q_row is not None
    assert set(draft.tokens[::2].tolist()) == {1}
    assert (draft.q_row[::2] == -1).all()
    assert len(set(draft.tokens[1::2].tolist())) == 3
    assert sorted(draft.q_row[1::2].tolist()) == list(range(25))
