"""What an object offers beside its protocol is called by name, so an attribute of that name must be such a call."""

import pytest

from specdec_core import hookimpl, protocols
from specdec_core.errors import MakeStageError
from specdec_core.protocols import Controller, Verifier
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.registry.offered import BESIDES, misfits


class Controls:
    """A controller with nothing besides."""

    def limit(self, requests, k):
        return k

    def observe(self, stats):
        pass


class Done(Controls):
    """Has an attribute that happens to be named like a call that a controller may offer."""

    def __init__(self):
        self.finished = []


class Unset(Controls):
    """Offers nothing under that name."""

    finished = None


class Fixed(Controls):
    limit = 3


@pytest.mark.parametrize(("kind", "name"), [(Done, "finished"), (Fixed, "limit")])
def test_an_attribute_that_is_named_like_a_call_and_is_none_is_refused_when_the_object_is_made(kind, name):
    class Mine:
        @hookimpl
        def specdec_make_controller(self, method):
            return kind()

    registry = Registry(Catalog.of([]).with_local({"mine": Mine()}))
    with pytest.raises(MakeStageError) as caught:
        registry.make(registry.find("extension", "mine"), "specdec_make_controller", Controller, method="mine")
    assert f"returned {kind.__name__}, but its attribute '{name}' is of type" in str(caught.value)
    assert "'mine'" in str(caught.value)


def test_what_is_none_is_not_offered():
    assert not list(misfits(Unset(), Controller))


class Verifies:
    def verify(self, draft, logits, noise, target_draws, greedy):
        return None


class AsMethod(Verifies):
    def draws_for_itself(self):
        return False


def test_a_method_in_the_place_of_a_value_is_seen_since_every_method_is_true():
    (problem,) = misfits(AsMethod(), Verifier)
    assert "'draws_for_itself' is a method" in problem and "DrawsForItself" in problem


class Raising(Controls):
    @property
    def trim(self):
        raise RuntimeError("not yet")


def test_an_attribute_that_raises_is_named():
    (problem,) = misfits(Raising(), Controller)
    assert "'trim' raised" in problem and "not yet" in problem


def test_every_optional_protocol_is_looked_through():
    known = {each for group in BESIDES.values() for each in group}
    told = {
        each
        for each in vars(protocols).values()
        if getattr(each, "_is_protocol", False) and "may offer besides" in (each.__doc__ or "")
    }
    assert {each.__name__ for each in told} == {each.__name__ for each in known - {protocols.Remembers}}
