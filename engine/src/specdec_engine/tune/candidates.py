"""Which methods and numbers of drafts are tried: those given, or all installed ones that need no further key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError, RequestError, SpecdecError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_engine.bench.methods import OPTION, Method

K: Final = "num_speculative_tokens"
SCHEDULE: Final = "num_speculative_tokens_per_batch_size"
TRIED: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
FEW: Final = 4  # the second run of a method has so many times fewer drafts than the first


@dataclass(frozen=True)
class Candidate:
    """A method with the numbers of drafts that it is tried with, ascending, and whether it drafts trees.

    measured  the numbers that it is run with to learn what it accepts and costs, descending
    """

    label: str
    config: Mapping[str, Any]
    limits: Sequence[int]
    tree: bool

    @property
    def measured(self) -> list[int]:
        """Return the largest number, and one of the smaller ones if there are any."""
        most = self.limits[-1]
        few = [limit for limit in self.limits if limit <= max(1, most // FEW) and limit < most]
        return [most, *few[-1:]]

    def at(self, limit: int) -> Method:
        """Return the method with that number of drafts, of which none is cut unless its configuration asks for it."""
        return Method(f"{self.label} k={limit}", {"cut_by_cost": False, **self.config, K: limit})


def find_candidates(
    methods: Sequence[Method] | None, most: int, target: TargetInfo, plugins: Mapping[str, Any]
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the candidates, and of installed methods that are none why not.

    A method that is given has to be one: with a number of drafts of its own it is tried up to that, else up to `most`.
    Raises ConfigError for one that cannot work, RequestError where there are none or a schedule is given.
    """
    registry = Registry(Catalog.discover().with_local(plugins))
    if methods is not None:
        return _distinct([_candidate(method, most, target, registry) for method in methods]), {}
    found: list[Candidate] = []
    left_out: dict[str, str] = {}
    for name in registry.catalog.names("proposer"):
        try:
            found.append(_candidate(Method(name, {"method": name}), most, target, registry))
        except SpecdecError as error:
            left_out[name] = str(error).splitlines()[0]
    if not found:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "none is installed"
        message = f"no installed method works with this model without further keys ({reasons}); give {OPTION}"
        raise RequestError(message)
    return found, left_out


def _candidate(method: Method, most: int, target: TargetInfo, registry: Registry) -> Candidate:
    if SCHEDULE in method.config:
        message = f"{OPTION}, {method.label!r}: {SCHEDULE} is what is looked for; leave it out"
        raise RequestError(message)
    try:
        own = resolve(method.config, target, registry)
    except ConfigError as error:
        if K in method.config:
            message = f"{OPTION}, {method.label!r}: {error}"
            raise ConfigError(message) from error
        own = resolve({**method.config, K: most}, target, registry)
    label = method.label if K not in method.config else str(own.method)
    if own.traits.shape == "tree":
        return Candidate(label, method.config, [own.num_speculative_tokens], tree=True)
    given = method.config.get(K)
    top = most if given is None else int(given)
    if own.traits.max_tokens is not None:
        top = min(top, own.traits.max_tokens)
    limits = sorted({*(limit for limit in TRIED if limit < top), top})
    valid = [limit for limit in limits if _works(method, limit, target, registry)]
    return Candidate(label, method.config, valid or [own.num_speculative_tokens], tree=False)


def _works(method: Method, limit: int, target: TargetInfo, registry: Registry) -> bool:
    try:
        resolved: ResolvedConfig = resolve({**method.config, K: limit}, target, registry)
    except ConfigError:
        return False
    return resolved.num_speculative_tokens == limit


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates with labels of their own: a number behind one that is taken."""
    found: list[Candidate] = []
    for candidate in candidates:
        number, label = 1, candidate.label
        while label in [other.label for other in found]:
            number += 1
            label = f"{candidate.label} #{number}"
        found.append(replace(candidate, label=label))
    return found
