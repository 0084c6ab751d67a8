"""What every proposer plugin promises, as a test class: subclass it, name the method, run pytest. No engine needed."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from specdec_core.draft import BatchView
from specdec_core.noise import Noise
from specdec_core.protocols import Proposer
from specdec_core.traits import MethodTraits
from specdec_testing.building import Built, build
from specdec_testing.checking import assert_same_drafts, host_rows
from specdec_testing.configuring import ConfigurationContract
from specdec_testing.drawn import assert_drafts_follow_q
from specdec_testing.driving import Driver, Script
from specdec_testing.fakes import FakeRequest, FakeTarget
from specdec_testing.guard import foundation
from specdec_testing.packaging import PackagingContract
from specdec_testing.release import kept_keys, still_held
from specdec_testing.subject import Subject
from specdec_testing.targets import shared_target


def script_batch(count: int = 8, seed: int = 0, vocab_size: int = 128, k: int = 4) -> list[Script]:
    """Return requests of many lengths, limits, chunk sizes and ends, half of them with repeating prompts."""
    rng = np.random.default_rng(seed)
    scripts = []
    for i in range(count):
        ids = [int(token) for token in rng.integers(3, vocab_size, (1, 9, 30, 3, 17, 50)[i % 6])]
        scripts.append(
            Script(
                name=f"request-{seed}-{i}",
                prompt=tuple(ids * 3 if i % 2 else ids),
                seed=1000 * seed + i,
                steps=4 + i % 5,
                join=int(rng.integers(0, 4)),
                chunk=(1000, 7, 16)[i % 3],
                limits=((k,), (k, 0, 1), (1, k), (k, k, 0, 0, k))[i % 4],
                reason=("done", "aborted", "done", "failed")[i % 4],
                temperature=0.8 * (i % 2),
            )
        )
    return scripts


def _nothing_asked(proposer: Proposer, count: int) -> BatchView:
    """Return a batch of started requests that may get no drafts."""
    requests = [FakeRequest(f"nothing-{i}", [5, 6, 5, 6, 5][: 2 + i]) for i in range(count)]
    for request in requests:
        proposer.start(request.view)
    known = np.array([len(request.tokens) for request in requests], np.int32)
    noise = Noise(np.zeros(count, np.uint64), known, np.zeros(count, np.int32))
    views = [request.view for request in requests]
    return BatchView(views, known - 1, np.ones(count, np.bool_), np.zeros(count, np.int32), noise)


class ProposerContract(PackagingContract, ConfigurationContract, promises=True):
    """The promises of a proposer plugin.

    A subclass gives the fixture `method`, and may give `options` (keys of the speculative configuration), `plugins`
    (an unpackaged plugin, as `LLM(plugins=...)` takes it), `k`, and `target` for a method that needs a certain one.
    """

    page: ClassVar[str] = "docs/step.md"
    stage: ClassVar[int] = 2

    @pytest.fixture
    def k(self) -> int:
        """Return the number of drafts asked for."""
        return 4

    @pytest.fixture
    def target(self) -> FakeTarget:
        """Return the target handle."""
        return FakeTarget(shared_target("llama"))

    @pytest.fixture
    def built(self, subject: Subject, k: int, target: FakeTarget) -> Built:
        """Return the configured method."""
        return build(subject, target.info, k)

    @pytest.fixture
    def traits(self, built: Built) -> MethodTraits:
        """Return the traits under these options."""
        return built.resolved.traits

    @pytest.fixture
    def proposer(self, built: Built, target: FakeTarget) -> Iterator[Proposer]:
        """Return a new proposer, closed after the test."""
        made = built.proposer(target)
        yield made
        made.close()

    # Drafts

    @foundation
    def test_known_ids_are_left_alone(
        self, proposer: Proposer, traits: MethodTraits, target: FakeTarget, k: int
    ) -> None:
        """A proposer reads the arrays of a batch view, which cannot be written into, and writes into none of them."""
        try:
            Driver(proposer, traits, target).run(script_batch(4, 4, target.info.vocab_size, k))
        except Exception as error:  # of another kind: the next check reports it
            assert "read-only" not in str(error), f"the proposer writes into what it is shown: {error}"

    @foundation
    def test_drafts_are_in_contract_over_ragged_batches(
        self, proposer: Proposer, traits: MethodTraits, target: FakeTarget, k: int
    ) -> None:
        """Over lives with chunks, joins, ends, acceptances and limits of all kinds, every draft is in contract."""
        driver = Driver(proposer, traits, target)
        for seed in range(3):
            driver.run(script_batch(12, seed, target.info.vocab_size, k))
        driver.check()

    @foundation
    def test_something_is_drafted(self, proposer: Proposer, traits: MethodTraits, target: FakeTarget, k: int) -> None:
        """Some row gets a draft; otherwise the other tests would show nothing."""
        driver = Driver(proposer, traits, target)
        driver.run(script_batch(12, 0, target.info.vocab_size, k))
        assert driver.longest > 0, (
            "every row was empty. Texts are random ids; every second prompt comes three times in sequence, and half of "
            "the ids behind it are ones that followed the id before them earlier. Give keys in the fixture `options` "
            "with which the method drafts on such texts, such as a shorter match"
        )

    def test_drafts_survive_gaps_pauses_and_preemption(
        self, proposer: Proposer, traits: MethodTraits, target: FakeTarget, k: int
    ) -> None:
        """Prefix-cache hits, steps without speculation and preemption leave every draft in contract."""
        scripts = []
        for i, script in enumerate(script_batch(12, 5, target.info.vocab_size, k)):
            changes = {
                "skip": (0, 3, 1000)[i % 3],
                "off": frozenset(((), (1, 2), (2,))[i % 3]),
                "preempt": (None, 2, 1, None)[i % 4],
            }
            scripts.append(Script(**{**script.__dict__, **changes}))
        driver = Driver(proposer, traits, target)
        driver.run(scripts)
        driver.check()

    def test_a_batch_drafts_what_its_rows_draft_alone(
        self, built: Built, traits: MethodTraits, target: FakeTarget, k: int
    ) -> None:
        """The drafts of a request do not depend on its company, nor on the order of rows."""
        scripts = script_batch(8, 1, target.info.vocab_size, k)
        together = self._drafts(built, traits, target, scripts, shuffle=1)
        for script in scripts:
            alone = self._drafts(built, traits, target, [script])
            there = "alone; a row of `propose` may depend on its own request only, and on no index of the batch"
            assert_same_drafts({script.name: together[script.name]}, alone, "in a batch of 8", there)

    @foundation
    def test_the_same_seed_drafts_the_same(
        self, built: Built, traits: MethodTraits, target: FakeTarget, k: int
    ) -> None:
        """Two new proposers draft the same; nothing depends on a global random state."""
        scripts = script_batch(6, 2, target.info.vocab_size, k)
        first = self._drafts(built, traits, target, scripts)
        random.random(), np.random.rand(), torch.rand(1)
        second = self._drafts(built, traits, target, scripts)
        there = "with another; draw from `batch.noise` alone"
        assert_same_drafts(second, first, "with one new proposer", there)

    def test_drawn_drafts_have_the_distribution_that_is_reported(
        self, proposer: Proposer, traits: MethodTraits, target: FakeTarget
    ) -> None:
        """Over many requests in one state, drafts follow q, and nobody reads the noise that decides about them."""
        if traits.draft_distribution != "soft" or traits.shares_noise:
            pytest.skip("the method reports no q that it draws from with noise of its own")
        assert_drafts_follow_q(proposer, traits, target)

    def test_what_others_said_changes_drafts_only_where_the_traits_say_so(
        self, proposer: Proposer, traits: MethodTraits, target: FakeTarget, k: int
    ) -> None:
        """The same requests once more draft the same, unless the traits declare `remembers`."""
        if traits.remembers:
            pytest.skip("the traits declare that drafts may depend on outputs of other requests")
        scripts = script_batch(6, 9, target.info.vocab_size, k)
        first = Driver(proposer, traits, target).run(scripts)
        again = Driver(proposer, traits, target).run(scripts)
        there = "before; forget what other requests brought, or set the trait `remembers`"
        assert_same_drafts(again, first, "when the same requests came again", there)

    def test_rows_that_may_not_draft_are_empty(
        self, proposer: Proposer, traits: MethodTraits, target: FakeTarget
    ) -> None:
        """With max_draft 0 everywhere, all rows are empty."""
        driver = Driver(proposer, traits, target)
        driver.run(
            [Script(**{**script.__dict__, "limits": (0,)}) for script in script_batch(4, 3, target.info.vocab_size)]
        )
        driver.check()
        assert driver.longest == 0
        if traits.rows == "none":  # hosts may leave such rows out of the call, or not
            assert host_rows(proposer.propose(_nothing_asked(proposer, 3))) == [[]] * 3

    # Release

    def test_finish_releases_the_request(
        self, proposer: Proposer, traits: MethodTraits, target: FakeTarget, k: int
    ) -> None:
        """After `finish`, for any reason, the proposer holds no reference to the request, and nothing under its id."""
        seen: dict[str, weakref.ref[Any]] = {}

        def live() -> None:
            driver = Driver(proposer, traits, target)
            driver.look = lambda batch: seen.update({view.id: weakref.ref(view) for view in batch.requests})
            driver.run(script_batch(8, 6, target.info.vocab_size, k))

        held = still_held(live, seen)
        assert not held, f"the views of {held} are still referred to; keep none of them after `finish`"
        # What is remembered of ended requests may be under their ids.
        names = [] if traits.remembers else sorted(seen.keys() & kept_keys(proposer))
        assert not names, (
            f"the proposer keeps something under {names}; remove in `finish` what is kept under `request.id`"
        )

    def test_a_name_can_be_used_again_after_finish(
        self, proposer: Proposer, built: Built, traits: MethodTraits, target: FakeTarget, k: int
    ) -> None:
        """A new request with the id of a finished one drafts as with a new proposer: no state is left behind."""
        first, second = (script_batch(4, seed, target.info.vocab_size, k) for seed in (7, 8))
        Driver(proposer, traits, target).run(first)
        renamed = [Script(**{**script.__dict__, "name": old.name}) for script, old in zip(second, first, strict=True)]
        again = Driver(proposer, traits, target).run(renamed)
        there = "with a new proposer; `finish` must remove what is kept under `request.id`, for every reason"
        assert_same_drafts(again, self._drafts(built, traits, target, renamed), "after one of the same id ended", there)

    def test_a_request_can_finish_before_it_was_proposed_for(self, proposer: Proposer) -> None:
        """`finish` right after `start` is legal for every reason."""
        for reason in ("done", "aborted", "preempted", "failed"):
            view = FakeRequest(f"short-{reason}", [5, 6, 7])
            proposer.start(view)
            proposer.finish(view, reason)

    @staticmethod
    def _drafts(
        built: Built, traits: MethodTraits, target: FakeTarget, scripts: Sequence[Script], shuffle: int = 0
    ) -> dict[str, list[list[int]]]:
        """Return what a new proposer drafts over these lives, and close it."""
        proposer = built.proposer(target)
        try:
            driver = Driver(proposer, traits, target, shuffle_seed=shuffle)
            drafts = driver.run(scripts)
            driver.check()
            return drafts
        finally:
            proposer.close()
