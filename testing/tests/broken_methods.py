"""Methods that break one promise each, with the check that is about it; `test_broken_plugins.py` runs them."""

from __future__ import annotations

import itertools

import numpy as np
from pydantic import ConfigDict, Field

from specdec_core import hookimpl
from specdec_core.config.speculative import MethodOptions
from specdec_core.draft import Draft
from specdec_core.sources import Default
from specdec_core.traits import MethodTraits
from specdec_testing import breakers
from specdec_testing.stubs import Fixed, Garbage, Null, Soft, Stub, stub_plugin
from specdec_testing.table import random_table

VOCAB = 128
COUNT = itertools.count(1000)


class Scribbler(Fixed):
    """Writes into what it is shown."""

    def propose(self, batch):
        batch.run_len[:] = 0
        return super().propose(batch)


class Unseeded(Stub):
    """Draws from the operating system."""

    def row(self, batch, i):
        return np.random.default_rng().integers(3, VOCAB, 4).tolist()


class NoGaps(Garbage):
    """Counts on rows without gaps."""

    def propose(self, batch):
        assert batch.rows is None or not batch.rows.gap.any(), "a gap"
        return super().propose(batch)


class CrossTalk(Stub):
    """Drafts by the place in the batch."""

    def row(self, batch, i):
        return [3 + i] * 4


class OtherDistribution(Soft):
    """Reports a uniform q and always drafts the same id."""

    def __init__(self):
        super().__init__(np.full((VOCAB, VOCAB), 1 / VOCAB))

    def _chains(self, batch):
        chains = super()._chains(batch)
        chains[:, 1:] = 7
        return chains


class Remembering(Stub):
    """Drafts how often this very text has been seen, in any request, and does not say `remembers`."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def row(self, batch, i):
        request = batch.request(i)
        key = hash(request.id), request.tokens.tobytes()
        self.seen[key] = self.seen.get(key, 0) + 1
        return [3 + self.seen[key]]

    def finish(self, request, reason):
        super().finish(request, reason)
        if reason == "preempted":  # the same text comes again then
            self.seen = {key: count for key, count in self.seen.items() if key[0] != hash(request.id)}


class Eager(Fixed):
    """Drafts where it may not."""

    def propose(self, batch):
        return Draft.of([self.ids[: max(1, int(most))] for most in batch.max_draft])


class Hoarder(Garbage):
    """Keeps every request for ever."""

    def __init__(self):
        super().__init__(VOCAB)
        self.kept = []

    def start(self, request):
        super().start(request)
        self.kept.append(request)


class Leaking(Garbage):
    """Keeps what belongs to a request under its id, and makes it anew when one of that id starts."""

    def __init__(self):
        super().__init__(VOCAB)
        self.counts = {}

    def start(self, request):
        super().start(request)
        self.counts[request.id] = [0]


class Stale(Stub):
    """Keeps state under the request's name after it finished."""

    def __init__(self):
        super().__init__()
        self.first = {}

    def row(self, batch, i):
        request = batch.request(i)
        return [self.first.setdefault(hash(request.id), int(request.tokens[0]))]


class Forgetful(Garbage):
    """Cannot finish a request that it never drafted for."""

    def __init__(self):
        super().__init__(VOCAB)
        self.known = set()

    def propose(self, batch):
        self.known.update(request.id for request in batch.requests)
        return super().propose(batch)

    def finish(self, request, reason):
        super().finish(request, reason)
        if reason == "failed" and request.id not in self.known:
            raise KeyError(request.id)
        self.known.discard(request.id)


class Spoiling(Garbage):
    """Changes the target."""

    def __init__(self, target):
        super().__init__(VOCAB)
        if target.info.max_model_len == 192:  # in the engine
            weight = target.embedding_weight
            weight.data.copy_(weight.data.roll(1, 0))


class Hooks:
    """A plugin of `Garbage` whose other hooks a subclass breaks."""

    @hookimpl
    def specdec_make_proposer(self):
        return Garbage(VOCAB)


class Unmarked(Hooks):
    def specdec_method_traits(self, ctx):
        return MethodTraits()


class LaxOptions(MethodOptions):
    model_config = ConfigDict(extra="allow")


class TakesAnything(Hooks):
    @hookimpl
    def specdec_method_options(self):
        return LaxOptions


class Restless(Hooks):
    @hookimpl
    def specdec_method_traits(self):
        return MethodTraits(max_position=next(COUNT))


