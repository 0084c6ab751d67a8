"""The conformance checks pass good proposers and fail each kind of bad one."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_core.draft import Draft
from specdec_core.errors import ConfigError, ConfigWarning, PluginError
from specdec_core.late_hooks import hook_from
from specdec_core.markers import hookimpl
from specdec_core.sources import Default
from specdec_core.traits import MethodTraits
from specdec_testing import breakers
from specdec_testing.building import build
from specdec_testing.contract import ProposerContract, script_batch
from specdec_testing.driving import Driver
from specdec_testing.fakes import FakeTarget
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Fixed, Garbage, Null, Soft, Stub, stub_plugin
from specdec_testing.subject import Subject
from specdec_testing.table import random_table
from specdec_testing.targets import tiny_target


class StubContract(ProposerContract):
    """The contract over an unpackaged stub; subclasses say which."""

    @pytest.fixture
    def method(self):
        return "stub"


class TestGarbageKeepsTheContract(StubContract):
    @pytest.fixture
    def plugins(self):
        return {"stub": stub_plugin(lambda target: Garbage(target.info.vocab_size))}


class TestSoftKeepsTheContract(StubContract):
    @pytest.fixture
    def plugins(self):
        traits = MethodTraits(draft_distribution="soft", shares_noise=True)
        return {"stub": stub_plugin(lambda target: Soft(random_table(128), shared=True), traits=traits)}


class TestRecordingKeepsTheContract(StubContract):
    """Not the release of requests, of course: recording is keeping. Its records hold copies, so that holds too."""

    @pytest.fixture
    def plugins(self):
        def make(target):
            return RecordingProposer(aux_layers=(1,), inner=Garbage(target.info.vocab_size))

        traits = RecordingProposer(aux_layers=(1,)).traits
        return {"stub": stub_plugin(make, traits=traits)}


class TestNullDraftsNothing(StubContract):
    @pytest.fixture
    def plugins(self):
        return {"stub": stub_plugin(lambda target: Null())}

    @pytest.mark.xfail(reason="it drafts nothing by design", strict=True)
    def test_something_is_drafted(self, proposer, traits, target, k):
        super().test_something_is_drafted(proposer, traits, target, k)


class CrossTalk(Stub):
    """Drafts something that depends on the place in the batch."""

    def row(self, batch, i):
        return [3 + i] * 4


class Unseeded(Stub):
    """Draws from the operating system."""

    rng = np.random.default_rng()

    def row(self, batch, i):
        return self.rng.integers(3, 128, 4).tolist()


class Hoarder(Fixed):
    """Keeps every view for ever."""

    def __init__(self):
        super().__init__([5])
        self.kept = []

    def start(self, request):
        super().start(request)
        self.kept.append(request)


class Stale(Stub):
    """Keeps state under the request's name after it finished."""

    def __init__(self):
        super().__init__()
        self.first = {}

    def row(self, batch, i):
        request = batch.request(i)
        return [self.first.setdefault(request.id, int(request.tokens[0]))]


class Eager(Fixed):
    """Drafts where it may not."""

    def propose(self, batch):
        return Draft.of([self.ids[:1] for _ in batch.max_draft])


class Scribbler(Fixed):
    """Writes into the batch view."""

    def propose(self, batch):
        batch.run_len[:] = 0
        return super().propose(batch)


class Forgetful(Fixed):
    """Cannot finish a request that it never drafted for."""

    def propose(self, batch):
        self.known = {request.id for request in batch.requests}
        return super().propose(batch)

    def finish(self, request, reason):
        self.known.remove(request.id)


CASES = [
    ("test_drafts_are_in_contract_over_ragged_batches", lambda: breakers.OutOfVocabulary(128)),
    ("test_drafts_are_in_contract_over_ragged_batches", lambda: breakers.NegativeIds(every=5)),
    ("test_drafts_are_in_contract_over_ragged_batches", lambda: breakers.TooLong()),
    ("test_drafts_are_in_contract_over_ragged_batches", lambda: breakers.WrongRowCount(every=7)),
    ("test_drafts_are_in_contract_over_ragged_batches", lambda: breakers.WrongLengthsSum()),
    ("test_drafts_are_in_contract_over_ragged_batches", lambda: breakers.BadParents()),
    ("test_drafts_are_in_contract_over_ragged_batches", lambda: breakers.BadDistribution(128)),
    ("test_drafts_are_in_contract_over_ragged_batches", lambda: breakers.WrongType(every=9)),
    ("test_drafts_are_in_contract_over_ragged_batches", lambda: breakers.Raises("propose", every=4)),
    ("test_drafts_survive_gaps_pauses_and_preemption", lambda: breakers.OutOfVocabulary(128, every=6)),
    ("test_something_is_drafted", Null),
    ("test_a_batch_drafts_what_its_rows_draft_alone", CrossTalk),
    ("test_the_same_seed_drafts_the_same", Unseeded),
    ("test_rows_that_may_not_draft_are_empty", lambda: Eager([5])),
    ("test_known_ids_are_left_alone", lambda: Scribbler([5])),
    ("test_finish_releases_the_request", Hoarder),
    ("test_a_name_can_be_used_again_after_finish", Stale),
    ("test_a_request_can_finish_before_it_was_proposed_for", lambda: Forgetful([5])),
]


