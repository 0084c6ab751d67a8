"""What the kit has for comparing drafts, with the tiny target of these tests filled in."""

from __future__ import annotations

from typing import Any

from hydra_checkpoints import INFO, TARGET

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.sources import TargetInfo
from specdec_testing import watching
from specdec_testing.fakes import FakeTarget
from specdec_testing.watching import Row, Watch, assert_all_are, evidence

__all__ = ["Row", "Watch", "assert_all_are", "built", "evidence", "settled"]


def settled(model: str | None, info: TargetInfo = INFO, **keys: Any) -> ResolvedConfig:
    """Resolve a configuration for the tiny target."""
    return watching.settled(model, info, **keys)


def built(model: str, **keys: Any) -> tuple[Any, ResolvedConfig, FakeTarget]:
    """Resolve and build; return the proposer, its configuration and the target."""
    handle = FakeTarget(TARGET)
    return (*watching.built(model, handle, **keys), handle)
