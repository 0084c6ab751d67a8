"""What every verifier does with greedy rows, empty rows, neighbours, its inputs, and drafts that have no chance."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch

from specdec_core.draft import Draft
from specdec_core.errors import ContractError, SpecdecError
from specdec_core.noise import Noise
from specdec_core.protocols import Verifier
from specdec_core.traits import MethodTraits
from specdec_plugin_verifiers.block import Block, chain_of_tests
from specdec_plugin_verifiers.coupled import Coupled
from specdec_plugin_verifiers.standard import Standard, at_once, by_levels
from specdec_plugin_verifiers.synthetic import Synthetic
from specdec_plugin_verifiers.trial import Judge
from specdec_plugin_verifiers.typical import Typical

FIELDS = ("accepted", "path", "emitted", "logits_row")
MAKERS = {
    "standard": Standard,
    "block": Block,
    "synthetic": lambda kernels: Synthetic(kernels, [0.8, 0.6, *[0.5] * 10]),
    "typical": lambda kernels: Typical(kernels, 0.09, 0.3),
}
TREES = {"standard", "typical"}
CASES = [(name, trees) for name in MAKERS for trees in (False, True) if not trees or name in TREES]
every = pytest.mark.parametrize(("name", "trees"), CASES)


@pytest.fixture
def make(kernels):
    """Return a maker of verifiers by name."""
    return lambda name: MAKERS[name](kernels)


def same(one, other):
    return all(np.array_equal(getattr(one, field), getattr(other, field)) for field in FIELDS)


def rows_of(call):
    """The arguments of a call for each of its batch rows alone."""
    lengths = call["draft"].lengths
    starts = np.cumsum([0, *[length + 1 for length in lengths]])
    for row in range(len(lengths)):
        at = slice(starts[row], starts[row + 1])
        noise = call["noise"]
        yield {
            "draft": call["draft"].select([row]),
            "logits": call["logits"][at],
            "noise": Noise(noise.keys[at], noise.positions[at], noise.seq_index[at]),
            "target_draws": call["target_draws"][at],
            "greedy": call["greedy"][row : row + 1],
        }


@pytest.mark.parametrize("name", MAKERS)
def test_it_is_a_verifier(name, make):
    assert isinstance(make(name), Verifier)


@every
def test_a_verdict_is_a_path_through_the_draft_and_one_id_more(name, trees, make, call_of):
    rng, verifier = np.random.default_rng(1), make(name)
    accepted = 0
    for _ in range(120):
        call = call_of(rng, trees=trees)
        draft, verdict = call["draft"], verifier.verify(**call)
        assert {getattr(verdict, field).dtype for field in FIELDS} == {np.dtype(np.int32)}
        first = row = at = end = 0
        for count, length in zip(verdict.accepted.tolist(), draft.lengths, strict=True):
            path, here = verdict.path[at : at + count].tolist(), -1
            for node in path:
                assert (node - 1 if draft.parents is None else draft.parents[first + node]) == here
                here = node
            assert verdict.emitted[end : end + count].tolist() == draft.tokens[first:][path].tolist()
            assert verdict.logits_row[end : end + count + 1].tolist() == [row, *[row + 1 + node for node in path]]
            last = verdict.emitted[end + count]
            assert call["logits"][row + 1 + here, last] > -np.inf
            first, row, at, end = first + length, row + length + 1, at + count, end + count + 1
        assert (at, end) == (len(verdict.path), len(verdict.emitted))
        accepted += at
    assert accepted > 20


@pytest.mark.parametrize(("name", "trees"), [case for case in CASES if case[0] != "synthetic"])
@pytest.mark.parametrize("host_draws", [True, False])
def test_greedy_rows_emit_the_greedy_chain_and_sampled_neighbours_do_not_matter(name, trees, host_draws, make, call_of):
    rng, verifier, greedy_rows = np.random.default_rng(2), make(name), 0
    for _ in range(100):
        call = call_of(rng, trees=trees)
        best = torch.from_numpy(call["logits"].numpy().argmax(-1))
        given = {**call, "target_draws": call["target_draws"] if host_draws else None}
        whole = verifier.verify(**given)
        coupled = Coupled().verify(**{**call, "target_draws": best})
        ends = np.cumsum(whole.accepted + 1)
        others = np.cumsum(coupled.accepted + 1)
        for row in np.flatnonzero(call["greedy"]).tolist():
            mine = slice(ends[row] - whole.accepted[row] - 1, ends[row])
            its = slice(others[row] - coupled.accepted[row] - 1, others[row])
            assert whole.emitted[mine].tolist() == coupled.emitted[its].tolist()
            assert whole.logits_row[mine].tolist() == coupled.logits_row[its].tolist()
            greedy_rows += 1
    assert greedy_rows > 50


@every
def test_a_row_does_not_feel_its_neighbours(name, trees, make, call_of):
    rng, verifier = np.random.default_rng(3), make(name)
    for _ in range(80):
        call = call_of(rng, trees=trees)
        whole, end, logits_row = verifier.verify(**call), 0, 0
        for row, alone in enumerate(rows_of(call)):
            verdict = verifier.verify(**alone)
            count = whole.accepted[row]
            assert verdict.accepted.tolist() == [count]
            assert verdict.emitted.tolist() == whole.emitted[end : end + count + 1].tolist()
            assert (verdict.logits_row + logits_row).tolist() == whole.logits_row[end : end + count + 1].tolist()
            end, logits_row = end + count + 1, logits_row + len(alone["logits"])


@every
def test_inputs_stay_as_they_are(name, trees, make, call_of):
    rng, verifier = np.random.default_rng(4), make(name)
    for _ in range(50):
        call = call_of(rng, trees=trees)
        kept = copy.deepcopy(call)
        verifier.verify(**call)
        for one, other in ((call["draft"], kept["draft"]), (call["noise"], kept["noise"])):
            for field in one.__dataclass_fields__:
                mine, its = getattr(one, field), getattr(other, field)
                assert (mine is None) == (its is None)
                assert mine is None or np.array_equal(np.asarray(mine), np.asarray(its))
        assert torch.equal(call["logits"], kept["logits"])
        assert torch.equal(call["target_draws"], kept["target_draws"])
        assert np.array_equal(call["greedy"], kept["greedy"])


@every
def test_the_bonus_is_the_hosts_draw(name, trees, make, call_of):
    rng, verifier, bonuses = np.random.default_rng(5), make(name), 0
    for _ in range(100):
        call = call_of(rng, trees=trees)
        draft, verdict = call["draft"], verifier.verify(**call)
        elsewhere = {**call, "target_draws": None}
        again = verifier.verify(**elsewhere)
        assert same(verdict, again), "a verifier that draws the bonus draws what the host would"
        last = np.cumsum(verdict.accepted + 1) - 1
        starts = np.cumsum([0, *draft.lengths[:-1]]) + np.arange(len(draft.lengths))
        for row in range(len(draft.lengths)):
            stop = verdict.logits_row[last[row]]
            node = stop - starts[row] - 1
            own = np.arange(draft.lengths[row]) - 1
            parents = own if draft.parents is None else draft.parents[starts[row] - row :][: draft.lengths[row]]
            if node not in parents.tolist():
                assert verdict.emitted[last[row]] == call["target_draws"][stop]
                bonuses += 1
    assert bonuses > 50


@pytest.mark.parametrize("name", MAKERS)
def test_rows_without_drafts_stand_between_others(name, make, unpack):
    logits = torch.full((9, 12), -torch.inf)
    said = [7, 1, 2, 8, 9, 10, 3, 4, 11]
    logits[torch.arange(9), said] = 0.0
    noise = Noise(np.arange(9, dtype=np.uint64), np.arange(9, dtype=np.int32), np.zeros(9, np.int32))
    draft = Draft.of([[], [1, 2], [], [], [3], []])
    verifier = Synthetic(make("synthetic")._judge.kernels, [1.0, 1.0]) if name == "synthetic" else make(name)
    for draws in (None, torch.tensor(said)):
        verdict = verifier.verify(draft, logits, noise, draws, np.arange(6) % 2 == 0)
        assert unpack(verdict) == [
            ([], [7], [0]),
            ([0, 1], [1, 2, 8], [1, 2, 3]),
            ([], [9], [4]),
            ([], [10], [5]),
            ([0], [3, 4], [6, 7]),
            ([], [11], [8]),
        ]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_a_batch_without_any_draft_emits_one_id_a_row(name, rows, make, unpack):
    noise = Noise(np.arange(rows, dtype=np.uint64), np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32))
    for draws in (None, torch.zeros(rows, dtype=torch.int64)):
        logits = torch.full((rows, 5), -torch.inf)
        logits[:, 0] = 0.0
        verdict = make(name).verify(Draft.empty(rows), logits, noise, draws, np.zeros(rows, np.bool_))
        assert unpack(verdict) == [([], [0], [row]) for row in range(rows)]


@pytest.mark.parametrize("name", ["standard", "block", "typical"])
def test_ids_that_truncation_took_out_never_appear(name, make):
    """docs/bug-reports.md, row 4: the distributions are truncated before anything is compared."""
    rows, size = 4000, 6
    logits = torch.zeros(2 * rows, size)
    logits[:, 3:] = -torch.inf
    rng = np.random.default_rng(6)
    noise = Noise(
        *(np.repeat(a, 2) for a in (rng.integers(0, 2**63, rows).astype(np.uint64), *np.zeros((2, rows), np.int32)))
    )
    noise.positions = np.tile(np.array([4, 5], np.int32), rows)
    for soft in (False, True):
        draft = Draft([1] * rows, rng.integers(0, size, rows).astype(np.int32))
        if soft:
            draft.q, draft.q_row = torch.full((1, size), 1 / size), np.zeros(rows, np.int32)
        verdict = make(name).verify(draft, logits, noise, None, np.zeros(rows, np.bool_))
        assert verdict.emitted.max() == 2
        assert 0 < len(verdict.path) < rows


@pytest.mark.parametrize("trees", [False, True])
def test_with_and_without_waiting_for_a_device_is_one_rule(trees, kernels, call_of):
    rng, judge = np.random.default_rng(7), Judge(kernels)
    for draws in (True, False):
        for _ in range(60):
            call = call_of(rng, trees=trees)
            call["target_draws"] = call["target_draws"] if draws else None
            trial = judge.trial(**call)
            elsewhere = dataclasses.replace(trial, on_host=False)
            assert same(by_levels(trial), at_once(elsewhere))
            assert same(at_once(trial), at_once(elsewhere))
            if not trees:
                assert same(chain_of_tests(trial), chain_of_tests(elsewhere))


def test_a_rejection_that_leaves_nothing_draws_from_the_target(make):
    """p = q up to rounding: a rejection is next to impossible, and must still end with an id."""
    size, rows = 3, 400
    distribution = torch.tensor([[0.5, 0.3, 0.2]])
    logits = distribution.log().repeat(2 * rows, 1)
    noise = Noise(
        np.repeat(np.arange(rows), 2).astype(np.uint64),
        np.tile([4, 5], rows).astype(np.int32),
        np.zeros(2 * rows, np.int32),
    )
    draft = Draft([1] * rows, np.zeros(rows, np.int32), q=distribution, q_row=np.zeros(rows, np.int32))
    rejecting = Synthetic(make("standard")._judge.kernels, [0.0])
    verdict = rejecting.verify(draft, logits, noise, None, np.zeros(rows, np.bool_))
    assert len(verdict.path) == 0
    assert set(verdict.emitted.tolist()) == set(range(size))


def test_a_row_of_logits_with_no_id_left_is_an_error(make):
    noise = Noise(np.zeros(2, np.uint64), np.arange(2, dtype=np.int32), np.zeros(2, np.int32))
    with pytest.raises(SpecdecError, match="row 0 of the logits leaves no id"):
        make("standard").verify(Draft.of([[1]]), torch.full((2, 3), -torch.inf), noise, None, np.array([False]))


@pytest.mark.parametrize("name", sorted(set(MAKERS) - TREES))
def test_trees_are_refused_by_the_rules_for_chains(name, make):
    draft = Draft([1], np.array([1], np.int32), parents=np.array([-1], np.int32))
    noise = Noise(np.zeros(2, np.uint64), np.arange(2, dtype=np.int32), np.zeros(2, np.int32))
    with pytest.raises(ContractError, match=rf"'{name}' is for chains.*'standard' verifies trees"):
        make(name).verify(draft, torch.zeros(2, 3), noise, None, np.array([False]))


def test_sampled_siblings_of_different_distributions_are_out_of_contract():
    """The rule takes the siblings of a child out of one distribution."""
    traits = MethodTraits(shape="tree", draft_distribution="soft")
    parents = np.array([-1, -1, 0, -1], np.int32)
    draft = Draft([4, 0, 1], np.array([1, 2, 3, 0, 1], np.int32), parents=np.array([*parents, -1], np.int32))
    draft.q, draft.q_row = torch.full((3, 4), 0.25), np.array([0, -1, 1, 0, 2], np.int32)
    draft.check([4, 4, 4], 4, traits)
    draft.q_row[3] = 1
    with pytest.raises(ContractError, match="siblings of a tree must name the same row of q"):
        draft.check([4, 4, 4], 4, traits)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [([0, 9], "outside of 0..2"), ([-1, 0], "outside"), ([1, 0], "two draft ids to one")],
)
def test_a_map_of_a_draft_vocabulary_that_cannot_be_is_refused(offsets, message, make):
    draft = Draft([1], np.array([1], np.int32), q=torch.full((1, 2), 0.5), q_row=np.zeros(1, np.int32))
    draft.d2t = torch.tensor(offsets)
    noise = Noise(np.zeros(2, np.uint64), np.arange(2, dtype=np.int32), np.zeros(2, np.int32))
    with pytest.raises(ContractError, match=message):
        make("standard").verify(draft, torch.zeros(2, 3), noise, None, np.array([False]))