@pytest.mark.parametrize(("test", "make"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_bad_proposer_fails_the_check_that_is_about_it(test, make):
    target = FakeTarget(tiny_target("llama"))
    available = {
        "proposer": make(),
        "built": SimpleNamespace(proposer=lambda target: make()),
        "traits": MethodTraits(),
        "target": target,
        "k": 4,
    }
    check = getattr(StubContract(), test)
    wanted = check.__func__.__code__.co_varnames[1 : check.__func__.__code__.co_argcount]
    with pytest.raises((AssertionError, ValueError, KeyError, AttributeError, breakers.StubFailure)):
        check(**{name: available[name] for name in wanted})
    good = {**available, "proposer": Garbage(128), "built": SimpleNamespace(proposer=lambda target: Garbage(128))}
    check(**{name: good[name] for name in wanted})


class Unmarked:
    """A plugin that forgot one mark."""

    def specdec_method_traits(self, ctx):
        return MethodTraits()

    @hookimpl
    def specdec_make_proposer(self, ctx):
        return Null()


class WrongArgument:
    """A plugin that asks for something that no hook gives."""

    @hookimpl
    def specdec_make_proposer(self, ctx, tokenizer):
        return Null()


def make_with_tokenizer(ctx, tokenizer):
    return Null()


class WrongArgumentElsewhere:
    """A plugin whose hook is a function of another module that asks for something that no hook gives."""

    specdec_make_proposer = hook_from(f"{__name__}:make_with_tokenizer")


@pytest.mark.parametrize("plugin", [Unmarked(), WrongArgument(), WrongArgumentElsewhere()])
def test_hooks_that_do_not_fit_are_found(plugin):
    with pytest.raises(Exception, match=r"not marked|tokenizer"):
        StubContract().test_hooks_are_marked_and_ask_for_known_arguments("stub", {"stub": plugin})


COUNT = itertools.count(1000)


class Counted(Null):
    """A plugin of heads whose hooks answer with what a test puts into them."""

    options = None

    def __init__(self, traits=MethodTraits, default=None):
        super().__init__()
        self.traits_of, self.default = traits, default

    @hookimpl
    def specdec_method_options(self, method):
        return self.options

    @hookimpl
    def specdec_method_traits(self, ctx):
        return self.traits_of(ctx.config)

    @hookimpl
    def specdec_method_defaults(self, ctx):
        return [Default(key="num_speculative_tokens", value=self.default, reason="heads")] if self.default else []

    @hookimpl
    def specdec_make_proposer(self, ctx):
        return self


@pytest.mark.parametrize(
    ("test", "good", "bad"),
    [
        (
            "test_traits_can_be_asked_for_without_a_k",
            Counted(lambda config: MethodTraits(extra_slots=(config.num_speculative_tokens or 1) - 1)),
            Counted(lambda config: MethodTraits(extra_slots=config.num_speculative_tokens - 1)),
        ),
        (
            "test_a_default_k_is_one_that_the_method_takes",
            Counted(lambda config: MethodTraits(n_predict=4, max_tokens=4), default=4),
            Counted(lambda config: MethodTraits(n_predict=4, max_tokens=4), default=5),
        ),
        (
            "test_a_default_k_is_one_that_the_method_takes",
            Counted(lambda config: MethodTraits(n_predict=4), default=4),
            Counted(lambda config: MethodTraits(n_predict=4), default=8),
        ),
        (
            "test_the_same_configuration_has_the_same_hash",
            Counted(lambda config: MethodTraits(max_position=1000)),
            Counted(lambda config: MethodTraits(max_position=next(COUNT))),
        ),
    ],
)
def test_a_configuration_that_does_not_hold_together_is_found(test, good, bad):
    target = FakeTarget(tiny_target("llama"))

    def check(plugin):
        subject = Subject("stub", {}, {"stub": plugin})
        available = {"subject": subject, "built": build(subject, target.info), "target": target}
        function = getattr(StubContract(), test)
        wanted = function.__func__.__code__.co_varnames[1 : function.__func__.__code__.co_argcount]
        function(**{name: available[name] for name in wanted})

    check(good)
    with pytest.raises((AssertionError, PluginError, ConfigError, ConfigWarning)):
        check(bad)


def test_the_scripts_cover_what_they_claim():
    scripts = script_batch(12)
    assert {script.reason for script in scripts} == {"done", "aborted", "failed"}
    assert min(len(script.prompt) for script in scripts) == 1
    stub = RecordingProposer(inner=Garbage(128))
    Driver(stub, stub.traits, FakeTarget(tiny_target("llama"))).run(scripts)
    sizes = {len(call.request_ids) for call in stub.calls_seen}
    limits = {limit for call in stub.calls_seen for limit in call.max_draft}
    chunks = [known for call in stub.calls_seen for known in call.newest_known]
    assert len(sizes) > 3 and {0, 1, 4} <= limits and not all(chunks)


def test_a_contract_without_a_method_says_what_is_missing():
    function = ProposerContract.method
    function = getattr(function, "__wrapped__", function)
    with pytest.raises(NotImplementedError, match="fixture `method`"):
        getattr(function, "_get_wrapped_function", lambda: function)()(ProposerContract())
