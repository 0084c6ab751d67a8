"""The attention op by FlashInfer (arXiv 2501.01005), for the steps and layers that it may run; all others are Triton's.

It is taken only where `SPECDEC_KERNELS` names it: `SPECDEC_KERNELS=flashinfer,triton`. It is written against the
documentation of flashinfer-python 0.6 and **has not been run yet**; `docs/kernels.md` tells what is known about it.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

import torch
from torch import Tensor

from specdec_core.errors import ConfigError
from specdec_nn.ops.attention.csr_tables import csr_tables, layer_unserved, step_unserved
from specdec_nn.ops.attention.device_tables import TABLES
from specdec_nn.ops.attention.launches import Geometry
from specdec_nn.ops.attention.reference import AttentionStep, write_pages

WORKSPACE: Final = 128 * 2**20  # bytes of partial results, as FlashInfer's documentation has it
PLAN: Final = "flashinfer"  # key of `AttentionStep.plans`

logger = logging.getLogger(__name__)


@functools.cache
def _library() -> Any:
    """Return FlashInfer; imported here, so that a look at this backend costs nobody its absence."""
    try:
        import flashinfer
    except ModuleNotFoundError as error:
        message = (
            "attention.flashinfer was chosen (SPECDEC_KERNELS), but FlashInfer is not installed; install "
            "specdec-nn[flashinfer], or leave the backend out"
        )
        raise ConfigError(message) from error
    return flashinfer


class _Wrapper:
    """FlashInfer's wrapper for layers of one kind, and the step that it has last been planned for."""

    def __init__(self, device: torch.device) -> None:
        """Reserve its workspace."""
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
        self.wrapper: Any = _library().BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
        self.step: AttentionStep | None = None

    def plan(self, step: AttentionStep, layer: Geometry, dtype: torch.dtype, **options: Any) -> None:
        """Plan a step, unless it was the last one; the tables are read on the host, where they are."""
        if self.step is step:
            return
        tables = step.plans.get(PLAN)
        if tables is None:
            tables = step.plans[PLAN] = csr_tables(step)
        self.wrapper.plan(
            *map(torch.from_numpy, (tables.rows, tables.pages)),
            torch.from_numpy(tables.indices).to(self.wrapper.device, non_blocking=True),
            torch.from_numpy(tables.last),
            layer.heads,
            layer.kv_heads,
            layer.dims,
            step.page_size,
            causal=True,
            q_data_type=dtype,
            kv_data_type=dtype,
            **options,
        )
        self.step = step


@functools.cache
def _wrapper(device: torch.device, layer: Geometry, dtype: torch.dtype, scaling: float, softcap: float) -> _Wrapper:
    logger.info("attention by FlashInfer %s for %s in %s", _library().__version__, layer, dtype)
    return _Wrapper(device)


@functools.cache
def _log_once(reason: str) -> None:
    logger.warning("attention.flashinfer does not serve %s; attention.triton runs instead", reason)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    step: AttentionStep,
    *,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Write k and v into the pages, then attend; see `attention_reference` for arguments, shapes and meaning.

    What FlashInfer may not run goes to attention.triton, and is logged once: trees, windows, sinks, fixed widths.
    Raises ConfigError where FlashInfer is not installed.
    Other than there, a key or value that is no number harms earlier rows of its request too.
    """
    _library()
    layer = Geometry(q.shape[1], k.shape[1], q.shape[2], v.shape[2], q.element_size())
    reason = layer_unserved(layer, window, sinks=sinks is not None) or _step_reason(step)
    if not reason and (q.device.type != "cuda" or not q.dtype == k.dtype == k_pages.dtype == v_pages.dtype):
        reason = f"{q.dtype} beside {k_pages.dtype} on {q.device.type}"
    if reason:
        from specdec_nn.ops.attention import triton

        _log_once(reason)
        return triton.attention(
            q, k, v, k_pages, v_pages, step, scaling=scaling, softcap=softcap, sinks=sinks, window=window
        )
    write_pages(k, v, k_pages, v_pages, step)
    wrapper = _wrapper(q.device, layer, q.dtype, scaling, softcap or 0.0)
    wrapper.plan(step, layer, q.dtype, sm_scale=scaling, logits_soft_cap=softcap or 0.0)
    rows = int(step.seg_rows.sum())
    mixed: Tensor = wrapper.wrapper.run(q[:rows].contiguous(), (k_pages, v_pages))
    if rows == len(q):
        return mixed
    return torch.cat([mixed, mixed.new_zeros(len(q) - rows, *mixed.shape[1:])])


def _step_reason(step: AttentionStep) -> str:
    """Return why a step is not FlashInfer's; one whose tables are on the device is planned for a captured graph."""
    if TABLES in step.plans:
        return "captured graphs: its plan is made on the host"
    return step_unserved(step)


def _supports(device: str) -> bool:
    """Return False: no device takes it by itself as long as it has not been run; `SPECDEC_KERNELS` may name it."""
    return False


attention.supports = _supports  # type: ignore[attr-defined] # a kernel's own attribute
