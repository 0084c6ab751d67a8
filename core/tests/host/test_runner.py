"""The host half: what a plugin does or raises costs its drafts and reaches nothing else; rows, gaps and limits."""

import numpy as np
import pytest

from specdec_core.draft import Draft
from specdec_core.errors import PluginCallError
from specdec_core.host.containment import Containment
from specdec_core.host.handed import HandedRequest, KnownIds
from specdec_core.host.requests import Slot
from specdec_core.host.runner import ProposerRunner
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
