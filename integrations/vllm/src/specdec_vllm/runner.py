"""What the model runner of vLLM does besides: shows itself to our drafters, and asks them near the longest context."""

from __future__ import annotations

import functools
from typing import Any, Final

from specdec_vllm import patching
from specdec_vllm.log import logger

MODULE: Final = "vllm.v1.worker.gpu_model_runner"
INIT: Final = "GPUModelRunner.__init__"
FITS: Final = "GPUModelRunner._input_fits_in_drafter"


def introduce() -> str:
    """Wrap the runner's constructor: a drafter with `bind` gets the runner. Raises Mismatch with nothing changed."""
    patching.wrap(MODULE, INIT, ("self", "vllm_config", "device"), _binding)
    return "requests by name"


def _binding(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, vllm_config: Any, device: Any, *args: Any, **kwargs: Any) -> None:
        original(self, vllm_config, device, *args, **kwargs)
        bind = getattr(getattr(self, "drafter", None), "bind", None)
        if bind is None:
            return
        missing = [
            name
            for name in ("input_batch.req_ids", "input_batch.num_prompt_tokens", "requests")
            if not _has(self, name)
        ]
        if missing:
            logger.warning("vLLM's runner has no %s; requests are told apart by their ids", ", ".join(missing))
        else:
            bind(self)

    return init


def _has(thing: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(thing, name):
            return False
        thing = getattr(thing, name)
    return True


def ask_near_the_end() -> str:
    """Let drafters that keep within the longest context be asked there, too. Raises Mismatch with nothing changed.

    vLLM asks nobody as soon as one request is closer than k to its longest context, and verifies k zeros for all rows.
    """
    patching.wrap(MODULE, FITS, ("self", "common_attn_metadata"), _asking)
    return "drafts near the longest context"


def _asking(original: Any) -> Any:
    @functools.wraps(original)
    def fits(self: Any, common_attn_metadata: Any) -> bool:
        if getattr(getattr(self, "drafter", None), "limits_itself", False):
            return common_attn_metadata is not None
        asked: bool = original(self, common_attn_metadata)
        return asked

    return fits
