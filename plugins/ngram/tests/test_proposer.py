"""The proposer `ngram`: rows stand apart, limits hold, skipped calls are caught up with, and finish releases."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_core.errors import SpecdecError
from specdec_plugin_ngram.proposer import NgramProposer

VOCAB = 1000


def proposer_of(low=1, high=3, match="earliest", vocab_size=VOCAB):
    options = SimpleNamespace(prompt_lookup_min=low, prompt_lookup_max=high, match=match)
    return NgramProposer(options, vocab_size)


@pytest.mark.parametrize("match", ["earliest", "latest"])
def test_interleaved_requests_that_join_leave_and_pause_draft_by_the_rule(
    match, expected, request_of, batch_of, rows_of, text_of
):
    rng = random.Random(match)
    proposer = proposer_of(2, 5, match)
    alive = []
    drafted = 0
    for step in range(600):
        if len(alive) < 6 and rng.random() < 0.3:
            alive.append(request_of(f"request {rng.randrange(6)} of {step}", text_of(rng)))
            proposer.start(alive[-1])
        for request in alive:
            request.extend(text_of(rng, 6))
        rng.shuffle(alive)
        taking_part = [request for request in alive if rng.random() < 0.7]  # the others' calls are skipped
        limits = [rng.randint(0, 5) for _ in taking_part]
        known = [rng.random() < 0.9 for _ in taking_part]
        rows = rows_of(proposer.propose(batch_of(taking_part, limits, known)))
        for request, limit, is_known, row in zip(taking_part, limits, known, rows, strict=True):
            assert row == (expected(request.tokens.tolist(), 2, 5, limit, match, VOCAB) if is_known else [])
            drafted += len(row)
        if alive and rng.random() < 0.2:
            proposer.finish(alive.pop(), rng.choice(["done", "aborted", "preempted", "failed"]))
    assert drafted > 500


def test_an_id_that_is_used_again_starts_afresh(request_of, batch_of, rows_of):
    proposer = proposer_of()
    first = request_of("a", [1, 2, 3, 1, 2])
    proposer.start(first)
    proposer.finish(first, "done")
    second = request_of("a", [1, 2, 8, 1, 2])
    proposer.start(second)
    assert rows_of(proposer.propose(batch_of([second], [1]))) == [[8]]


def test_starting_again_without_a_finish_forgets_the_old_ids(request_of, batch_of, rows_of):
    proposer = proposer_of()
    proposer.start(request_of("a", [1, 2, 3, 1, 2]))
    again = request_of("a", [8, 7, 9, 1, 8])
    proposer.start(again)
    assert rows_of(proposer.propose(batch_of([again], [1]))) == [[7]]


def test_a_preempted_request_comes_back_with_all_its_ids(request_of, batch_of, rows_of):
    proposer = proposer_of()
    request = request_of("a", [1, 2, 3, 1, 2])
    proposer.start(request)
    assert rows_of(proposer.propose(batch_of([request], [1]))) == [[3]]
    proposer.finish(request, "preempted")
    request.extend([9, 5, 1, 9])
    proposer.start(request)
    assert rows_of(proposer.propose(batch_of([request], [2], [False]))) == [[]]
    assert rows_of(proposer.propose(batch_of([request], [2]))) == [[5, 1]]


def test_finish_and_close_release_memory(request_of, batch_of):
    proposer = proposer_of()
    requests = [request_of(f"{i}", range(200)) for i in range(8)]
    for request in requests:
        proposer.start(request)
    full = proposer.memory_bytes()
    assert full > 8 * 200 * 20
    for request in requests[:6]:
        proposer.finish(request, "done")
    assert proposer.memory_bytes() * 4 == full
    proposer.close()
    assert proposer.memory_bytes() == 0


def test_limits_cut_a_draft_and_empty_rows_stand_between_others(request_of, batch_of):
    proposer = proposer_of()
    ids = [4, 5, 6, 7, 8, 4, 5]
    requests = [request_of("a", ids), request_of("none", [1, 2, 3]), request_of("b", ids), request_of("c", ids)]
    for request in requests:
        proposer.start(request)
    draft = proposer.propose(batch_of(requests, [2, 4, 0, 100]))
    assert list(draft.lengths) == [2, 0, 0, 5]
    assert draft.tokens.tolist() == [6, 7, 6, 7, 8, 4, 5]
    assert draft.tokens.dtype == np.int32


def test_drafts_of_one_call_outlive_the_next(request_of, batch_of):
    proposer = proposer_of()
    request = request_of("a", [1, 2, 3, 1, 2])
    proposer.start(request)
    first = proposer.propose(batch_of([request], [2]))
    request.extend([7, 1, 7])
    proposer.propose(batch_of([request], [2]))
    assert first.tokens.tolist() == [3, 1]


def test_image_placeholders_are_never_copied(request_of, batch_of, rows_of):
    """docs/bug-reports.md, row 96: ids beyond the vocabulary stand at image slots."""
    proposer = proposer_of(1, 2, vocab_size=128)
    request = request_of("a", [5, 6, 9, 10**6, 10**6, 5, 6])
    proposer.start(request)
    assert rows_of(proposer.propose(batch_of([request], [4]))) == [[9]]
    request.extend([9])
    assert rows_of(proposer.propose(batch_of([request], [4]))) == [[]]


def test_a_request_that_was_never_started_is_named(request_of, batch_of):
    with pytest.raises(SpecdecError, match=r"'stranger'.*start"):
        proposer_of().propose(batch_of([request_of("stranger", [1, 1])], [1]))


def test_an_empty_batch_gives_an_empty_draft(batch_of):
    draft = proposer_of().propose(batch_of([], []))
    assert list(draft.lengths) == []
    assert len(draft.tokens) == 0


def test_a_longer_match_promises_more_and_no_draft_more_than_the_one_before_it(request_of, batch_of):
    proposer = proposer_of(1, 2)
    long, short = request_of("long", [1, 2, 3, 4, 9, 8, 1, 2, 3, 4]), request_of("short", [4, 9, 8, 4])
    for request in (long, short):
        proposer.start(request)
    draft = proposer.propose(batch_of([long, short], [3, 3]))
    assert draft.lengths == [3, 3]
    promised, less = draft.confidence[:3], draft.confidence[3:]
    assert (promised > less).all(), "ids beyond prompt_lookup_max count for the estimate as well"
    for row in (promised, less):
        assert (np.diff(row) < 0).all() and 0 < row[-1] and row[0] < 1
    np.testing.assert_allclose(promised[1:] / promised[:-1], [5 / 7.4, 6 / 8.4], rtol=1e-6)
