"""The proposer `suffix`: what it makes of a host's calls, row by row, and what is shared when."""

from __future__ import annotations

import random

import numpy as np
import pytest

from specdec_core.errors import SpecdecError
from specdec_core.traits import MethodTraits
from specdec_plugin_suffix.forest import Rules
from specdec_plugin_suffix.options import SuffixOptions, SuffixRequestOptions
from specdec_plugin_suffix.proposer import SuffixProposer
from specdec_testing.fakes import FakeRequest

VOCAB = 1000


@pytest.fixture
def proposer_of(forest):
    def make(vocab_size=VOCAB, **options):
        return SuffixProposer(SuffixOptions(**options), vocab_size, forest)

    return make


def request_of(name, prompt, **options):
    return FakeRequest(name, prompt, extra=SuffixRequestOptions(**options) if options else None)


@pytest.mark.parametrize("tree", [False, True])
def test_interleaved_requests_draft_by_the_rule(tree, proposer_of, model_of, batch_of, rows_of, text_of, phrases_of):
    """Requests join, leave, pause and are preempted; prompts are known long before the first draft."""
    rng = random.Random(int(tree))
    depth, rules = 6, Rules(tree=tree, max_factor=2.0, vocabulary=VOCAB)
    proposer = proposer_of(suffix_decoding_max_tree_depth=depth, suffix_decoding_max_spec_factor=2.0, tree_drafts=tree)
    phrases, shared = phrases_of(rng, 6), model_of(depth)
    alive, known, drafted = [], {}, 0
    for step in range(60):
        if len(alive) < 4 and rng.random() < 0.5:
            request = request_of(f"{step}", text_of(rng, rng.randint(1, 12), 6, phrases))
            alive.append(request)
            proposer.start(request)
            shared.begin(request.id)
        for request in alive:
            request.extend(text_of(rng, rng.randint(0, 4), 6, phrases))
        rng.shuffle(alive)
        part = [request for request in alive if rng.random() < 0.8]
        limits, newest = [rng.randint(0, 6) for _ in part], [rng.random() < 0.9 for _ in part]
        draft = proposer.propose(batch_of(part, limits, newest))
        draft.check(limits, VOCAB, MethodTraits(shape="tree" if tree else "chain"))
        ends = np.cumsum([0, *draft.lengths])
        for i, (request, limit, is_known) in enumerate(zip(part, limits, newest, strict=True)):
            row = slice(ends[i], ends[i + 1])
            if not (is_known and limit):
                assert draft.lengths[i] == 0
                continue
            shared.append(request.id, request.tokens[max(request.prompt_len, known.get(request.id, 0)) :].tolist())
            known[request.id] = len(request.tokens)
            own = model_of(depth)
            own.begin(0)
            own.append(0, request.tokens.tolist())
            best, other = (model.best(request.tokens.tolist(), rules, limit) for model in (own, shared))
            wanted = other if other[3] > best[3] else best
            assert draft.tokens[row].tolist() == wanted[0]
            assert draft.confidence[row].tolist() == wanted[2]
            if tree:
                assert draft.parents[row].tolist() == wanted[1]
            drafted += len(wanted[0])
        if alive and rng.random() < 0.2:
            request = alive.pop()
            reason = rng.choice(["done", "aborted", "preempted", "failed"])
            proposer.finish(request, reason)
            if reason == "done":
                first = max(request.prompt_len, known.get(request.id, 0))
                shared.append(request.id, request.tokens[first:].tolist())
    assert drafted > 60
    assert tree or proposer.propose(batch_of([], [])).parents is None


def test_confidence_is_the_estimated_probability_and_drafts_outlive_the_next_call(proposer_of, batch_of):
    proposer = proposer_of()
    request = request_of("a", [3, 3, 3, 3])
    proposer.start(request)
    first = proposer.propose(batch_of([request], [8]))
    assert first.confidence.dtype == np.float32
    assert first.confidence.tolist() == [np.float32(2 / 3), np.float32(1 / 3)]
    request.extend([5, 6, 5])
    proposer.propose(batch_of([request], [8]))
    assert first.tokens.tolist() == [3, 3]


def test_a_done_request_shares_its_last_ids_and_an_aborted_one_what_was_seen(proposer_of, batch_of, rows_of):
    proposer = proposer_of()
    for reason, wanted in (("done", [[9]]), ("aborted", [[]])):
        first = request_of(reason, [1])
        proposer.start(first)
        base = 100 if reason == "done" else 200
        first.extend([base, base + 1])
        proposer.propose(batch_of([first], [4]))
        first.extend([9])
        proposer.finish(first, reason)
        second = request_of(f"after {reason}", [2])
        proposer.start(second)
        second.extend([base, base + 1])
        assert rows_of(proposer.propose(batch_of([second], [4]))) == wanted


