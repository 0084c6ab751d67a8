"""Reads the public API out of the sources, one line a name, and records it: `make api`; `test_public_api.py` diffs it.

A line has the full name, and what a caller depends on: a signature, a field with its type and default, a constant's
value where it is short. Names that begin with an underscore are not public. Nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORDS = Path(__file__).parent / "api"
# What plugins, hosts and scripts may import, by distribution; a pattern stands for all modules that it matches. Any
# other module is a distribution's own, and may change without notice.
PUBLIC = {
    "core": (
        "specdec_core",
        *(f"specdec_core.{name}" for name in ("hookspecs", "protocols", "draft", "traits", "context", "noise")),
        *(f"specdec_core.{name}" for name in ("metrics", "stats", "errors", "sources", "markers", "late_hooks")),
        "specdec_core.token_tree",
        "specdec_core.first_layers",
        "specdec_core.target_keys",
        "specdec_core.training",
        "specdec_core.cache_file",
        *(f"specdec_core.registry.{name}" for name in ("groups", "record", "catalog", "loaded", "loader", "kernels")),
        "specdec_core.registry.drafts",
        *(f"specdec_core.config.{name}" for name in ("speculative", "resolve", "rope", "remote_code", "checkpoint")),
        "specdec_core.config.tensor_files",
        "specdec_core.host.*",
        "specdec_core.cli.output",
        "specdec_core.cli.subcommand",
    ),
    "nn": (
        "specdec_nn.drafters.*",
        "specdec_nn.cache.*",
        "specdec_nn.checkpoints.*",
        "specdec_nn.layers.*",
        "specdec_nn.ops.*.reference",
        *(f"specdec_nn.ops.{name}" for name in ("cpu.jit", "ptx", "triton_cache", "noise", "noise.*", "race.numba")),
        *(f"specdec_nn.ops.{name}" for name in ("draw.triton", "top_ids.triton")),
        "specdec_nn.device_copies",
        "specdec_nn.hf.*",
        "specdec_nn.fused.trial",
        "specdec_nn.training.*",
        "specdec_nn.turns",
    ),
    "testing": ("specdec_testing", "specdec_testing.*"),
    "engine": (
        "specdec_engine",
        *(f"specdec_engine.{name}" for name in ("llm", "async_llm", "sampling_params", "outputs", "compare", "traces")),
        "specdec_engine.hf_generate.generate",
        "specdec_engine.reporting.stats",
    ),
    "train": ("specdec_train.data", "specdec_train.data.*"),
}
LONGEST = 60  # characters of a constant's value that are recorded


def modules(distribution: str) -> Iterator[tuple[str, Path]]:
    """Yield the public modules of a distribution, by name, with their files."""
    source = ROOT / distribution / "src"
    for file in sorted(source.rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if any(fnmatch(name, pattern) for pattern in PUBLIC[distribution]):
            yield name, file


def record(distribution: str) -> list[str]:
    """Return the lines of a distribution."""
    found = []
    for name, file in modules(distribution):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found += [f"{name}.{line}" for line in _members(tree.body, top=True)]
    return sorted(set(found))


def _members(body: list[ast.stmt], *, top: bool) -> Iterator[str]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if _public(node.name) or node.name == "__init__":
                yield _function(node)
        elif isinstance(node, ast.ClassDef) and _public(node.name):
            yield f"{node.name}{_class(node)}"
            yield from (f"{node.name}.{line}" for line in _members(node.body, top=False))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield from _value(node, top=top)
        elif isinstance(node, ast.ImportFrom) and top:
            yield from (f"{each.name} from {node.module}" for each in node.names if each.asname == each.name)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            exported = [each for each in node.body if isinstance(each, ast.ImportFrom)]
            yield from _members(list(exported), top=top)


def _public(name: str) -> bool:
    return not name.startswith("_")


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    kinds = (
        "property",
        "cached_property",
        "classmethod",
        "staticmethod",
        "contextmanager",
        "contextlib.contextmanager",
    )
    shown = "".join(f"@{mark} " for mark in marks if mark in kinds or mark.startswith("hookspec"))
    awaited = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}: {shown}{awaited}({ast.unparse(node.args)}){returns}"


def _class(node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in [*node.bases, *(k.value for k in node.keywords)])
    data = next((ast.unparse(mark) for mark in node.decorator_list if "dataclass" in ast.unparse(mark)), "class")
    return f": {data}({bases})" if bases else f": {data}"


def _value(node: ast.Assign | ast.AnnAssign, *, top: bool) -> Iterator[str]:
    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
    value = "" if node.value is None else ast.unparse(_bare(node.value))
    kind = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
    shown = f" = {value}" if value and (len(value) <= LONGEST or not top) else ""
    yield from (f"{t.id}{kind}{shown}" for t in targets if isinstance(t, ast.Name) and _public(t.id))


def _bare(value: ast.expr) -> ast.expr:
    """Return the value of a field without the text that describes it."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "Field":
        return ast.Call(value.func, value.args, [each for each in value.keywords if each.arg != "description"])
    return value


def read(distribution: str) -> list[str]:
    """Return what is recorded."""
    return (RECORDS / f"{distribution}.txt").read_text(encoding="utf-8").splitlines()


def difference(before: list[str], after: list[str]) -> list[str]:
    """Return what changed, a line or two a name: what callers lose or must change first, then what is new."""
    old, new = _by_name(before), _by_name(after)
    removed = [f"removed  {line}" for name, line in old.items() if name not in new]
    changed = [
        f"changed  {line}\n     to  {new[name]}" for name, line in old.items() if name in new and new[name] != line
    ]
    added = [f"added    {line}" for name, line in new.items() if name not in old]
    return [*removed, *changed, *added]


def _by_name(lines: list[str]) -> Mapping[str, str]:
    return {line.partition(":")[0].partition(" ")[0]: line for line in lines}


if __name__ == "__main__":
    RECORDS.mkdir(exist_ok=True)
    for each in PUBLIC:
        lines = record(each)
        file = RECORDS / f"{each}.txt"
        for line in difference(read(each) if file.exists() else [], lines) if file.exists() else ():
            print(line)
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{file.relative_to(ROOT)}: {len(lines)} names")
