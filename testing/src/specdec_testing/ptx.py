"""Compiles installed Triton kernels for GPUs that need not be there, and tells what they take of one.

Kernels are found through entry points `<op>.triton`; what they are compiled for is what their modules say in
`ptx_cases()`, see `specdec_nn.ops.ptx`. `python -m specdec_testing.ptx --part 0/2` prints one JSON line a compilation,
in an environment without TRITON_INTERPRET.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from specdec_core.registry.catalog import Catalog
from specdec_core.registry.kernels import TRITON
from specdec_nn.ops.ptx import PtxCase

CASES: Final = "ptx_cases"
# Bytes of shared memory that one block of threads can have, by compute capability: CUDA C++ Programming Guide, table
# "Technical Specifications per Compute Capability".
SHARED_LIMITS: Final = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}


@dataclass(frozen=True)
class Compiled:
    """What came of one case on one architecture.

    module, case   where it is from, and `PtxCase.name`
    capability     of the architecture, times ten: 90 is sm_90
    shared         bytes of shared memory of one block of threads
    warps          warps of one block of threads
    seconds        that the compilation took
    entry          whether the PTX has an entry point for exactly this architecture
    """

    module: str
    case: str
    capability: int
    shared: int
    warps: int
    seconds: float
    entry: bool


def kernel_modules() -> list[str]:
    """Return the names of all modules that installed distributions have Triton kernels in, sorted."""
    records = Catalog.discover().of_kind("kernel")
    return sorted({r.value.partition(":")[0] for r in records if r.name.rpartition(".")[2] == TRITON})


def launched_kernels(module: ModuleType) -> dict[str, Any]:
    """Return the functions under `@triton.jit` that a module has or imports, and no other of them calls."""
    own = {name: value for name, value in vars(module).items() if hasattr(value, "arg_names") and hasattr(value, "fn")}
    called = set()
    for name, kernel in own.items():
        tree = ast.parse(inspect.getsource(kernel.fn))
        called |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id != name}
    return {name: kernel for name, kernel in own.items() if name not in called}


def cases_of(module: ModuleType) -> list[PtxCase]:
    """Return the cases of a module; raises AssertionError if a kernel that is launched has none."""
    message = f"{module.__name__} has Triton kernels and no function {CASES}(), see specdec_nn.ops.ptx"
    assert hasattr(module, CASES), message
    cases: list[PtxCase] = list(getattr(module, CASES)())
    missing = sorted({*launched_kernels(module)} - {case.kernel.__name__ for case in cases})
    assert not missing, f"{module.__name__}.{CASES}() leaves out {', '.join(missing)}"
    names = [case.name for case in cases]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, f"{module.__name__}.{CASES}() has several of {', '.join(twice)}; give them labels"
    return cases


def compile_case(case: PtxCase, capability: int) -> Any:
    """Return Triton's compiled kernel of a case: `asm["ptx"]` is text, `metadata.shared` bytes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(case.kernel, case.signature(), constexprs=dict(case.constants), attrs=case.attributes())
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(case.options))


def compile_all(
    modules: Sequence[str], capabilities: Sequence[int], part: int, parts: int, only: str = ""
) -> Iterator[Compiled]:
    """Compile every `parts`-th case whose name has the text `only`, from case `part` on, for every architecture."""
    found = [(name, case) for name in modules for case in cases_of(importlib.import_module(name)) if only in case.name]
    for name, case in found[part::parts]:
        for capability in capabilities:
            begin = time.perf_counter()
            kernel = compile_case(case, capability)
            text = kernel.asm["ptx"]
            entry = f".target sm_{capability}" in text and f".entry {case.kernel.__name__}" in text
            yield Compiled(
                module=name,
                case=case.name,
                capability=capability,
                shared=int(kernel.metadata.shared),
                warps=int(kernel.metadata.num_warps),
                seconds=round(time.perf_counter() - begin, 2),
                entry=entry,
            )


def main(arguments: Sequence[str]) -> None:
    """Print one JSON line for each compilation."""
    parser = argparse.ArgumentParser(prog="python -m specdec_testing.ptx", description=__doc__)
    parser.add_argument("modules", nargs="*", help="modules of kernels; all that are installed if none is given")
    parser.add_argument("--arch", type=int, nargs="+", default=sorted(SHARED_LIMITS), help="compute capabilities x 10")
    parser.add_argument("--only", default="", help="only cases whose names have this text")
    parser.add_argument("--part", default="0/1", help="i/n: only every n-th case, from the i-th on")
    given = parser.parse_args(arguments)
    part, _, parts = given.part.partition("/")
    for compiled in compile_all(given.modules or kernel_modules(), given.arch, int(part), int(parts), given.only):
        print(json.dumps(dataclasses.asdict(compiled)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
