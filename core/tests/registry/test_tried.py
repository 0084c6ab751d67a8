"""A release of another library newer than any that was tried is used, with one warning."""

from __future__ import annotations

import logging
from importlib.metadata import distributions, requires
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from specdec_core.registry import tried


def test_a_newer_minor_release_is_warned_of_once_and_a_newer_patch_not(monkeypatch: Any, caplog: Any) -> None:
    installed = {"transformers": "5.24.9", "torch": "99.1.0+cpu", "vllm": "not a version"}

    def version(name: str) -> str:
        if name not in installed:
            raise tried.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(tried, "version", version)
    monkeypatch.setattr(tried, "_warned", set())
    assert tried.newer_than_tried(("torch", "transformers", "vllm", "typer")) == {"torch": "99.1.0+cpu"}
    with caplog.at_level(logging.WARNING, "specdec"):
        for _ in range(3):
            tried.warn_if_newer("torch", "transformers", "vllm", "typer")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert "torch 99.1.0+cpu is newer" in messages[0] and tried.NEWEST["torch"] in messages[0]


def test_what_is_installed_for_the_tests_was_tried() -> None:
    assert tried.newer_than_tried(tuple(tried.NEWEST)) == {}


LOWER = {"transformers": "5.18", "typer": "0.16", "vllm": "0.32"}


@pytest.mark.parametrize("library", LOWER)
def test_metadata_allows_what_was_tried_from_the_oldest_to_the_newest(library: str) -> None:
    names = {name for d in distributions() if (name := d.metadata["Name"]).startswith("specdec-")}
    asked = [r for name in names for text in requires(name) or () if (r := Requirement(text)).name == library]
    assert asked
    for requirement in asked:
        assert {str(spec) for spec in requirement.specifier if spec.operator == ">="} == {f">={LOWER[library]}"}
        assert Version(tried.NEWEST[library]) in requirement.specifier