def test_a_preempted_request_comes_back_with_its_history(proposer_of, batch_of, rows_of):
    """vLLM's wrapper keeps only the prompt."""
    proposer = proposer_of()
    request = request_of("a", [1, 2])
    proposer.start(request)
    request.extend([7, 8, 9, 7])
    proposer.propose(batch_of([request], [4]))
    proposer.finish(request, "preempted")
    request.extend([8])
    proposer.start(request)
    assert rows_of(proposer.propose(batch_of([request], [4], [False]))) == [[]]
    assert rows_of(proposer.propose(batch_of([request], [4]))) == [[9, 7]]
    other = request_of("b", [3])
    proposer.start(other)
    other.extend([7, 8])
    draft = proposer.propose(batch_of([other], [4]))
    assert draft.tokens.tolist() == [9, 7]
    assert draft.confidence[0] == np.float32(1 / 3), "7 8 was said twice by a and once by b; nothing counts double"


def test_requests_of_different_namespaces_do_not_draft_from_each_other(proposer_of, batch_of, rows_of):
    proposer = proposer_of()
    for name, space in (("a", "x"), ("b", "y"), ("c", "x")):
        request = request_of(name, [1], namespace=space)
        proposer.start(request)
        request.extend([7, 8])
        rows = rows_of(proposer.propose(batch_of([request], [4])))
        assert rows == ([[9]] if name == "c" else [[]])
        request.extend([9])
        proposer.finish(request, "done")


def test_a_request_may_have_its_own_factor_and_probability(proposer_of, batch_of, rows_of):
    proposer = proposer_of()
    ids = [1, 2, 3, 4, 5, 1, 2, 3]
    cases = [({}, [4, 5, 1]), ({"max_spec_factor": 2.0}, [4, 5, 1, 2, 3]), ({"min_token_prob": 0.6}, [])]
    requests = [request_of(f"{i}", ids, **options) for i, (options, _) in enumerate(cases)]
    for request in requests:
        proposer.start(request)
    assert rows_of(proposer.propose(batch_of(requests, [9] * 3))) == [wanted for _, wanted in cases]


def test_a_skipped_step_is_an_empty_row_and_no_id_zero(proposer_of, batch_of):
    """docs/bug-reports.md, row 41."""
    proposer = proposer_of()
    request = request_of("a", [0, 0, 0, 0])
    proposer.start(request)
    for limits, known in (([0], [True]), ([3], [False])):
        draft = proposer.propose(batch_of([request], limits, known))
        assert (list(draft.lengths), draft.tokens.tolist()) == ([0], [])


def test_image_placeholders_are_never_copied(proposer_of, batch_of, rows_of):
    proposer = proposer_of(vocab_size=128)
    request = request_of("a", [5, 6, 9, 10**6, -1, 5, 6])
    proposer.start(request)
    assert rows_of(proposer.propose(batch_of([request], [4]))) == [[9]]


def test_starting_again_without_a_finish_begins_anew(proposer_of, batch_of, rows_of):
    proposer = proposer_of()
    proposer.start(request_of("a", [1, 2, 3, 1, 2]))
    again = request_of("a", [8, 7, 9, 1, 8])
    proposer.start(again)
    assert rows_of(proposer.propose(batch_of([again], [1]))) == [[7]]


def test_finish_releases_own_texts_and_close_writes_the_file(proposer_of, batch_of, rows_of, tmp_path):
    path = str(tmp_path / "cache")
    proposer = proposer_of(save_cache=path)
    requests = [request_of(f"{i}", range(200)) for i in range(8)]
    for request in requests:
        proposer.start(request)
        request.extend([500, 501, 502])
    full = proposer.memory_bytes()
    for request in requests:
        proposer.finish(request, "done")
        proposer.finish(request, "done")  # a host may say so twice
    assert proposer.memory_bytes() < full / 4
    proposer.close()
    warm = proposer_of(load_cache=path)
    request = request_of("new", [1])
    warm.start(request)
    request.extend([500, 501])
    assert rows_of(warm.propose(batch_of([request], [4]))) == [[502]]


def test_a_request_that_was_never_started_is_named(proposer_of, batch_of):
    with pytest.raises(SpecdecError, match=r"'stranger'.*start"):
        proposer_of().propose(batch_of([request_of("stranger", [1, 1])], [1]))
