"""The cache: namespaces are walls, responses leave in order, limits hold, ids come back, and errors change nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest

from specdec_core.errors import SpecdecError
from specdec_plugin_suffix.cache import SuffixCache
from specdec_plugin_suffix.forest import Rules


def said(cache, name, prompt, response, **start):
    """Run a request from its start to its stop."""
    cache.start(name, prompt, **start)
    cache.extend(name, response)
    cache.stop(name)


def draft(cache, prompt, response, **start):
    """What a request that has just said `response` drafts."""
    cache.start("asking", prompt, **start)
    cache.extend("asking", response)
    found = cache.speculate("asking")
    cache.stop("asking")
    if "asking" in cache.shared():
        cache.evict("asking")
    return found.tokens.tolist()


@pytest.fixture
def cache_of(forest):
    return lambda *arguments, **named: SuffixCache(*arguments, forest=forest, **named)


def test_a_response_is_shared_and_a_prompt_is_not(cache_of):
    cache = cache_of()
    said(cache, "a", [1, 2, 3, 4], [7, 8, 9])
    assert draft(cache, [60], [7, 8]) == [9]
    assert draft(cache, [60], [1, 2]) == []


def test_a_running_request_shares_what_it_has_said_so_far(cache_of):
    cache = cache_of()
    cache.start("a", [1])
    cache.extend("a", [7, 8, 9])
    assert draft(cache, [60], [7, 8]) == [9]


def test_namespaces_never_see_each_other(cache_of):
    """Tenant walls."""
    rng = random.Random(0)
    shared, alone = cache_of(), [cache_of(), cache_of(), cache_of()]
    secrets = [[[base + rng.randrange(8) for _ in range(12)] for _ in range(3)] for base in (10, 20, 30)]
    drafted = 0
    for i in range(60):
        tenant = rng.randrange(3)
        secret = [*rng.choice(secrets[tenant]), 1, 2, *rng.choice(secrets[tenant])[: rng.randint(3, 9)]]
        for cache, space in ((shared, f"tenant {tenant}"), (alone[tenant], "")):
            cache.start(i, [0], namespace=space)
            cache.extend(i, secret)
        found, wanted = shared.speculate(i).tokens.tolist(), alone[tenant].speculate(i).tokens.tolist()
        assert found == wanted
        assert all(token // 10 in (0, tenant + 1) for token in found)
        drafted += len(found)
        if rng.random() < 0.7:
            shared.stop(i)
            alone[tenant].stop(i)
    assert drafted > 50
    for tenant in range(3):
        assert shared.counts(f"tenant {tenant}") == alone[tenant].counts()
    assert shared.counts("tenant 3") == {}


def test_the_oldest_start_leaves_first_and_the_new_one_never(cache_of):
    cache = cache_of(max_requests=2)
    cache.start("a", [1])
    cache.start("b", [1])
    cache.extend("b", [5, 6])
    cache.extend("a", [7, 8, 9])
    assert cache.shared() == ["a", "b"]
    cache.start("c", [1])
    assert cache.shared() == ["b", "c"]
    assert draft(cache, [60], [7, 8]) == []
    cache.extend("a", [7, 8])  # goes on alone
    assert cache.speculate("a").tokens.tolist() == [9, 7]
    cache.stop("a")
    assert cache.shared() == ["c"], "the asking request has pushed b out"


def test_with_no_responses_shared_a_request_still_drafts_from_its_own_text(cache_of):
    cache = cache_of(max_requests=0)
    said(cache, "a", [1], [7, 8, 9])
    assert draft(cache, [60], [7, 8]) == []
    assert draft(cache, [7, 8, 9], [7, 8]) == [9, 7]
    stats = cache.stats()
    assert (stats.responses, stats.tokens, stats.running) == (0, 0, 0)


def test_an_id_that_is_used_again_brings_a_new_response(cache_of):
    cache = cache_of()
    said(cache, "a", [1], [7, 8, 9])
    said(cache, "b", [1], [3, 4])
    cache.start("a", [2])
    assert cache.shared() == ["b", "a"]
    assert draft(cache, [60], [7, 8]) == []


def test_an_interrupted_request_keeps_its_history(cache_of):
    """The documented difference to vLLM, whose wrapper loses what a preempted request had said."""
    cache = cache_of()
    cache.start("a", [1, 2])
    cache.extend("a", [7, 8, 9, 5, 6])
    cache.stop("a")
    said(cache, "b", [1], [3, 4])
    cache.start("a", [1, 2], response=[7, 8, 9, 5, 6, 7, 8])
    assert cache.speculate("a").tokens.tolist() == [9, 5]
    assert cache.shared() == ["a", "b"], "it keeps its place, too"
    assert cache.counts()[7, 8] == 2
    cache.extend("a", [9])
    assert cache.counts()[7, 8, 9] == 2


@pytest.mark.parametrize(
    ("start", "shared"),
    [
        ({"response": [7, 8, 4]}, {(7, 8, 4): 1}),
        ({"response": [7, 8]}, {(7, 8): 1}),
        ({"response": [7, 8, 9, 5], "namespace": "other"}, {}),
        ({}, {}),
    ],
)
def test_another_text_under_an_old_id_is_another_request(start, shared, cache_of):
    cache = cache_of()
    said(cache, "a", [1, 2], [7, 8, 9])
    cache.start("a", [1, 2], **start)
    counts = cache.counts()
    assert {
        string: count for string, count in counts.items() if len(string) == max(map(len, counts), default=0)
    } == shared


def test_evicting_by_hand_takes_a_response_out_and_leaves_its_request_running(cache_of):
    cache = cache_of()
    cache.start("a", [1])
    cache.extend("a", [7, 8, 9])
    cache.evict("a")
    assert draft(cache, [60], [7, 8]) == []
    cache.extend("a", [7, 8])
    assert cache.speculate("a").tokens.tolist() == [9, 7]
    assert cache.stats().tokens == 0
    cache.stop("a")
    assert cache.stats().namespaces == 0


def test_a_response_leaves_when_its_time_is_over_and_not_while_its_request_runs(cache_of):
    now = [100.0]
    cache = cache_of(time_to_live=10, clock=lambda: now[0])
    said(cache, "a", [1], [7, 8, 9])
    cache.start("b", [1])
    cache.extend("b", [5, 6, 4])
    now[0] += 9
    said(cache, "c", [1], [2, 3, 3])
    assert cache.shared() == ["a", "b", "c"]
    now[0] += 1
    assert cache.speculate("b").tokens.tolist() == []
    assert cache.shared() == ["b", "c"]
    now[0] += 100
    assert draft(cache, [60], [2, 3]) == []
    assert draft(cache, [60], [5, 6]) == [4]
    cache.stop("b")
    now[0] += 10
    assert draft(cache, [60], [5, 6]) == []


def test_path_and_tree_drafts_come_with_parents_probabilities_and_a_score(cache_of):
    cache = cache_of()
    for i, response in enumerate(([7, 8, 9, 10], [7, 8, 9, 11], [7, 8, 12, 13])):
        said(cache, i, [100 + i], response)
    cache.start("path", [60], response=[7, 8])
    found = cache.speculate("path")
    assert (found.tokens.tolist(), found.parents.tolist(), found.matched) == ([9, 10], [-1, 0], 2)
    assert found.probabilities.tolist() == [0.5, 0.25]
    assert found.probabilities.dtype == np.float32
    assert found.score == 0.75
    cache.stop("path")
    cache.evict("path")
    cache.start("tree", [60], response=[7, 8], rules=Rules(tree=True, max_factor=4.0))
    found = cache.speculate("tree")
    assert (found.tokens.tolist(), found.parents.tolist()) == ([9, 12, 10, 11, 13], [-1, -1, 0, 0, 1])
    assert cache.speculate("tree", 2).tokens.tolist() == [9, 12]
    assert cache.speculate("tree", 0).tokens.tolist() == []


def test_no_limit_means_as_many_as_the_rules_allow(cache_of):
    """The documented difference to Arctic, where leaving `max_spec_tokens` out fails."""
    cache = cache_of(depth=6)
    cache.start("a", [1, 2, 3, 4, 5, 6, 7, 8, 1, 2], rules=Rules(max_factor=100.0))
    assert cache.speculate("a").tokens.tolist() == [3, 4, 5, 6, 7]  # from the match of one
    assert cache.speculate("a", 2).tokens.tolist() == [3, 4]


def test_the_whole_context_is_matched_only_if_asked_for(cache_of):
    cache = cache_of()
    said(cache, "a", [1], [7, 8, 9])
    for whole, wanted in ((False, []), (True, [8])):
        assert draft(cache, [7], [], rules=Rules(match_whole=whole)) == wanted


@pytest.mark.parametrize(("depth", "wanted"), [(1, []), (2, [9]), (3, [9, 5])])
def test_the_depth_holds_match_and_draft_together(depth, wanted, cache_of):
    cache = cache_of(depth=depth)
    said(cache, "a", [1], [8, 9, 5, 4])
    assert draft(cache, [60], [8], rules=Rules(max_factor=10.0)) == wanted


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        (Rules(max_factor=0.0), []),
        (Rules(max_factor=0.0, offset=1.0), [4]),
        (Rules(min_probability=1.0), []),
        (Rules(min_probability=0.0), [4, 5]),
    ],
)
def test_factor_and_probability_at_their_ends(rules, wanted, cache_of):
    assert draft(cache_of(), [1, 2, 4, 5, 6, 1, 2], [], rules=rules) == wanted


def test_a_certain_continuation_passes_a_probability_of_one(cache_of):
    cache = cache_of()
    said(cache, "a", [1], [7, 8, 9])
    cache.start("b", [7, 8], rules=Rules(min_probability=1.0, match_whole=True))
    assert cache.speculate("b").tokens.tolist() == [9]


@pytest.mark.parametrize(
    "call",
    [
        lambda cache: cache.start("a", [1]),
        lambda cache: cache.extend("stranger", [1]),
        lambda cache: cache.speculate("stranger"),
        lambda cache: cache.stop("stranger"),
        lambda cache: cache.evict("stranger"),
        lambda cache: cache.extend("a", [2**31]),
        lambda cache: cache.extend("a", [-1]),
        lambda cache: cache.extend("a", [1.5]),
        lambda cache: cache.extend("a", [[1, 2]]),
        lambda cache: cache.start("new", ["x"]),
        lambda cache: cache.start("new", [1], rules=Rules(min_probability=1.5)),
        lambda cache: cache.start("new", [1], rules=Rules(max_factor=float("nan"))),
    ],
)
def test_a_wrong_call_says_so_and_changes_nothing(call, cache_of):
    cache = cache_of()
    cache.start("a", [1])
    cache.extend("a", [7, 8, 9])
    before = cache.stats(), cache.running(), cache.shared(), cache.counts()
    with pytest.raises(SpecdecError, match="suffix"):
        call(cache)
    assert (cache.stats(), cache.running(), cache.shared(), cache.counts()) == before


def test_the_entry_of_a_stopped_request_is_refused(cache_of):
    """Its memory may be another request's by now."""
    cache = cache_of()
    entry = cache.start("a", [1, 2, 3])
    cache.stop("a")
    cache.start("b", [7, 8, 9])
    for call in (
        lambda: cache.step(entry, np.asarray([5], np.int32), 0, 0, 4, np.zeros(12, np.int32), 0, 4),
        lambda: cache.take_in(entry, np.asarray([5], np.int32), 0, 0),
    ):
        with pytest.raises(SpecdecError, match="has stopped"):
            call()
    cache.extend("b", [7, 8])
    assert cache.speculate("b").tokens.tolist() == [9, 7]


@pytest.mark.parametrize("wrong", [{"depth": 0}, {"max_requests": -1}, {"max_tokens": 0}, {"max_bytes": 0}])
def test_a_limit_that_cannot_be_is_refused_by_name(wrong, cache_of):
    with pytest.raises(SpecdecError, match=f"{next(iter(wrong))} is"):
        cache_of(**wrong)
