"""What is installed, as records found by kind and name; read from metadata, so that no plugin is imported."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from types import ModuleType
from typing import Any, Final, get_args

import specdec_core
from specdec_core.errors import (
    ConflictError,
    DeprecatedNameWarning,
    MetadataStageError,
    PluginError,
    SpecdecWarning,
    UnknownNameError,
    VersionStageError,
)
from specdec_core.registry.groups import Kind
from specdec_core.registry.installed import Claim, normalize, read_claims
from specdec_core.registry.majors import major_problem, negotiate, next_step
from specdec_core.registry.record import Record as Record
from specdec_core.registry.record import Status as Status

LOCAL_DISTRIBUTION: Final = "(local)"
LOCAL_VERSION: Final = "-"
LOCAL_KINDS: Final[tuple[Kind, ...]] = ("proposer", "verifier", "extension")

_VALUE = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*)\s*(?::\s*(?P<attr>\w+(?:\.\w+)*))?\s*(?:\[.*\])?\s*\Z")


def parse_value(value: str) -> tuple[str, str] | None:
    """Split an entry point's value into module and attribute ("" for the module itself); None if it does not parse."""
    match = _VALUE.match(value)
    return (match["module"], match["attr"] or "") if match else None


class Catalog:
    """Records of what is installed, and unpackaged plugins beside them. Immutable, and picklable without modules."""

    def __init__(self, records: Iterable[Record] = (), local: Mapping[str, Any] | None = None) -> None:
        """Hold records as they are; `Catalog.discover` and `Catalog.of` make them consistent first."""
        self.records: Final = tuple(records)
        self._local: Final = dict(local or {})
        self._warned: set[str] = set()

    @classmethod
    def discover(cls, path: Sequence[str | PathLike[str]] | None = None, core_version: str | None = None) -> Catalog:
        """Read the distributions on `path` (default: `sys.path`), in a few milliseconds and without importing any."""
        claims = negotiate(read_claims(path, core_version or specdec_core.__version__))
        return cls.of(_record(claim) for claim in claims)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Catalog:
        """Hold these records, marking conflicts and dropping doubles; their order never matters."""
        return cls(_resolve_conflicts(sorted(records, key=_order)))

    def with_local(self, plugins: Mapping[str, Any] | None) -> Catalog:
        """Return a catalog that also knows unpackaged plugins: names to modules, objects or paths (`./mine.py`).

        Such a name is found for every kind of plugin; loading checks that the object really is of that kind. It wins
        over an installed plugin of the same name, with one warning.
        """
        return Catalog(self.records, {**self._local, **(plugins or {})})

    def of_kind(self, kind: Kind) -> tuple[Record, ...]:
        """Return the records of a kind, unpackaged plugins first, whatever their status."""
        local = tuple(self._local_record(kind, name) for name in self._local) if kind in LOCAL_KINDS else ()
        return local + tuple(record for record in self.records if record.kind == kind)

    def names(self, kind: Kind) -> tuple[str, ...]:
        """Return the names of a kind that can be used, sorted."""
        return tuple(sorted({record.name for record in self.of_kind(kind) if record.status in ("ok", "conflict")}))

    def knows(self, kind: Kind, name: str) -> bool:
        """Return whether something of that kind has the name, or had it; an alias is of its target's kind."""
        names = {record.name for record in self.of_kind(kind)}
        old = {_alias_target(record.value) for record in self.of_kind("alias") if record.name == name}
        return name in names or bool(names & old)

    def find(self, kind: Kind, name: str) -> Record:
        """Return the usable record of that kind and name; `distribution:name` resolves a conflict.

        An old name leads to its new one, with one warning. Raises UnknownNameError (which lists what is installed),
        ConflictError, or the PluginError of the stage at which the record is known to fail.
        """
        distribution, _, bare = name.rpartition(":")
        if bare in self._local and kind in LOCAL_KINDS and distribution in ("", LOCAL_DISTRIBUTION):
            return self._find_local(kind, bare)
        found = [r for r in self.records if (r.kind, r.name) == (kind, bare) and _offered_by(r, distribution)]
        if found:
            return _choose(found, named=bool(distribution))
        new = self._new_name(bare, distribution)
        if new is None or new == bare:
            raise self._unknown(kind, name)
        record = self.find(kind, f"{distribution}:{new}" if distribution else new)
        self._warn_once(f"{kind} name {bare!r} is deprecated; use {new!r}", DeprecatedNameWarning)
        return record

    def _local_record(self, kind: Kind, name: str) -> Record:
        plugin = self._local[name]
        value = str(plugin) if isinstance(plugin, str | PathLike) else _describe(plugin)
        return Record(kind, name, value, LOCAL_DISTRIBUTION, LOCAL_VERSION, local=plugin)

    def _find_local(self, kind: Kind, name: str) -> Record:
        for other in self.records:
            if (other.kind, other.name) == (kind, name):
                offered = f"{other.distribution} {other.version}"
                self._warn_once(f"the unpackaged {kind} {name!r} is used instead of that of {offered}", SpecdecWarning)
        return self._local_record(kind, name)

    def _new_name(self, old: str, distribution: str) -> str | None:
        aliases = [r for r in self.records if (r.kind, r.name) == ("alias", old) and _offered_by(r, distribution)]
        return _alias_target(_choose(aliases, named=bool(distribution)).value) if aliases else None

    def _warn_once(self, message: str, category: type[Warning]) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, category, stacklevel=4)

    def _unknown(self, kind: Kind, name: str) -> UnknownNameError:
        from specdec_core.registry.homes import homes, nearest_name

        bare = name.rpartition(":")[2]
        offered = [record for record in self.of_kind(kind) if record.status in ("ok", "conflict")]
        installed = self.names(kind)
        published = homes(kind)
        aliases = [record.name for record in self.of_kind("alias")]
        meant = bare if bare in published else nearest_name(bare, (*installed, *published, *aliases))
        hint = f"; did you mean {meant!r}?" if meant is not None and meant != bare else ""
        listed = ", ".join(sorted({f"{r.name} ({r.distribution} {r.version})" for r in offered})) or "none"
        other = next((r.kind for r in self.records if r.name == bare and r.kind not in (kind, "alias")), None)
        elsewhere = f" There is a {other} of that name." if other else ""
        home = None if meant is None or self.knows(kind, meant) else published.get(meant)
        here = next((r.version for r in self.records if home and normalize(r.distribution) == home), None)
        advice = "" if home is None else f" The distribution {home} has {meant!r}: pip install {home}"
        if here is not None:
            advice = (
                f" The installed {home} {here} does not have {meant!r}; a later one may: pip install --upgrade {home}"
            )
        message = f"no {kind} named {name!r} is installed{hint or '.'} Installed {kind}s: {listed}.{elsewhere}{advice}"
        return UnknownNameError(message, kind, name, installed)


