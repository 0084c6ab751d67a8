"""The house rules that no single distribution can promise: what sources may import and name, and how long they are."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdec_core.registry.catalog import Catalog
from specdec_core.traits import MethodTraits

ROOT = Path(__file__).resolve().parents[1]
CORE, NN = ROOT / "core/src/specdec_core", ROOT / "nn/src/specdec_nn"
TESTING, ENGINE = ROOT / "testing/src/specdec_testing", ROOT / "engine/src/specdec_engine"
TRAIN = ROOT / "train/src/specdec_train"
PLUGINS = {folder.name: folder for folder in sorted(ROOT.glob("plugins/*/src/specdec_plugin_*"))}
DRAFTS = {folder.name: folder for folder in sorted(ROOT.glob("drafts/*/src/specdec_draft_*"))}
INTEGRATIONS = {folder.name: folder for folder in sorted(ROOT.glob("integrations/*/src/specdec_*"))}
PACKAGES = {
    "specdec_core": CORE,
    "specdec_nn": NN,
    "specdec_testing": TESTING,
    "specdec_engine": ENGINE,
    "specdec_train": TRAIN,
    **PLUGINS,
    **DRAFTS,
    **INTEGRATIONS,
}
# The one place that may look for an engine from below: the kit's, when a test asks for one.
FINDS_ENGINE = (TESTING / "identity.py", "engine")
LONGEST = 400


def sources(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.py"))
    assert files, folder
    return files


def strings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield string constants that are no docstrings: texts may explain, code may not name."""
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node


def installed_methods() -> tuple[str, ...]:
    """Names of methods, but for one that is also what a trait is called."""
    names = Catalog.discover().names("proposer")
    assert {"ngram", "ngram_gpu"} <= set(names)
    traits = {field.name for field in dataclasses.fields(MethodTraits)}
    return tuple(name for name in names if name not in traits)


def names_of_methods(tree: ast.AST, names: tuple[str, ...]) -> list[str]:
    pattern = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(map(re.escape, names))})(?![A-Za-z0-9_])")
    return [f"line {node.lineno}: {node.value!r}" for node in strings(tree) if pattern.search(node.value)]


def branches_on_method(tree: ast.AST) -> list[str]:
    """Comparisons, memberships, matches and look-ups of something called `method` with a text."""
    found = []
    for node in ast.walk(tree):
        sides: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject, *node.cases]
        elif isinstance(node, ast.Subscript):
            sides = [node.value, node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asked = node.func.value  # method.startswith("x"), or {"x": ...}.get(method)
            sides = [asked, *node.args] if _is_method(asked) or isinstance(asked, ast.Dict) else []
        if any(_is_method(side) for side in sides) and any(_has_text(side) for side in sides if not _is_method(side)):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")  # type: ignore[attr-defined]
    return found


def _is_method(node: ast.AST) -> bool:
    return getattr(node, "id", getattr(node, "attr", None)) in ("method", "_method", "method_name")


def _has_text(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(node))


@pytest.mark.parametrize("package", [CORE, NN, TESTING, ENGINE, TRAIN], ids=lambda folder: folder.name)
def test_core_and_engine_name_no_method_and_never_branch_on_one(package: Path) -> None:
    """A host asks what a method can do, never what it is called."""
    names = installed_methods()
    found = []
    for file in sources(package):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        problems = names_of_methods(tree, names) + branches_on_method(tree)
        found += [f"{file.relative_to(ROOT)}, {problem}" for problem in problems]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "if method == 'x': pass",
        "if config.method in ('x', 'y'): pass",
        "if 'x' != self._method: pass",
        "build = {'x': 1}[method]",
        "build = {'x': 1}.get(config.method)",
        "eagle = method.startswith('x')",
        "match method:\n    case 'x': pass",
    ],
)
def test_these_checks_see_a_branch_on_a_method(code: str) -> None:
    assert branches_on_method(ast.parse(code))


def test_these_checks_see_a_methods_name_and_leave_explanations_alone() -> None:
    assert names_of_methods(ast.parse("known = ('suffix', 'ngram')"), ("ngram",))
    assert names_of_methods(ast.parse("text = 'use [ngram] here'"), ("ngram",))
    assert not names_of_methods(ast.parse("'''ngram explained'''\nngrams = 'ngrams'"), ("ngram",))
    assert not branches_on_method(ast.parse("if method == name: pass\nif kind == 'method': pass"))


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield every module named by an import statement or by `import_module("...")`, with its node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield node.module or "", node
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value), node


