"""The core knows no method: a name that a distribution offers as a proposer stands nowhere in its code."""

import ast
import re
from pathlib import Path

import specdec_core
from specdec_core.config.foreign_keys import FOREIGN
from specdec_core.config.key_table import KEYS
from specdec_core.registry.catalog import Catalog

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


# Keys of vLLM and other engines have names of methods in them; as keys, they are data that the core must know.
KEY = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join((*KEYS, *FOREIGN))})(?![A-Za-z0-9_])")


def methods_in(texts, names):
    pattern = re.compile(rf"(?<![a-z])({'|'.join(sorted(map(re.escape, names)))})(?![a-z])", re.IGNORECASE)
    return [text for text in texts if pattern.search(KEY.sub("", text))]


def test_no_method_is_named_in_the_code_of_the_core():
    names = ELSEWHERE | set(Catalog.discover().names("proposer"))
    found = {file.name: methods_in(literals(file), names) for file in Path(specdec_core.__file__).parent.rglob("*.py")}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_a_method_beside_a_key_or_inside_another_word_is_still_seen():
    texts = ["dspark_draft_topk", "dspark_draft_topk of dspark", "my_eagle", "eagles", "disable_eagle_block_drops"]
    assert methods_in(texts, ELSEWHERE) == [texts[1], texts[2], texts[4]]
