"""Fake installed distributions: dist-info folders and modules in a temporary folder, with real entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog, Record
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_testing.commands import run_specdec

PROPOSERS = "specdec.proposers.v1"
VERIFIERS = "specdec.verifiers.v1"

PROPOSER = """
from specdec_core import hookimpl

@hookimpl
def specdec_make_proposer(ctx):
    return None
"""

VERIFIER = """
from specdec_core import hookimpl

@hookimpl
def specdec_make_verifier(method):
    return None
"""


class Site:
    """A folder that looks like site-packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def dist(
        self,
        name: str,
        entry_points: Mapping[str, Mapping[str, str]],
        modules: Mapping[str, str] | None = None,
        version: str = "1.0",
        requires: tuple[str, ...] = (),
    ) -> None:
        """Install a distribution: its metadata, and modules by path."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = [f"Requires-Dist: {text}" for text in requires]
        (info / "METADATA").write_text(
            "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""])
        )
        text = ""
        for group, points in entry_points.items():
            text += f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items()) + "\n"
        (info / "entry_points.txt").write_text(text)
        for path, source in (modules or {}).items():
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dedent(source))

    def proposer(self, name: str, source: str = PROPOSER, dist: str | None = None, **more: Any) -> None:
        """Install a distribution with one proposer, in a package of its own."""
        dist = dist or f"specdec-plugin-{name}"
        package = dist.replace("-", "_")
        modules = {f"{package}/__init__.py": "", f"{package}/plugin.py": source}
        self.dist(dist, {PROPOSERS: {name: f"{package}.plugin"}}, modules, **more)

    def verifiers(self, *names: str, source: str = VERIFIER) -> None:
        """Install a distribution with verifiers; its name hides that of the workspace in a fresh process."""
        modules = {"fake_verifiers.py": source}
        self.dist("specdec-plugin-verifiers", {VERIFIERS: {name: "fake_verifiers" for name in names}}, modules)

    def catalog(self) -> Catalog:
        """Discover what is in the folder, and only that."""
        return Catalog.discover([self.folder])

    def registry(self, **local: Any) -> Registry:
        """Return a registry over the folder."""
        return Registry(self.catalog().with_local(local))

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python in a fresh process that finds the folder."""
        env = {**os.environ, "PYTHONPATH": str(self.folder), **environment}
        return subprocess.run(
            [sys.executable, *command], env=env, capture_output=True, text=True, timeout=120, check=False
        )

    def specdec(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line in this process; processes that it starts find the folder as well."""
        return run_specdec(*arguments, PYTHONPATH=str(self.folder))

    def fresh_specdec(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command line in a fresh process."""
        return self.run("-m", "specdec_core", *arguments, **environment)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield Site(folder)
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def target() -> TargetInfo:
    return TargetInfo(model="t", hf_config={}, vocab_size=32, hidden_size=8, num_layers=2, max_model_len=64)


@pytest.fixture
def record() -> Any:
    def make(kind: Any, name: str, value: str, distribution: str = "dist-a", version: str = "1", **more: Any) -> Record:
        return Record(kind, name, value, distribution, version, **more)

    return make


METHOD = """
from pydantic import Field
from specdec_core import hookimpl
from specdec_core.config.speculative import MethodOptions, RequestOptions
from specdec_core.sources import Default, Problem
from specdec_core.traits import MethodTraits

class Options(MethodOptions):
    lookup_max: int = Field(default=5, ge=1, description="Longest lookup.")
    {more_fields}

class ForRequests(RequestOptions):
    namespace: str = Field(description="Whose cache.")

@hookimpl
def specdec_method_options(method):
    return Options

@hookimpl
def specdec_request_options(method):
    return ForRequests

@hookimpl
def specdec_method_traits(ctx):
    config, options, draft = ctx.config, ctx.options, ctx.draft
    return MethodTraits({traits})

@hookimpl
def specdec_method_defaults(ctx):
    return [{defaults}]

@hookimpl
def specdec_check(ctx):
    config, options, draft = ctx.config, ctx.options, ctx.draft
    return [{problems}]

@hookimpl
def specdec_make_proposer(ctx):
    return None

{more}
"""


@pytest.fixture
def method() -> Any:
    """The source of a method's plugin, with what a test puts into its hooks."""

    def source(traits: str = "", defaults: str = "", problems: str = "", more: str = "", more_fields: str = "") -> str:
        parts = {"traits": traits, "defaults": defaults, "problems": problems, "more": more, "more_fields": more_fields}
        return METHOD.format(**parts)

    return source


@pytest.fixture
def resolve_config(site: Site, target: TargetInfo) -> Any:
    """Resolve a configuration over the site, which gets the two usual verifiers."""
    site.verifiers("coupled", "standard")

    def run(config: Any, registry: Registry | None = None) -> ResolvedConfig:
        return resolve(config, target, registry or site.registry())

    return run


@pytest.fixture
def problems_of(resolve_config: Any) -> Any:
    """Resolve a configuration that must fail; return its problems by key."""

    def run(config: Any) -> dict[str, str]:
        with pytest.raises(ConfigError) as caught:
            resolve_config(config)
        return {problem.key: str(problem) for problem in caught.value.problems}

    return run
