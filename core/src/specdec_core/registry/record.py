"""One thing that a distribution offers, as its metadata describe it; imports no plugin and raises nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from specdec_core.registry.groups import Kind

Status = Literal["ok", "needs newer core", "needs newer plugin", "core mismatch", "conflict", "invalid"]


@dataclass(frozen=True)
class Record:
    """One thing that a distribution offers.

    kind          what it is: proposer, verifier, draft, kernel, alias, extension or command
    name          its name: what configurations say
    value         where it is: `module:attribute`, the package of a draft's files, or a path or an object's type for an
                  unpackaged plugin
    distribution  who offers it; "(local)" for an unpackaged plugin
    version       the distribution's version; "-" for an unpackaged plugin
    status        "ok", or why it cannot be used as it is: "needs newer core" (made for a later hook API),
                  "needs newer plugin" (made for an earlier one that this core does not speak any more), "core
                  mismatch" (its requirement on specdec-core does not hold), "conflict" (another distribution claims
                  the same name), "invalid" (its metadata cannot be used)
    reason        a sentence about any status but "ok"
    local         the module, object or path of an unpackaged plugin, None for an installed one
    """

    kind: Kind
    name: str
    value: str
    distribution: str
    version: str
    status: Status = "ok"
    reason: str = ""
    local: Any = field(default=None, repr=False, compare=False)

    def as_json(self) -> dict[str, str]:
        """Return plain data: name, kind, distribution, version, status and value, and the reason if not ok."""
        data = {key: getattr(self, key) for key in ("name", "kind", "distribution", "version", "status", "value")}
        return {**data, "reason": self.reason} if self.status != "ok" else data
