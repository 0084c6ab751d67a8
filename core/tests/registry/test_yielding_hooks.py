"""A hook may yield what it returns in a list: nothing is lost, and what fails on the way is the plugin's own error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from specdec_core import hookimpl
from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import CheckStageError, ConfigError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import Default, Note, Problem, TargetInfo


class Yielding:
    """Yields its defaults, notes and problems; `found` is what its check yields, an exception is raised."""

    def __init__(self, *found: Any) -> None:
        self.found = found
        self.finished: list[Any] = []

    @hookimpl
    def specdec_method_defaults(self) -> Iterator[Default]:
        yield Default(key="num_speculative_tokens", value=3, reason="it is small")

    @hookimpl
    def specdec_check(self) -> Iterator[Any]:
        for one in self.found:
            if isinstance(one, Exception):
                raise one
            yield one

    @hookimpl
    def specdec_make_proposer(self) -> None:
        return None

    @hookimpl
    def specdec_session_finished(self, summary: Any) -> Iterator[None]:
        self.finished.append(summary)
        yield


def registry_of(plugin: object) -> Registry:
    return Registry(Catalog.discover().with_local({"yielding": plugin}), strict=True)


def resolve_config(plugin: object, target: TargetInfo) -> ResolvedConfig:
    return resolve({"method": "yielding"}, target, registry_of(plugin))


def test_notes_and_problems_that_are_yielded_all_arrive(target: TargetInfo) -> None:
    notes = (
        Note(key="layout", value="wide", reason="by its tensors"),
        Note(key="norm", value=True, reason="by config.json"),
    )
    resolved = resolve_config(Yielding(*notes), target)
    assert resolved.num_speculative_tokens == 3
    assert [(each.key, each.value) for each in resolved.decisions if each.key in ("layout", "norm")] == [
        ("layout", "wide"),
        ("norm", True),
    ]
    with pytest.raises(ConfigError, match=r"one is wrong(.|\n)*two is wrong"):
        resolve_config(
            Yielding(Problem(key="a", message="one is wrong"), notes[0], Problem(key="b", message="two is wrong")),
            target,
        )


def test_what_fails_while_it_yields_is_the_error_of_the_plugin_and_its_hook(target: TargetInfo) -> None:
    with pytest.raises(CheckStageError, match=r"specdec_check raised KeyError"):
        resolve_config(Yielding(Note(key="layout", value="wide", reason="by its tensors"), KeyError("width")), target)


def test_an_observer_that_yields_is_run(target: TargetInfo) -> None:
    plugin = Yielding()
    registry = registry_of(plugin)
    registry.find("proposer", "yielding")
    registry.broadcast("specdec_session_finished", summary={"steps": 1})
    assert plugin.finished == [{"steps": 1}]


@pytest.mark.parametrize("returned", [Problem(key="a", message="is wrong"), {"a": "is wrong"}, "is wrong"])
def test_what_is_no_list_is_refused_with_its_type(returned: Any, target: TargetInfo) -> None:
    class Alone(Yielding):
        @hookimpl
        def specdec_check(self) -> Any:
            return returned

    with pytest.raises(CheckStageError, match=f"specdec_check returned {type(returned).__name__}, not a list"):
        resolve_config(Alone(), target)