def at_import_time(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield imports that run when the module is imported: outside of functions and of `if TYPE_CHECKING`."""
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo.extend(node.orelse)
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from imports(node)
        todo.extend(ast.iter_child_nodes(node))


def top(module: str) -> str:
    return module.partition(".")[0]


def allowed(package: str) -> set[str]:
    """Imports go down: core, then nn, then everything else; training runs the engine."""
    below = {"specdec_core": set(), "specdec_nn": {"specdec_core"}}
    below["specdec_train"] = {"specdec_core", "specdec_nn", "specdec_engine"}
    return {package} | below.get(package, {"specdec_core", "specdec_nn"})


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    """Plugins, the kit, the engine and integrations import core and nn and nobody else; nn imports core only.

    Training imports the engine besides.
    """
    found = []
    for file in sources(PACKAGES[package]):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        excused = set()
        if file == FINDS_ENGINE[0]:
            functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == FINDS_ENGINE[1]]
            assert len(functions) == 1
            excused = {id(node) for node in ast.walk(functions[0])}
        for module, node in imports(tree):
            ours = top(module).startswith("specdec")
            if ours and top(module) not in allowed(package) and id(node) not in excused:
                found.append(f"{file.relative_to(ROOT)}, line {node.lineno}: {module}")  # type: ignore[attr-defined]
    assert not found, "\n".join(found)


def test_the_core_needs_no_torch() -> None:
    found = []
    for file in sources(CORE):
        for module, node in at_import_time(ast.parse(file.read_text(encoding="utf-8"))):
            if top(module) in ("torch", "numba", "triton", "transformers"):
                found.append(f"{file.relative_to(ROOT)}, line {node.lineno}: {module}")  # type: ignore[attr-defined]
    assert not found, "\n".join(found)


def test_these_checks_tell_an_import_that_runs_from_one_that_does_not() -> None:
    code = "import a\nif TYPE_CHECKING:\n    import b\ndef f():\n    import c\ntry:\n    import d\nexcept E:\n    pass"
    assert sorted(module for module, _ in at_import_time(ast.parse(code))) == ["a", "d"]
    assert sorted(module for module, _ in imports(ast.parse(code + "\nimport_module('e')"))) == list("abcde")


def distributions() -> list[Path]:
    patterns = ("*/pyproject.toml", *(f"{name}/*/pyproject.toml" for name in ("plugins", "drafts", "integrations")))
    return [project for pattern in patterns for project in sorted(ROOT.glob(pattern))]


def test_every_distribution_is_typed() -> None:
    assert len(distributions()) >= 4
    for project in distributions():
        packages = [folder for folder in project.parent.glob("src/*") if (folder / "__init__.py").is_file()]
        assert packages, project
        assert [folder for folder in packages if not (folder / "py.typed").is_file()] == []


def own_files() -> list[Path]:
    folders = (
        "core",
        "nn",
        "testing",
        "engine",
        "train",
        "plugins",
        "drafts",
        "tests",
        "benchmarks",
        "demo",
        "integrations",
        "template",
        "docs",
        ".ci",
    )
    kinds = {".py", ".toml", ".md", ".txt", ".json", ".yaml", ".yml", ".sh", ""}
    files = [f for name in folders for f in (ROOT / name).rglob("*") if f.is_file() and f.suffix in kinds]
    files += [f for f in ROOT.iterdir() if f.is_file() and f.suffix in kinds]
    return [f for f in files if "__pycache__" not in f.parts and not any(p.endswith(".egg-info") for p in f.parts)]


def test_no_source_file_is_longer_than_four_hundred_lines() -> None:
    long = {}
    for file in own_files():
        if file.suffix == ".py":
            count = len(file.read_text(encoding="utf-8").splitlines())
            if count > LONGEST:
                long[str(file.relative_to(ROOT))] = count
    assert long == {}


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    # Written in pieces, so that this file is not found itself.
    pattern = re.compile("|".join("/" + name + "/" for name in ("work", "home", "root", "Users")))
    found = []
    for file in own_files():
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{file.relative_to(ROOT)}, line {number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_a_source_is_a_paper_or_a_page_that_a_reader_has() -> None:
    """Nothing cites a document that is not in the repository, or an issue by its number."""
    # Written in pieces, so that this file is not found itself.
    private = ("formats" + r"2?(\.md)?,? \(?\d", "field" + "[ -_]?log", "hf_" + "overrides section")
    pattern = re.compile("|".join((*private, "issue" + r"s? #?\d", r"[a-z]#\d{2,}")), re.IGNORECASE)
    found = []
    for file in own_files():
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            pages = re.findall(r"\bdocs/[\w-]+\.md", line)
            if pattern.search(line) or not all((ROOT / page).is_file() for page in pages):
                found.append(f"{file.relative_to(ROOT)}, line {number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_every_module_opens_with_a_sentence() -> None:
    bare = []
    for package in PACKAGES.values():
        for file in sources(package):
            if not (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").strip():
                bare.append(str(file.relative_to(ROOT)))
    assert bare == []


def test_transformers_is_never_left_to_ask_whether_code_may_run() -> None:
    loading, found = NN / "hf", []
    folders = (*PACKAGES.values(), ROOT / "benchmarks", ROOT / "demo")
    for file in (file for folder in folders for file in sources(folder)):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if called and node.func.attr in ("from_pretrained", "get_config_dict"):  # type: ignore[union-attr]
                told = {keyword.arg for keyword in node.keywords}  # type: ignore[union-attr]
                by_source = file.parent == loading and None in told  # **source.arguments
                if "trust_remote_code" not in told and not by_source:
                    found.append(f"{file.relative_to(ROOT)}:{node.lineno}")  # type: ignore[attr-defined]
    assert not found
