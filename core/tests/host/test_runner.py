"""The host half: what a plugin does or raises costs its drafts and reaches nothing else; rows, gaps and limits."""

import numpy as np
import pytest

from specdec_core.draft import Draft
from specdec_core.errors import PluginCallError
from specdec_core.host.containment import Containment
from specdec_core.host.handed import HandedRequest, KnownIds
from specdec_core.host.requests import Slot
from specdec_core.host.runner import ProposerRunner
from specdec_core.host.verified import Answers, by_request, verified_rows
from specdec_core.traits import MethodTraits


class Budget:
    """k drafts a request; 0 switches speculation off."""

    def __init__(self, k=2):
        self.k = k

    def scheduled(self, batch_size):
        return self.k

    def limits(self, slots, batch_size):
        return [self.k for _ in slots]

    def trim(self, requests, draft):
        return draft

    def finished(self, request_id):
        """There is no controller to be told."""


class Request:
    """A host's request."""

    seq_index, key, max_draft = 0, 1, None

    def __init__(self, name="a", ids=(5, 6, 7, 8), prompt_len=3, arrival=0):
        self.id, self.arrival = name, arrival
        self.ids = KnownIds(np.array(ids, np.int32))
        self.view = HandedRequest(name, 0, prompt_len, self.ids, None, None)

    @property
    def tokens(self):
        return self.ids.view

    def __len__(self):
        return len(self.ids)

    def slot(self):
        return Slot(self, len(self) - 1, True, 10)


class Bad:
    """Does something to the batch, then drafts 600 tokens a row."""

    def __init__(self, do):
        self.do = do
        self.told = []

    def start(self, request):
        self.told.append(("start", request.id))

    def propose(self, batch):
        self.do(batch)
        return Draft.of([[3] * 600 for _ in batch.requests])

    def finish(self, request, reason):
        self.told.append((reason, request.id))

    def close(self): ...


class Keeps:
    """Keeps every batch, and drafts as much as it may."""

    def __init__(self):
        self.seen, self.told = [], []

    def start(self, request):
        self.told.append(("start", request.id))

    def propose(self, batch):
        self.seen.append(batch)
        return Draft.of([[9] * int(most) for most in batch.max_draft])

    def finish(self, request, reason):
        self.told.append((reason, request.id))

    def close(self):
        self.told.append("close")


def runner(proposer, traits=MethodTraits(), budget=None, **containment):  # noqa: B008
    return ProposerRunner(proposer, traits, budget or Budget(), 32, Containment("method", **containment))


def write(batch):
    batch.max_draft[:] = 10_000


def replace(batch):
    object.__setattr__(batch, "max_draft", batch.max_draft + 10_000)


def change_request(batch):
    batch.request(0).max_draft = 10_000


def leave(batch):
    raise SystemExit(3)


def close_generator(batch):
    raise GeneratorExit


BAD = [write, replace, change_request, leave, close_generator]
ROWS = [MethodTraits(), MethodTraits(rows="all"), MethodTraits(rows="last")]


@pytest.mark.parametrize("traits", ROWS, ids=lambda traits: traits.rows)
@pytest.mark.parametrize("do", BAD)
def test_drafts_are_held_to_the_hosts_own_limits_whatever_a_plugin_does(do, traits):
    bad, request = Bad(do), Request()
    host = runner(bad, traits)
    host.commit(request, 0, 3)
    assert host.propose([request.slot()]).lengths == [0]
    assert host.containment.failures == 1 and host.containment.step is not None
    assert bad.told == [("start", "a"), ("failed", "a")]


