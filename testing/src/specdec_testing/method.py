"""All that a method promises, in one test class: what its author subclasses. Needs the reference engine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from specdec_testing.contract import ProposerContract
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import IdentityChecks


class MethodContract(ProposerContract, IdentityChecks, promises=True):
    """The promises of a method: its package, its configuration, its drafts, and that the text stays what it was.

    A subclass gives two fixtures, `method` and `options`. For an unpackaged plugin it also gives `plugins`; for a
    method that needs a certain target it overrides `model_of`.
    """

    @pytest.fixture
    def options(self) -> Mapping[str, object]:
        """Return the method's keys in the speculative configuration."""
        message = f"{type(self).__name__} must define a fixture `options` that returns the method's keys, {{}} for none"
        raise NotImplementedError(message)

    @pytest.fixture
    def target(self) -> FakeTarget:
        """Return the target that drafts are made for without an engine: the first of `families`."""
        return FakeTarget(self.model_of(self.families[0]))
