"""What a test class of the kit is about: the method, its keys, and where its plugin comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Subject:
    """A method under test.

    method   its name
    options  its keys in the speculative configuration
    plugins  unpackaged plugins by name, as `LLM(plugins=...)` takes them; None for an installed one
    """

    method: str
    options: Mapping[str, Any]
    plugins: Mapping[str, Any] | None

    def speculative_config(self, k: int | None) -> dict[str, Any]:
        """Return the configuration for k drafts; with None, for as many as the method itself chooses."""
        return {"method": self.method, "num_speculative_tokens": k, **self.options}


class SubjectFixtures:
    """The fixtures that a plugin's tests define: `method` always, `options` and `plugins` if they are needed."""

    @pytest.fixture
    def method(self) -> str:
        """Return the method's name."""
        message = f"{type(self).__name__} must define a fixture `method` that returns the name of the method"
        raise NotImplementedError(message)

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        """Return the method's keys in the speculative configuration."""
        return {}

    @pytest.fixture
    def plugins(self) -> Mapping[str, Any] | None:
        """Return unpackaged plugins by name, None for an installed one."""
        return None

    @pytest.fixture
    def subject(self, method: str, options: Mapping[str, Any], plugins: Mapping[str, Any] | None) -> Subject:
        """Return the three together."""
        return Subject(method, options, plugins)
