"""In vLLM too, what a plugin writes or raises costs its drafts and reaches nothing else; needs no vLLM."""

import numpy as np
import pytest
from specdec_vllm.bridge_drafting import StateDrafting
from specdec_vllm.bridge_rows import Span, Step
from specdec_vllm.drafting import Drafting
from specdec_vllm.guard import Guard

from specdec_core.draft import Draft
from specdec_core.traits import MethodTraits
from specdec_vllm.views import SeenRequest


class Limits:
    """Two drafts a request."""

    def scheduled(self, batch_size):
        return 2

    def rows(self, requests, batch_size):
        return [2 for _ in requests]


class Bad:
    """Does something to the batch, then drafts 600 tokens a row."""

    def __init__(self, do):
        self.do = do

    def start(self, request): ...

    def propose(self, batch):
        self.do(batch)
        return Draft.of([[3] * 600 for _ in batch.requests])

    def finish(self, request, reason): ...

    def close(self): ...


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


def request():
    return SeenRequest("a", 3, np.array([5, 6, 7, 8], np.int32), 0)


@pytest.mark.parametrize("do", BAD)
def test_drafts_from_ids_alone_are_held_to_the_hosts_own_limits(do):
    guard = Guard("bad")
    assert Drafting(Bad(do), MethodTraits(), Limits(), 32, guard).draft([request()], 1) == [[]]
    assert guard.failures == 1


@pytest.mark.parametrize("do", BAD)
def test_drafts_over_the_bridge_are_held_to_the_hosts_own_limits(do):
    guard, seen = Guard("bad"), request()
    drafting = StateDrafting(Bad(do), MethodTraits(), Limits(), 32, guard, 100)
    step = Step(["a"], {"a": 3}, {}, [0], [[8]], [4], seen.tokens[None], None, None)
    assert drafting.draft_step(step, [seen], [Span(0, 0, 3, sampled=True)]).rows == [[]]
    assert guard.failures == 1


def test_an_interrupt_passes():
    def interrupt(batch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Drafting(Bad(interrupt), MethodTraits(), Limits(), 32, Guard("bad")).draft([request()], 1)