def _order(record: Record) -> tuple[int, str, str, str, str]:
    kinds: tuple[str, ...] = get_args(Kind)
    return kinds.index(record.kind), record.name, normalize(record.distribution), record.value, record.status


def _offered_by(record: Record, distribution: str) -> bool:
    return not distribution or normalize(record.distribution) == normalize(distribution)


def _describe(plugin: Any) -> str:
    return f"module {plugin.__name__}" if isinstance(plugin, ModuleType) else f"object {type(plugin).__qualname__}"


def _alias_target(value: str) -> str | None:
    parsed = parse_value(value)
    return parsed[1].rpartition(".")[2] or None if parsed else None


def _record(claim: Claim) -> Record:
    status, reason = _status(claim)
    return Record(claim.kind, claim.name, claim.value, claim.distribution, claim.version, status, reason)


def _status(claim: Claim) -> tuple[Status, str]:
    if claim.trouble:
        return "invalid", claim.trouble
    problem = major_problem(claim)
    if problem is not None:
        return problem
    if claim.mismatch:
        return "core mismatch", claim.mismatch
    if parse_value(claim.value) is None or (claim.kind == "alias" and _alias_target(claim.value) is None):
        return "invalid", f"its value {claim.value!r} is no 'module:attribute'"
    if claim.kind == "draft" and ":" in claim.value:
        return "invalid", f"its value {claim.value!r} names an attribute, expected the package that holds its files"
    return "ok", ""


def _resolve_conflicts(records: Sequence[Record]) -> Iterator[Record]:
    """Drop doubles and mark conflicts among records that are in order."""
    claims: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        if record.status in ("ok", "conflict"):
            claims.setdefault((record.kind, record.name), {}).setdefault(_meaning(record), record)
    for record in records:
        same = claims.get((record.kind, record.name), {})
        if record.status not in ("ok", "conflict"):
            yield record
        elif same[_meaning(record)] is not record:
            continue
        elif len(same) == 1:
            yield replace(record, status="ok", reason="")
        else:
            rivals = ", ".join(f"{r.distribution} {r.version}" for r in same.values() if r is not record)
            reason = f"{rivals} claims the same name"
            yield replace(record, status="conflict", reason=reason)


def _meaning(record: Record) -> str:
    """Return what two claims of one name must share to be one thing."""
    return _alias_target(record.value) or record.value if record.kind == "alias" else record.value


def _choose(found: Sequence[Record], *, named: bool) -> Record:
    """Return the one usable record among those of one name."""
    usable = [record for record in found if record.status in ("ok", "conflict")]
    if not usable:
        raise _refusal(found[0])
    if len(usable) == 1 and (named or usable[0].status == "ok"):
        return replace(usable[0], status="ok", reason="")
    kind, name = usable[0].kind, usable[0].name
    both = " and ".join(f"{r.distribution} {r.version} ({r.value})" for r in usable)
    choices = " or ".join(repr(f"{r.distribution}:{name}") for r in usable)
    raise ConflictError(f"{kind} {name!r} is claimed by {both}; use {choices}, or uninstall one", usable)


def _refusal(record: Record) -> PluginError:
    if record.status == "invalid":
        return MetadataStageError(record, record.reason, "Reinstall the distribution, or tell its authors.")
    return VersionStageError(record, record.reason, next_step(record))
