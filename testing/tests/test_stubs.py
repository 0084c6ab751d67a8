"""Stub proposers do what they say: the good ones keep the contract, the breakers break it in their one way."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specdec_core.draft import BatchView
from specdec_core.noise import Noise, Purpose, exponential
from specdec_core.protocols import Proposer
from specdec_core.traits import MethodTraits
from specdec_testing import breakers
from specdec_testing.breakers import StubFailure
from specdec_testing.checking import draft_problems, host_rows
from specdec_testing.driving import Driver, Script
from specdec_testing.fakes import FakeRequest, FakeTarget
from specdec_testing.goodness_of_fit import assert_follows, count
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Fixed, Garbage, Null, Perfect, Soft, noise_rows, stub_plugin
from specdec_testing.table import random_table, table_target
from specdec_testing.targets import tiny_target


def batch_of(*requests, max_draft=4, keys=None):
    n = len(requests)
    return BatchView(
        requests=requests,
        run_len=np.asarray([len(r.tokens) - 1 for r in requests], np.int32),
        newest_known=np.ones(n, np.bool_),
        max_draft=np.broadcast_to(np.asarray(max_draft, np.int32), (n,)),
        noise=Noise(
            np.asarray(keys if keys is not None else range(n), np.uint64),
            np.asarray([len(r.tokens) for r in requests], np.int32),
            np.asarray([r.seq_index for r in requests], np.int32),
        ),
    )


def said(prompt, *output, name="a", seq_index=0):
    request = FakeRequest(name, prompt, seq_index=seq_index)
    request.extend(output)
    return request


STUBS = [Null(), Fixed([5, 6]), Garbage(128), Perfect({}), Soft(random_table(5)), RecordingProposer()]


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: type(stub).__name__)
def test_stubs_are_proposers(stub):
    assert isinstance(stub, Proposer)


def test_perfect_drafts_the_rest_of_the_recorded_output():
    perfect = Perfect({(1, 2): [7, 8, 9, 10], (3,): [[4, 5], [6, 7]]})
    rows = [said([1, 2], 7), said([1, 2], 7, 8, 9), said([3], name="b"), said([3], 6, name="c", seq_index=1)]
    assert host_rows(perfect.propose(batch_of(*rows, max_draft=2))) == [[8, 9], [10], [4, 5], [7]]
    assert perfect.strayed == 0


def test_perfect_drafts_nothing_for_a_text_that_strayed_and_counts_it():
    perfect = Perfect(lambda request: [7, 8, 9])
    assert host_rows(perfect.propose(batch_of(said([1], 7, 3)))) == [[]]
    assert perfect.strayed == 1


def test_garbage_is_full_length_seeded_by_content_and_nearly_always_wrong():
    target, rng = tiny_target("llama"), np.random.default_rng(0)
    right = total = 0
    for _ in range(60):
        request = said(rng.integers(3, 128, 6).tolist(), 9)
        rows = host_rows(Garbage(128).propose(batch_of(request, max_draft=5)))
        assert len(rows[0]) == 5
        assert host_rows(Garbage(128).propose(batch_of(said([1], 2), request, max_draft=5)))[1] == rows[0]
        with torch.inference_mode():
            logits = target(torch.from_numpy(request.tokens.astype(np.int64))[None], use_cache=False).logits
        right += int(logits[0, -1].argmax()) == rows[0][0]
        total += 1
    assert right <= 4
    request = said([1, 2], 3)
    assert host_rows(Garbage(128, 1).propose(batch_of(request))) != host_rows(Garbage(128).propose(batch_of(request)))


def test_noise_rows_are_the_noise_of_the_core():
    draws = [(2**63 + 5, 17, 2), (3, 0, 0), (2**64 - 1, 2**31 - 1, 7)]
    keys, positions, samples = zip(*draws, strict=True)
    noise = Noise(np.array(keys, np.uint64), np.array(positions, np.int32), np.array(samples, np.int32))
    wanted = [[exponential(*draw, Purpose.DRAFT, v) for v in range(9)] for draw in draws]
    assert np.allclose(noise_rows(noise, Purpose.DRAFT, 9), wanted, rtol=1e-12)


def test_soft_drafts_follow_the_table_they_report():
    q, soft = random_table(5, 1), Soft(random_table(5, 1))
    requests = [said([2], 3, name=str(i)) for i in range(2000)]
    draft = soft.propose(batch_of(*requests, max_draft=2, keys=range(2000)))
    rows = np.asarray(host_rows(draft))
    assert_follows(count(rows[:, 0], 5), q[3])
    pairs = np.stack([count(rows[rows[:, 0] == first, 1], 5) for first in range(5)])
    assert_follows(pairs, q)
    assert draft.q.dtype == torch.float32
    assert np.allclose(draft.q[draft.q_row[1]].numpy(), q[rows[0, 0]])


def test_soft_with_shared_noise_draws_what_the_target_would_draw():
    table = random_table(6, 4)
    soft = Soft(table, shared=True)
    assert soft.traits == MethodTraits(draft_distribution="soft", shares_noise=True)
    request, q = said([1, 2], 3), table.astype(np.float32)
    (row,) = host_rows(soft.propose(batch_of(request, max_draft=3, keys=[99])))
    last = 3
    for step, token in enumerate(row):
        scores = [q[last, v] / exponential(99, 3 + step, 0, Purpose.TARGET, v) for v in range(6)]
        assert token == int(np.argmax(scores))
        last = token


BROKEN = {
    "rows for a batch": breakers.WrongRowCount(),
    "2 rows for a batch of 3": breakers.WrongRowCount(-1),
    "outside 0 .. 127": breakers.OutOfVocabulary(128),
    r"\[-1": breakers.NegativeIds(),
    "5 drafts, and batch.max_draft.0. is 4": breakers.TooLong(),
    "lengths sum": breakers.WrongLengthsSum(),
    "NoneType": breakers.WrongType(),
}


@pytest.mark.parametrize("match", BROKEN)
def test_breakers_break_the_contract_in_their_own_way(match):
    batch = batch_of(said([1], 2), said([3], 4, name="b"), said([5], 6, name="c"))
    problems = draft_problems(BROKEN[match].propose(batch), batch, MethodTraits(), 128)
    assert any(re.search(match, problem) for problem in problems), problems


@pytest.mark.parametrize(
    ("breaker", "traits"),
    [
        (breakers.BadParents(), MethodTraits(shape="tree")),
        (breakers.BadParents(), MethodTraits()),
        (breakers.BadDistribution(128), MethodTraits(draft_distribution="soft")),
        (breakers.BadDistribution(128, rows=True), MethodTraits(draft_distribution="soft")),
    ],
)
def test_bad_trees_and_distributions_are_found(breaker, traits):
    batch = batch_of(said([1], 2), said([3], 4, name="b"))
    assert draft_problems(breaker.propose(batch), batch, traits, 128)


def test_a_breaker_breaks_every_nth_time_and_is_good_in_between():
    breaker, batch = breakers.OutOfVocabulary(128, every=3, inner=Fixed([5])), batch_of(said([1], 2))
    rows = [host_rows(breaker.propose(batch)) for _ in range(6)]
    assert rows == [[[5]], [[5]], [[128] * 4]] * 2
    assert breaker.broken == 2


@pytest.mark.parametrize("where", ["start", "propose", "finish"])
def test_raises_raises_where_it_was_told_to(where):
    stub, request = breakers.Raises(where, every=2), said([1], 2)
    calls = {
        "start": lambda: stub.start(request),
        "propose": lambda: stub.propose(batch_of(request)),
        "finish": lambda: stub.finish(request, "done"),
    }
    for call in calls.values():
        call()
    with pytest.raises(StubFailure, match=where):
        calls[where]()
    for name in calls.keys() - {where}:
        calls[name]()
    assert stub.broken == 1


def test_stub_plugin_hands_out_the_proposer_or_makes_one_for_the_target():
    null, build = Null(), SimpleNamespace(target=FakeTarget(table_target(random_table(5))))
    assert stub_plugin(null).specdec_make_proposer(build) is null
    made = stub_plugin(lambda handle: Garbage(handle.info.vocab_size)).specdec_make_proposer(build)
    assert made.vocab_size == 5
    soft = Soft(random_table(5))
    assert stub_plugin(soft).specdec_method_traits() == soft.traits
    other = MethodTraits(when_off="retire")
    assert stub_plugin(soft, traits=other).specdec_method_traits() == other


SCRIPTS = [
    Script("long", tuple(range(3, 33)), seed=1, chunk=7, limits=(4, 0, 2), skip=0),
    Script("hit", tuple(range(40, 60)), seed=2, skip=9, join=1, reason="aborted"),
    Script("paused", (5, 6, 7), seed=3, off=frozenset({1, 2}), steps=7),
    Script("preempted", (8, 9, 10, 11), seed=4, preempt=2, chunk=3, steps=5),
]


@pytest.mark.parametrize("rows", ["all", "last"])
@pytest.mark.parametrize("when_off", ["catch_up", "gap", "retire"])
def test_the_driver_shows_the_shifted_layout_and_every_end(rows, when_off):
    target = FakeTarget(tiny_target("llama"))
    stub = RecordingProposer(rows, aux_layers=(0, 2), when_off=when_off, inner=Garbage(128))
    driver = Driver(stub, stub.traits, target)
    driver.run(SCRIPTS)
    assert stub.layout_problems() == []
    assert driver.problems == []
    assert not stub.live
    reasons = dict(stub.finished)
    assert reasons["long"] == "done" and reasons["hit"] == "aborted"
    assert ("preempted", "preempted") in stub.finished
    gaps = [call for call in stub.calls_seen if call.rows is not None and call.rows.gap.any()]
    assert gaps  # the request with a hit in the prefix cache, as the host half marks it


def test_recorded_rows_carry_each_position_once_with_its_own_states():
    target, stub = FakeTarget(tiny_target("llama")), RecordingProposer(inner=Garbage(128))
    Driver(stub, stub.traits, target).run(SCRIPTS[:1])
    positions = np.concatenate([call.rows.positions for call in stub.calls_seen])
    assert positions.tolist() == list(range(len(positions)))
    hidden = torch.cat([call.rows.hidden for call in stub.calls_seen])
    assert hidden.shape == (len(positions), target.info.hidden_size)
    assert len(torch.unique(hidden, dim=0)) == len(positions)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda rows: {"tokens": rows.tokens + 1}, "not the known ids"),
        (lambda rows: {"positions": rows.positions + 1}, "last position"),
        (lambda rows: {"gap": rows.gap | True}, "gap"),
        (lambda rows: {"hidden": None}, "hidden"),
    ],
)
def test_a_wrong_layout_is_noticed(spoil, match):
    stub = RecordingProposer()
    propose = stub.propose
    stub.propose = lambda batch: propose(replace(batch, rows=replace(batch.rows, **spoil(batch.rows))))
    driver = Driver(stub, stub.traits, FakeTarget(tiny_target("llama")))
    driver.run(SCRIPTS[:1])
    assert any(match in problem for problem in stub.layout_problems())
