"""From a method's name to its plugin, traits and proposer, through the core's own loader, with no engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig, SpeculativeConfig
from specdec_core.host.factory import make_proposer
from specdec_core.protocols import Proposer
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetHandle, TargetInfo
from specdec_testing.subject import Subject


@dataclass(frozen=True)
class Built:
    """A configured method: its resolved configuration, and the registry that makes its proposers."""

    registry: Registry
    resolved: ResolvedConfig

    def proposer(self, target: TargetHandle) -> Proposer:
        """Make a new proposer."""
        return make_proposer(self.resolved, target, self.registry, strict=True)


def build(subject: Subject, info: TargetInfo, k: int | None = 4) -> Built:
    """Load and resolve a method for a target; with k None, the method's own default holds."""
    registry = registry_of(subject.plugins)
    resolved = resolve(SpeculativeConfig.parse(subject.speculative_config(k)), info, registry)
    return Built(registry, resolved)


def registry_of(plugins: Mapping[str, Any] | None = None) -> Registry:
    """Return a strict registry of what is installed and of unpackaged plugins."""
    return Registry(Catalog.discover().with_local(plugins or {}), strict=True)
