"""Which configured heads vLLM 0.32 runs by itself, in the keys of its `--speculative-config`; no vLLM, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_core.context import MethodContext
from specdec_core.sources import Problem, TargetInfo
from specdec_plugin_dflash import reading
from specdec_plugin_dflash.layout import DFlashReader, Layout
from specdec_plugin_dflash.names import DSPARK
from specdec_plugin_dflash.options import DFlashOptions

LISTS = "target_layer_ids"


def vllm_config(ctx: MethodContext[DFlashOptions]) -> Mapping[str, Any] | Problem | None:
    """Return the keys, or what stands against them."""
    method, draft, target = ctx.method, ctx.checkpoint, ctx.target
    layout = DFlashReader(method, draft, target).layout()
    if layout is None:  # the check reports what is wrong
        return None
    if method == DSPARK:
        message = (
            "vLLM has it in the runner for Triton alone, which takes no methods from here: ask vLLM for it directly"
        )
        return Problem(key="method", message=message)
    if Path(draft.model).expanduser().is_file():
        return Problem(key="model", message="vLLM reads folders and hub ids, and this is a file")
    if ctx.options.share_embeddings:
        return Problem(key="share_embeddings", message="vLLM takes the head's own embedding where it differs")
    return _against(layout, draft.hf_config, target) or {"method": method}


def _against(layout: Layout, config: Mapping[str, Any], target: TargetInfo) -> Problem | None:
    if layout.additions.kind is not None:
        message = f"vLLM has {layout.additions.kind} heads not at all, or in the runner for Triton alone"
        return Problem(key="model", message=message)
    if layout.from_anchor:
        return Problem(key="model", message="vLLM drafts nothing in the row of the newest id, as this head does")
    if len({layer.window for layer in layout.attention}) > 1:
        return Problem(key="model", message="vLLM's runner has no heads that mix layers with and without a window")
    theirs = aux_layers_of_vllm(config, target.num_layers)
    if layout.aux and theirs != layout.aux:
        message = f"vLLM reads the layers {list(theirs)} by config.json, and the head wants {list(layout.aux)}"
        return Problem(key=LISTS, message=message)
    return None


def aux_layers_of_vllm(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return the R_k that vLLM has the target record for a head."""
    own, inner = config.get("eagle_aux_hidden_state_layer_ids"), config.get(reading.SECTION)
    listed = inner.get(LISTS) if isinstance(inner, Mapping) else None
    for ids, add in ((own, 0), (listed, 1)):
        if isinstance(ids, Sequence) and not isinstance(ids, str) and len(ids):
            return tuple(sorted({int(i) + add for i in ids}))
    return tuple(sorted({2, num_layers // 2, num_layers - 3}))
