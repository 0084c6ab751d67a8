"""The core knows no method: a name that a distribution offers as a proposer stands nowhere in its code."""

import ast
import re
from pathlib import Path

import specdec
from specdec.catalog import Catalog

ELSEWHERE = {
    "ngram", "ngram_gpu", "suffix", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "draft_model", "dflash",
    "dspark", "pard", "custom_class",
}  # fmt: skip


def literals(file):
    """Yield identifiers and texts of a file, docstrings left out: they may explain."""
    tree = ast.parse(file.read_text())
    docs = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id


def test_no_method_is_named_in_the_code_of_the_core():
    names = ELSEWHERE | set(Catalog.discover().names("proposer"))
    pattern = re.compile(rf"(?<![a-z])({'|'.join(sorted(map(re.escape, names)))})(?![a-z])", re.IGNORECASE)
    found = [
        f"{file.name}: {text!r}"
        for file in Path(specdec.__file__).parent.rglob("*.py")
        for text in literals(file)
        if pattern.search(text)
    ]
    assert not found