class NeedsK(Hooks):
    @hookimpl
    def specdec_method_traits(self, ctx):
        return MethodTraits(extra_slots=ctx.config.num_speculative_tokens - 1)


class TooLargeByDefault(Hooks):
    @hookimpl
    def specdec_method_traits(self):
        return MethodTraits(n_predict=4, max_tokens=4)

    @hookimpl
    def specdec_method_defaults(self):
        return [Default(key="num_speculative_tokens", value=5, reason="five")]


class SaltedOptions(MethodOptions):
    salt: int = Field(default_factory=lambda: next(COUNT), description="Another one each time.")


class Salted(Hooks):
    @hookimpl
    def specdec_method_options(self):
        return SaltedOptions


class BoundlessOptions(MethodOptions):
    bound: float = Field(float("inf"), description="A number that JSON does not have.")


class Boundless(Hooks):
    @hookimpl
    def specdec_method_options(self):
        return BoundlessOptions


def each_time(make, **traits):
    """Return a plugin that makes a new proposer each time."""
    return stub_plugin(lambda target: make(), traits=MethodTraits(**traits))


RAGGED = "test_drafts_are_in_contract_over_ragged_batches"
BROKEN = {
    "Unmarked": ("test_hooks_are_marked_and_ask_for_known_arguments", Unmarked()),
    "TakesAnything": ("test_options_are_strict_frozen_and_described", TakesAnything()),
    "Restless": ("test_traits_are_the_same_when_asked_twice", Restless()),
    "NeedsK": ("test_traits_can_be_asked_for_without_a_k", NeedsK()),
    "TooLargeByDefault": ("test_a_default_k_is_one_that_the_method_takes", TooLargeByDefault()),
    "Salted": ("test_the_same_configuration_has_the_same_hash", Salted()),
    "Boundless": ("test_the_resolved_configuration_is_data", Boundless()),
    "Scribbler": ("test_known_ids_are_left_alone", each_time(lambda: Scribbler([5]))),
    "OutOfVocabulary": (RAGGED, each_time(lambda: breakers.OutOfVocabulary(VOCAB))),
    "NegativeIds": (RAGGED, each_time(lambda: breakers.NegativeIds(every=5))),
    "TooLong": (RAGGED, each_time(breakers.TooLong)),
    "WrongRowCount": (RAGGED, each_time(lambda: breakers.WrongRowCount(every=7))),
    "WrongLengthsSum": (RAGGED, each_time(breakers.WrongLengthsSum)),
    "BadParents": (RAGGED, each_time(breakers.BadParents, shape="tree")),
    "BadDistribution": (RAGGED, each_time(lambda: breakers.BadDistribution(VOCAB), draft_distribution="soft")),
    "WrongType": (RAGGED, each_time(lambda: breakers.WrongType(every=9))),
    "Raising": (RAGGED, each_time(lambda: breakers.Raises("propose", every=4))),
    "Silent": ("test_something_is_drafted", each_time(Null)),
    "Unseeded": ("test_the_same_seed_drafts_the_same", each_time(Unseeded)),
    "NoGaps": ("test_drafts_survive_gaps_pauses_and_preemption", each_time(lambda: NoGaps(VOCAB), rows="all")),
    "CrossTalk": ("test_a_batch_drafts_what_its_rows_draft_alone", each_time(CrossTalk)),
    "OtherDistribution": (
        "test_drawn_drafts_have_the_distribution_that_is_reported",
        each_time(OtherDistribution, draft_distribution="soft"),
    ),
    "Remembering": ("test_what_others_said_changes_drafts_only_where_the_traits_say_so", each_time(Remembering)),
    "Eager": ("test_rows_that_may_not_draft_are_empty", each_time(lambda: Eager([5] * 9))),
    "Hoarder": ("test_finish_releases_the_request", each_time(Hoarder)),
    "Leaking": ("test_finish_releases_the_request", each_time(Leaking)),
    "Stale": ("test_a_name_can_be_used_again_after_finish", each_time(Stale)),
    "Forgetful": ("test_a_request_can_finish_before_it_was_proposed_for", each_time(Forgetful)),
    "Spoiling": ("test_greedy_text_is_the_plain_text", stub_plugin(Spoiling, traits=MethodTraits())),
}
GOOD = {
    "Good": each_time(lambda: Garbage(VOCAB)),
    "GoodDrawn": each_time(lambda: Soft(random_table(VOCAB, seed=2, concentration=0.1)), draft_distribution="soft"),
}
