"""The hook that this host adds for plugins: what vLLM runs by itself. Plugins mark it `optionalhook=True`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specdec_core.markers import hookspec

if TYPE_CHECKING:
    from specdec_core.context import MethodContext
    from specdec_core.sources import Problem


@hookspec(firstresult=True)
def specdec_vllm_config(ctx: MethodContext[Any]) -> Mapping[str, Any] | Problem | None:
    """Return the keys of vLLM's own `--speculative-config` with which vLLM drafts the same by itself.

    A Problem says why vLLM cannot, for this configuration. The keys that all methods share are added by the host where
    they are left out: k, the checkpoint and its revision, `max_model_len`, `draft_tensor_parallel_size`,
    `draft_sample_method`, `num_speculative_tokens_per_batch_size`. A key that is None is left out. Torch-free.
    Default: None, vLLM has no such method.
    """
