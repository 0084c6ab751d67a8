"""What observers promise: they hear everything, and their faults are their own."""

import pytest

from specdec_core import hookimpl
from specdec_core.errors import (
    CheckStageError,
    PluginWarning,
)
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry


class Observer:
    def __init__(self, seen, fails):
        self.seen, self.fails = seen, fails

    @hookimpl
    def specdec_step_finished(self, step):
        self.seen.append(step)
        if self.fails:
            raise SystemExit("observer")


def test_an_observer_that_fails_is_warned_about_once_and_the_others_still_hear():
    seen, heard = [], []
    registry = Registry(Catalog.of([]).with_local({"bad": Observer(seen, True), "good": Observer(heard, False)}))
    assert not registry.observed("specdec_step_finished")
    for name in ("good", "bad"):
        registry.find("extension", name)
    assert registry.observed("specdec_step_finished")
    with pytest.warns(PluginWarning, match="'bad'") as caught:
        for step in (1, 2):
            registry.broadcast("specdec_step_finished", step=step)
    assert len(caught) == 1
    assert seen == heard == [1, 2]


def test_a_strict_registry_raises_what_an_observer_raises():
    registry = Registry(Catalog.of([]).with_local({"bad": Observer([], True)}), strict=True)
    registry.find("extension", "bad")
    with pytest.raises(CheckStageError, match="specdec_step_finished raised SystemExit"):
        registry.broadcast("specdec_step_finished", step=1)
