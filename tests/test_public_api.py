"""The public API is the recorded one: a change shows name by name, and is recorded by `make api` when it is meant."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from public_api import PUBLIC, ROOT, _members, difference, modules, read, record

HOOKS = "specdec_core.hookspecs."
SOURCE = """
from dataclasses import dataclass
from other import Name as Name

LIMIT: Final = 4
_hidden = 1

@dataclass(frozen=True)
class Draft(Base):
    tokens: list[int]
    distribution: str = "soft"

    def keep(self, mask: Mask, *, strict: bool = False) -> Draft: ...
    def _own(self): ...

class Options(BaseModel):
    k: int = Field(3, ge=1, description="how many")

def make(k: int) -> Draft: ...
"""
LINES = [
    "Name from other",
    "LIMIT: Final = 4",
    "Draft: dataclass(frozen=True)(Base)",
    "Draft.tokens: list[int]",
    "Draft.distribution: str = 'soft'",
    "Draft.keep: (self, mask: Mask, *, strict: bool=False) -> Draft",
    "Options: class(BaseModel)",
    "Options.k: int = Field(3, ge=1)",
    "make: (k: int) -> Draft",
]


@pytest.mark.parametrize("distribution", PUBLIC)
def test_the_public_api_is_the_recorded_one(distribution: str) -> None:
    found = difference(read(distribution), record(distribution))
    breaking = [line for line in found if line.startswith(("removed", "changed")) and HOOKS in line]
    advice = "run `make api` and hand the record in with the change"
    if breaking:
        advice += "; a hook that loses or changes something is a new major of the hook API (API_MAJOR)"
    assert not found, "\n".join([f"the public API of {distribution} is not the recorded one: {advice}", *found])


def test_a_record_has_names_signatures_and_fields() -> None:
    assert list(_members(ast.parse(SOURCE).body, top=True)) == LINES


def test_a_difference_tells_what_is_gone_changed_and_new() -> None:
    after = [line.replace("k: int)", "k: int, n: int)") for line in LINES if not line.startswith("Draft.distribution")]
    assert difference(LINES, [*after, "more: ()"]) == [
        "removed  Draft.distribution: str = 'soft'",
        "changed  make: (k: int) -> Draft\n     to  make: (k: int, n: int) -> Draft",
        "added    more: ()",
    ]
    assert difference(LINES, LINES) == []


def test_methods_import_nothing_that_is_not_public() -> None:
    known = {name for distribution in ("core", "nn") for name, _ in modules(distribution)}
    found = set()
    for file in (ROOT / "plugins").glob("*/src/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("specdec_core", "specdec_nn")):
                names = {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
                if not names & known:
                    found.add(f"{file.relative_to(ROOT)}: {node.module}")
    assert not found, "\n".join(sorted(found))
