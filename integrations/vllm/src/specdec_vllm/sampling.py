"""Two faults of vLLM's CPU build in sampling with drafts: for each a probe that shows it, and the fix.

Spreading: temperature, top-k and top-p of a request are spread over its draft positions. The build
does that in a copy if the values are not int64, and throws the copy away: the positions keep what was in memory before,
and sampled text no longer follows the target.

Empty steps: in a step without any draft, a batch with top-k and without top-p asks for the largest of no values, which
stops the engine. Methods that always draft never come there; those that look drafts up do so in their first step.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from specdec_vllm import patching

if TYPE_CHECKING:
    from torch import Tensor

MODULE: Final = "vllm.utils.cpu_triton_utils"
NAME: Final = "_expand_kernel_impl"
PARAMETERS: Final = ("output", "input_val", "cu_num_tokens", "replace_from", "replace_to")
TOP_K: Final = ("vllm.v1.sample.ops.topk_topp_sampler", "apply_top_k_top_p")
CONSTRAINTS: Final = ("vllm.v1.sample.rejection_sampler", "apply_sampling_constraints")


def expand(
    output: Tensor,
    input_val: Tensor,
    cu_num_tokens: Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Write input_val[i] to the places of request i in `output`, `replace_from` becoming `replace_to`.

    output         [tokens], filled up to the last count
    input_val      [requests], of output's dtype
    cu_num_tokens  [requests] how many places the requests up to this one have together
    """
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).to(torch.int64)
    values = torch.where(input_val == replace_from, input_val.new_full((), replace_to), input_val)
    spread = torch.repeat_interleave(values, counts)
    output[: len(spread)] = spread.to(output.dtype)


def is_wrong(expand_kernel: Any) -> bool:
    """Return whether an implementation leaves float or int32 places unwritten."""
    import torch

    for dtype, value in ((torch.float32, 0.75), (torch.int32, 7)):
        output = torch.zeros(3, dtype=dtype)
        counts = torch.tensor([2, 3], dtype=torch.int32)
        expand_kernel(output, torch.tensor([value, value], dtype=dtype), counts, 0, 1)
        if not bool((output == value).all()):
            return True
    return False


def runs_fallbacks() -> bool:
    """Return whether this vLLM is one for CPUs without Triton."""
    platform = patching.find("vllm.platforms", "current_platform")
    return bool(platform.is_cpu()) and not patching.find("vllm.triton_utils", "HAS_TRITON")


def fix_expanding() -> str | None:
    """Replace the kernel where the probe shows the fault; report it, or return None where there is nothing to fix.

    Raises Mismatch if the kernel is not as expected.
    """
    import torch

    if not runs_fallbacks():
        return None
    original = patching.find(MODULE, NAME)
    if patching.is_ours(original):
        return None
    patching.find(MODULE, NAME, PARAMETERS)
    patching.find("vllm.platforms", "current_platform.import_kernels", ())
    patching.find("vllm.platforms", "current_platform").import_kernels()
    if not hasattr(torch.ops._C, "expand_kernel_impl") or not is_wrong(original):
        return None
    patching.replace(MODULE, NAME, expand)
    return "sampling with drafts on CPUs fixed"


def fix_empty_steps() -> str | None:
    """Skip temperature, top-k and top-p where there is no draft to process and vLLM cannot do without.

    Reports it, or returns None where there is nothing to fix; raises Mismatch if vLLM is not as expected.
    """
    top_k = patching.find(*TOP_K, ("logits", "k", "p"))
    if not runs_fallbacks() or not fails_without_rows(top_k):
        return None
    patching.wrap(*CONSTRAINTS, ("logits", "cu_num_draft_tokens", "sampling_metadata"), _unless_empty)
    return "sampling with top-k in steps without drafts fixed"


def fails_without_rows(top_k: Any) -> bool:
    """Return whether top-k of no rows raises."""
    import torch

    try:
        top_k(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int32), None)
    except (RuntimeError, IndexError):
        return True
    return False


def _unless_empty(original: Any) -> Any:
    @functools.wraps(original)
    def constrained(logits: Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(logits, *args, **kwargs) if len(logits) else logits

    return constrained
