"""The documentation site: every page is on it, nothing comes from the network, what is generated is current."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from specdec_core import hookspecs

sys.path.insert(0, str(Path(__file__).parent))
from doc_pages import fences, headings

ROOT = Path(__file__).parent.parent
DOCS, TOOLS = ROOT / "docs", ROOT / "docs" / "tools"
HOOKS = [name for name in dir(hookspecs) if hasattr(getattr(hookspecs, name), "specdec_spec")]


class Config(yaml.SafeLoader):
    """Reads mkdocs.yml; functions that it names stay names."""


Config.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def tool(name: str) -> dict[str, Any]:
    return runpy.run_path(str(TOOLS / f"{name}.py"))


def pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for each in (nav.values() if isinstance(nav, dict) else nav) for page in pages(each)]


def test_every_page_is_in_the_navigation_once() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Config)
    outside = set(tool("site")["OUTSIDE"].values())
    assert sorted(pages(config["nav"])) == sorted([page.name for page in DOCS.glob("*.md")] + list(outside))


def test_the_page_of_methods_is_that_of_the_installed_plugins() -> None:
    made = tool("methods")
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](), "run `python docs/tools/methods.py`"


def test_the_picture_is_drawn_from_its_source_and_has_every_hook_once() -> None:
    made = tool("picture")
    text = made["SOURCE"].read_text(encoding="utf-8")
    assert made["PICTURE"].read_text(encoding="utf-8") == made["draw"](text), "run `python docs/tools/picture.py`"
    assert sorted(re.findall(r"specdec_\w+", text)) == sorted(HOOKS)


def test_every_hook_has_a_recipe_in_its_section() -> None:
    page = DOCS / "hooks.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    places = {heading: lines.index(f"### {heading}") for heading in headings(page) if heading.startswith("specdec_")}
    found = {}
    for fence in fences(page):
        above = [heading for heading, place in places.items() if place < fence.line]
        for hook in re.findall(r"^def (specdec_\w+)", fence.text, re.MULTILINE) if above and not fence.file else ():
            found[hook] = max(above, key=lambda heading: places[heading]).partition("(")[0]
    assert found == {hook: hook for hook in HOOKS}


def test_hooks_are_called_in_the_order_of_the_picture() -> None:
    """Those that fire in one process, with a plugin that has them all; a step's calls are among them."""
    from words import tiny_tokenizer

    from specdec_engine import LLM, SamplingParams
    from specdec_testing.targets import tiny_target

    namespace: dict[str, Any] = {"__name__": "page"}
    for fence in fences(DOCS / "hooks.md"):
        if fence.language == "python" and not fence.file and "LLM(" not in fence.text:
            exec(compile(fence.text, "hooks.md", "exec", dont_inherit=True), namespace)
    calls: list[str] = []
    plugin = Recording(namespace, calls)
    tokenizer = tiny_tokenizer()
    keys = {"method": "repeat", "rejection_sample_method": "repeat", "controller": "repeat", "observers": ["repeat"]}
    params = SamplingParams(temperature=0.0, max_tokens=8, extra_args={"specdec": {"quiet": False}})
    model = tiny_target("llama", vocab_size=len(tokenizer))
    with LLM(hf_model=model, tokenizer=tokenizer, speculative_config=keys, plugins={"repeat": plugin}) as llm:
        llm.generate("the cat sat on the cat", params)
    decoding = calls.index("Verifier.verify")  # the prompt's pass is a step before it, without drafts
    first = list(dict.fromkeys([*(c for c in calls[:decoding] if c != "specdec_step_finished"), *calls[decoding:]]))
    shown = [box.partition(":")[0] for _, boxes in tool("picture")["groups"](SOURCE.read_text()) for box in boxes]
    assert first == [name for name in shown if name in first]
    never = {"the target's forward", "specdec_load_target_as", "specdec_swap_target", "specdec_detect_method"}
    never |= {"specdec_override_hf_config", "specdec_expected_failures", "specdec_make_trainer"}
    assert set(shown) - set(first) == never


SOURCE = DOCS / "hook-order.mmd"


class Recording:
    """The plugin of the recipes, which notes what is called of it, and of what it builds."""

    def __init__(self, namespace: dict[str, Any], calls: list[str]) -> None:
        from specdec_core import hookimpl

        self._calls = calls
        for name in HOOKS:
            setattr(self, name, hookimpl(self._noting(name, namespace[name])))

    def _noting(self, name: str, function: Any) -> Any:
        import functools

        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._calls.append(name)
            made = function(*args, **kwargs)
            if name in ("specdec_make_proposer", "specdec_make_verifier"):
                self._watch(made, name)
            return made

        return noted

    def _watch(self, made: Any, name: str) -> None:
        calls = {"specdec_make_proposer": ("start", "propose", "finish", "close"), "specdec_make_verifier": ("verify",)}
        owner = "Proposer" if name == "specdec_make_proposer" else "Verifier"
        for call in calls[name]:
            setattr(made, call, self._noting(f"{owner}.{call}", getattr(made, call)))


def test_links_of_a_page_lead_to_pages_of_the_site_or_become_text() -> None:
    relink, known = tool("site")["relink"], {"index.md", "hooks.md", "repository/changelog.md", "repository/readme.md"}
    assert relink("[a](../CHANGELOG.md#x)", "docs/index.md", known) == "[a](repository/changelog.md#x)"
    assert relink("[a](docs/hooks.md)", "README.md", known) == "[a](../hooks.md)"
    assert relink("[a](hooks.md) [b](../LICENSE)", "docs/index.md", known) == "[a](hooks.md) b"
    assert relink("[a](https://a.b/c.md) ![p](p.svg)", "docs/index.md", known) == "[a](https://a.b/c.md) ![p](p.svg)"


@pytest.mark.parametrize(
    ("file", "text", "count"),
    [
        ("a.html", '<script src="https://a.b/c.js"></script><link href="//a.b/c.css" rel="stylesheet">', 2),
        ("a.html", '<a href="https://a.b">a</a><link rel="stylesheet" href="own.css"><img src="own.svg">', 0),
        ("a.css", '@import "https://a.b/c.css"; a { background: url(//a.b/p.png) }', 2),
        ("a.css", "a { background: url(data:image/svg+xml;x) }", 0),
    ],
)
def test_what_a_site_would_load_from_the_network_is_found(tmp_path: Path, file: str, text: str, count: int) -> None:
    (tmp_path / file).write_text(text)
    assert len(tool("offline")["loaded"](tmp_path)) == count
