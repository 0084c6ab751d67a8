"""Finds how a method's heads are trained, by its plugin, and reads what can be chosen; it loads no target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec_core.config.options import validate
from specdec_core.config.speculative import MethodOptions
from specdec_core.errors import RequestError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.training import HeadTraining

HOOK: Final = "specdec_make_trainer"


def find_training(method: str, plugins: Mapping[str, Any] | None = None) -> HeadTraining:
    """Return how heads of a method are trained; `plugins` are unpackaged ones by name.

    Raises what looking a name up and loading it raise, and RequestError for a method without a trainer.
    """
    registry = Registry(Catalog.discover().with_local(plugins), strict=True)
    loaded = registry.find("proposer", method)
    if registry.call(loaded, HOOK, method=loaded.name) is None:
        record = loaded.record
        message = (
            f"method {method!r} cannot be trained: its plugin ({record.distribution} {record.version}) answers the "
            f"hook {HOOK} with nothing; docs/hooks.md has what to implement"
        )
        raise RequestError(message)
    made: HeadTraining = registry.make(loaded, HOOK, HeadTraining, method=loaded.name)
    return made


def read_options(method: str, training: HeadTraining, values: Mapping[str, Any]) -> MethodOptions:
    """Return the options of a method's training; raises RequestError naming every key that is wrong."""
    options, problems = validate(training.options, values)
    if options is None or problems:
        said = "; ".join(
            f"{each.key}: {each.message}" + (f" ({each.next_step})" * bool(each.next_step)) for each in problems
        )
        message = f"options for training {method!r}: {said}"
        raise RequestError(message)
    return options
