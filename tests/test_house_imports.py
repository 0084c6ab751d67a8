"""The house rules on how modules hang together: import circles, names of other methods, long parameter lists."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from specdec_core.registry.catalog import Catalog


def _house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", Path(__file__).with_name("test_house.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOUSE = _house()
ROOT, PACKAGES = HOUSE.ROOT, HOUSE.PACKAGES
MOST_PARAMETERS = 8
# Ends in "/": a folder; "file.py:function" otherwise. Each with the reason why it may take more.
MAY_TAKE_MORE = {
    "nn/src/specdec_nn/ops/": "kernels, until descriptors take the place of their arguments",
    "nn/src/specdec_nn/hf/binding.py:_attention": "what transformers calls, with the arguments of an op",
    "nn/src/specdec_nn/hf/mixers.py:delta_rule": "transformers' signature",
    "nn/src/specdec_nn/hf/mixers.py:chunk_scan": "transformers' signature",
    "nn/src/specdec_nn/hf/mixers.py:selective_scan": "transformers' signature",
    "engine/src/specdec_engine/llm.py:__init__": "vLLM's signature",
    "engine/src/specdec_engine/vllm_api/calls.py:chat": "vLLM's signature",
    "engine/src/specdec_engine/cli.py:generate": "the options of a command, which typer reads from the signature",
    "engine/src/specdec_engine/bench/cli.py:bench": "the options of a command, which typer reads from the signature",
    "engine/src/specdec_engine/pair/cli.py:pair": "the options of a command, which typer reads from the signature",
    "engine/src/specdec_engine/verify/cli.py:verify": "the options of a command, which typer reads from the signature",
    "train/src/specdec_train/fit/cli.py:fit": "the options of a command, which typer reads from the signature",
    "engine/src/specdec_engine/tune/cli.py:tune": "the options of a command, which typer reads from the signature",
    "train/src/specdec_train/collect/cli.py:collect": "the options of a command, which typer reads from the signature",
    "train/src/specdec_train/evaluate/cli.py:evaluate": "the options of a command, which typer reads",
}
# Compiled code takes arrays and numbers, and no object that would hold them.
COMPILED = ("njit", "jit", "kernel", "compiled")
# Where a distribution names a method of another one, and why it may.
MAY_NAME = {
    "integrations/vllm/src/specdec_vllm/suffix.py": "stands in for vLLM's own method of that name",
    "integrations/vllm/src/specdec_vllm/plugin.py": "names the module above",
    "plugins/draft-model/src/specdec_plugin_draft_model/detection.py": "what model types of heads are called",
    "plugins/dflash/src/specdec_plugin_dflash/refusing.py": "an error that names the method to use instead",
    "plugins/mtp/src/specdec_plugin_mtp/families.py": "an error that names the method to use instead",
}


def modules(packages: Mapping[str, Path]) -> dict[str, Path]:
    """Return every module by its dotted name."""
    found = {}
    for folder in packages.values():
        for file in HOUSE.sources(folder):
            parts = file.relative_to(folder.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(tree: ast.AST, known: Mapping[str, object]) -> set[str]:
    """Return the modules of ours that a source imports, wherever: in functions and for annotations as well."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(submodules & set(known))
            if submodules - set(known):
                found.add(node.module)
    return found & set(known)


def circles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """Return the groups of modules that import each other, directly or by way of others."""
    below: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo.extend(graph[name])
        below[start] = seen
    groups = {
        frozenset(other for other in below[name] if name in below[other]) for name in graph if name in below[name]
    }
    return sorted(groups, key=sorted)


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules(PACKAGES)
    graph = {
        name: imported(ast.parse(file.read_text(encoding="utf-8")), known) - {name} for name, file in known.items()
    }
    assert [sorted(circle) for circle in circles(graph)] == []


@pytest.mark.parametrize(
    "code",
    [
        "from p import b",
        "import p.b",
        "from p.b import x",
        "def f():\n    from p.b import x",
        "if TYPE_CHECKING:\n    from p.b import X",
    ],
)
def test_this_check_sees_a_circle_however_it_is_closed(code: str) -> None:
    known = {"p": None, "p.a": None, "p.b": None, "p.c": None}
    graph = {
        "p": set(),
        "p.a": imported(ast.parse(code), known),
        "p.b": imported(ast.parse("from p import c"), known),
        "p.c": imported(ast.parse("from p.a import x"), known),
    }
    assert circles(graph) == [frozenset({"p.a", "p.b", "p.c"})]
    assert circles({**graph, "p.c": set()}) == []


def owners() -> dict[str, str]:
    """Return the import package that offers each method."""
    records = [record for record in Catalog.discover().records if record.kind == "proposer"]
    return {record.name: record.value.partition(":")[0].partition(".")[0] for record in records}


@pytest.mark.parametrize("package", [*HOUSE.PLUGINS, *HOUSE.INTEGRATIONS])
def test_a_distribution_names_no_method_but_its_own(package: str) -> None:
    """Integrations branch on none at all; core, nn, kit and engine are held by `test_house.py`."""
    own = owners()
    others = tuple(name for name, owner in own.items() if owner != package)
    found = []
    for file in HOUSE.sources(PACKAGES[package]):
        if str(file.relative_to(ROOT)) in MAY_NAME:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        problems = [p for p in HOUSE.names_of_methods(tree, others) if " " not in p.partition(": ")[2]]
        if package in HOUSE.INTEGRATIONS:
            problems = HOUSE.names_of_methods(tree, others) + HOUSE.branches_on_method(tree)
        found += [f"{file.relative_to(ROOT)}, {problem}" for problem in problems]
    assert not found, "\n".join(found)


def too_long(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield functions with too many parameters, `self` left out, and how many; compiled ones are left out."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if any(word in ast.unparse(mark) for mark in node.decorator_list for word in COMPILED):
            continue
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        count = len(names) - (names[:1] in (["self"], ["cls"]))
        if count > MOST_PARAMETERS:
            yield node.name, count


def test_no_function_takes_more_than_eight_parameters() -> None:
    found, used = [], set()
    for folder in PACKAGES.values():
        for file in HOUSE.sources(folder):
            path = str(file.relative_to(ROOT))
            for name, count in too_long(ast.parse(file.read_text(encoding="utf-8"))):
                excuses = {e for e in MAY_TAKE_MORE if f"{path}:{name}" == e or (e[-1] == "/" and path.startswith(e))}
                used |= excuses
                if not excuses:
                    found.append(f"{path}: {name} takes {count}")
    assert not found, "\n".join(found)
    assert used == set(MAY_TAKE_MORE), "an excuse that nobody needs is taken back"


def test_this_check_counts_parameters_of_functions_and_leaves_data_and_compiled_code_alone() -> None:
    eight, nine = ", ".join("abcdefgh"), ", ".join("abcdefghi")
    code = f"def f({nine}): pass\nasync def g(a, *, {nine[3:]}, j): pass"
    assert [*too_long(ast.parse(code))] == [("f", 9), ("g", 10)]
    fields = "\n    ".join(f"{name}: int" for name in "abcdefghij")
    assert not [*too_long(ast.parse(f"@dataclass\nclass A:\n    {fields}\n    def f(self, {eight}): pass"))]
    assert not [*too_long(ast.parse(f"@njit(cache=True)\ndef f({nine}): pass"))]
