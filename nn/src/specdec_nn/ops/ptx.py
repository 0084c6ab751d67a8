"""How a module of Triton kernels states what they are compiled for ahead of any launch; it compiles nothing itself.

Every module that an entry point `<op>.triton` leads to has a function `ptx_cases()` that returns `PtxCase`s: at least
one for each of its kernels that is launched, with the types and constants of real launches. `specdec_testing.ptx`
finds these modules through the entry points and compiles the cases for several GPUs, none of which has to be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

CONSTANT: Final = "constexpr"
ALIGNED: Final = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class PtxCase:
    """One kernel with the types of its arguments, as Triton would see them at a launch.

    kernel     the function under `@triton.jit`
    types      type -> names of its arguments, separated by spaces: {"*bf16": "q k v", "fp32": "scale"}; all other
               arguments that are no constants are i32
    constants  values of the arguments that are `tl.constexpr`
    options    what the launch gives the compiler: num_warps, num_stages, enable_fp_fusion
    multiples  names of integers that are multiples of 16, which lets loads be wide; pointers always are
    label      tells the cases of one kernel apart
    """

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    multiples: str = ""
    label: str = ""

    @property
    def name(self) -> str:
        """The kernel's name, with the label."""
        return f"{self.kernel.__name__}[{self.label}]" if self.label else str(self.kernel.__name__)

    def signature(self) -> dict[str, str]:
        """Return the type of each argument, in order; raises ValueError for a name that the kernel does not have."""
        kinds = {name: kind for kind, names in self.types.items() for name in names.split()}
        kinds |= dict.fromkeys(self.constants, CONSTANT)
        known = list(self.kernel.arg_names)
        unknown = sorted({*kinds, *self.multiples.split()} - set(known))
        if unknown:
            message = f"{self.name} has no argument {', '.join(unknown)}; there are {', '.join(known)}"
            raise ValueError(message)
        return {name: kinds.get(name, "i32") for name in known}

    def attributes(self) -> dict[tuple[int], list[list[Any]]]:
        """Return what Triton may assume of arguments, by place."""
        aligned = set(self.multiples.split())
        return {
            (place,): ALIGNED
            for place, (name, kind) in enumerate(self.signature().items())
            if name in aligned or kind.startswith("*")
        }