def test_an_interrupt_passes_and_strict_raises_what_is_no_error_as_one():
    def interrupt(batch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner(Bad(interrupt)).propose([Request().slot()])
    with pytest.raises(PluginCallError, match="SystemExit: 3 in propose"):
        runner(Bad(leave), strict=True).propose([Request().slot()])


def test_a_method_that_fails_too_often_in_a_row_is_not_called_again_and_keeps_no_rows():
    bad, request = Bad(leave), Request(ids=range(20))
    host = runner(bad, MethodTraits(rows="all"), off_after=2)
    for start in range(5):
        host.commit(request, 3 + start, 1)
        host.propose([request.slot()])
    assert host.containment.failures == 2 and host.containment.is_off()
    assert host._states["a"].pending == []


def test_rows_left_out_while_speculation_is_off_are_one_gap():
    keeps, request, budget = Keeps(), Request(ids=range(20), prompt_len=3), Budget()
    host = runner(keeps, MethodTraits(rows="all"), budget)
    for start, k in ((0, 2), (4, 0), (8, 2), (12, 2)):
        budget.k = k
        host.commit(request, start, 4)
        host.propose([request.slot()])
    assert [batch.rows.positions.tolist() for batch in keeps.seen] == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert [batch.rows.tokens.tolist()[0] for batch in keeps.seen] == [1, 9, 13], "a row has the id after its own"
    assert [batch.rows.gap.tolist() for batch in keeps.seen] == [[False], [True], [False]]


def test_a_request_that_runs_again_is_started_anew_without_being_told():
    keeps, request = Keeps(), Request(ids=range(20))
    host = runner(keeps, MethodTraits(rows="all"))
    for start in (0, 4, 0):
        host.commit(request, start, 4)
        host.propose([request.slot()])
    assert keeps.told == [("start", "a"), ("preempted", "a"), ("start", "a")]
    assert [batch.rows.gap.tolist() for batch in keeps.seen] == [[False], [False], [False]]


def test_where_a_drafters_memory_is_full_the_youngest_goes_without_drafts():
    keeps = Keeps()
    host = ProposerRunner(
        keeps, MethodTraits(rows="all", weights="own"), Budget(), 32, Containment("method"), max_rows=10
    )
    old, young = Request("old", range(9), arrival=0), Request("young", range(9), arrival=1)
    host.commit(old, 0, 8)
    host.commit(young, 0, 8)
    assert host.propose([old.slot(), young.slot()]).lengths == [2, 0]
    assert (host.full_at, keeps.told) == ("young", [("start", "old")])
    host.finish(old, "done")
    assert keeps.told[-1] == ("done", "old")
    late = Request("late", range(9), arrival=2)
    host.commit(late, 0, 8)
    assert host.propose([young.slot(), late.slot()]).lengths == [0, 2], "there is room again, but not for the retired"


def test_a_closed_runner_drafts_nothing_and_holds_nothing():
    keeps, request = Keeps(), Request()
    host = runner(keeps)
    assert host.propose([request.slot()]).lengths == [2] and host.asked(request)
    host.close()
    assert keeps.told[-1] == "close"
    assert host.propose([request.slot()]).lengths == [0]
    assert host._proposer is not keeps


class Looking:
    """Keeps what it is shown of verified rows."""

    def __init__(self):
        self.seen = []

    def start(self, request):
        pass

    def propose(self, batch):
        self.seen.append(batch.verified)
        return Draft.empty(len(batch))

    def finish(self, request, reason):
        pass


def answers_of(ids=(8, 20, 21), path=(0,), parents=None):
    top = np.arange(2 * len(ids), dtype=np.int32).reshape(len(ids), 2)
    own = None if parents is None else np.array(parents, np.int32)
    return Answers.of(np.array(ids, np.int32), own, np.array(path, np.int32), top, -top.astype(np.float32))


def looking(k=2, n=2):
    proposer = Looking()
    runner = ProposerRunner(proposer, MethodTraits(verified_top_k=n), Budget(k), 100, Containment("m", strict=True))
    return proposer, runner


def test_answers_of_the_last_step_are_shown_once_with_their_batch_rows():
    proposer, runner = looking()
    first, second = Request("a"), Request("b")
    runner.answer(second, answers_of(parents=[-1, -1], path=[1]))
    runner.propose([first.slot(), second.slot()])
    runner.propose([first.slot(), second.slot()])
    shown, nothing = proposer.seen
    assert shown.request.tolist() == [1, 1, 1] and shown.tokens.tolist() == [8, 20, 21]
    assert shown.parents.tolist() == [-1, 0, 0] and shown.accepted.tolist() == [True, False, True]
    assert shown.top_ids.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert nothing.top_ids.shape == (0, 2) and len(nothing.request) == 0
    with pytest.raises(ValueError, match="read-only"):
        shown.top_ids[0] = 5


@pytest.mark.parametrize("between", ["preempted", "a step that is off", "finished"])
def test_answers_from_before_an_interruption_are_dropped(between):
    proposer, runner = looking()
    request = Request("a")
    runner.propose([request.slot()])
    runner.answer(request, answers_of())
    if between == "preempted":
        runner.preempt(["a"])
    elif between == "finished":
        runner.finish(request, "done")
    else:
        runner.budget.k = 0
        runner.propose([request.slot()])
        runner.budget.k = 2
    runner.propose([request.slot()])
    assert len(proposer.seen[-1].request) == 0


def test_a_method_that_asks_for_no_answers_is_shown_none():
    proposer, runner = looking(n=0)
    runner.answer(Request("a"), answers_of())
    runner.propose([Request("a").slot()])
    assert runner.verified_top_k == 0 and proposer.seen == [None]


def test_delivered_answers_can_be_taken_apart_again():
    own = [None, answers_of(), None, answers_of((3,), ())]
    for before, after in zip(own, by_request(verified_rows(own, 2), 4), strict=True):
        assert (before is None) == (after is None)
        if before is not None:
            for name in ("tokens", "parents", "accepted", "top_ids", "top_logprobs"):
                assert np.array_equal(getattr(before, name), getattr(after, name))


class CutsAllButOne(Budget):
    """Leaves one draft of each request, as a controller may."""

    def trim(self, requests, draft):
        starts = np.cumsum(draft.lengths) - draft.lengths
        mask = np.zeros(len(draft.tokens), np.bool_)
        mask[starts] = True
        return draft.keep(mask)


def test_drafts_that_were_made_are_counted_apart_from_those_that_were_left():
    request = Request()
    host = runner(Keeps(), budget=CutsAllButOne(4))
    assert host.proposed(request) == 0
    assert host.propose([request.slot()]).lengths == [1]
    assert host.proposed(request) == 4
    host.budget.k = 0
    assert host.propose([request.slot()]).lengths == [0]
    assert host.proposed(request) == 0


class InParts(Keeps):
    """Says how long its two parts took."""

    def part_seconds(self):
        return [0.25, 0.5]


def test_the_time_of_parts_is_told_and_a_failure_there_costs_nothing_but_that():
    assert runner(Keeps()).part_seconds() == []
    assert runner(InParts()).part_seconds() == [0.25, 0.5]
    broken = InParts()
    broken.part_seconds = lambda: ["soon"]
    host = runner(broken)
    assert host.part_seconds() == []
    assert host.containment.failures == 1
