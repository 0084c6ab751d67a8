"""The page about scripts for vLLM names every argument and every method of vLLM's `LLM`, and no other."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from vllm import LLM, EngineArgs

PAGE = Path(__file__).parents[3] / "docs" / "vllm-scripts.md"


def named(heading: str) -> set[str]:
    _, _, section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")
    return set(re.findall(r"^\| `(\w+)` \|", section.partition("\n## ")[0], re.MULTILINE))


def test_every_argument_is_described():
    arguments = {field.name for field in dataclasses.fields(EngineArgs)}
    parameters = inspect.signature(LLM.__init__).parameters.values()
    arguments |= {p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD}
    assert named("Arguments of LLM") == arguments


def test_every_method_is_described():
    assert named("Methods of LLM") == {name for name in dir(LLM) if not name.startswith("_")}


def test_every_argument_of_a_call_is_described():
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## Arguments of generate and chat\n")
    honoured = set(re.findall(r"`(\w+)`", section.partition("The others:")[0]))
    arguments = {name for call in (LLM.generate, LLM.chat) for name in inspect.signature(call).parameters}
    assert honoured | named("Arguments of generate and chat") == arguments - {"self"}
