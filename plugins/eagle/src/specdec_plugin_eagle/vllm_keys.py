"""Which configured heads vLLM 0.32 runs by itself, in the keys of its `--speculative-config`; no vLLM, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_core.context import MethodContext
from specdec_core.sources import Problem
from specdec_plugin_eagle import speculators
from specdec_plugin_eagle.aux_layers import INNER, KEY
from specdec_plugin_eagle.layout import EagleReader, Layout
from specdec_plugin_eagle.options import EagleOptions
from specdec_plugin_eagle.required import EAGLE_1


def vllm_config(ctx: MethodContext[EagleOptions]) -> Mapping[str, Any] | Problem | None:
    """Return the keys, or what stands against them."""
    method, options, draft, target = ctx.method, ctx.options, ctx.checkpoint, ctx.target
    layout = EagleReader(method, draft, options, target).layout()
    if layout is None:  # the check reports what is wrong
        return None
    if Path(draft.model).expanduser().is_file():
        return Problem(key="model", message="vLLM reads folders and hub ids, and this is a file")
    if method == EAGLE_1 and speculators.is_speculators(draft.hf_config):
        return Problem(key="model", message="vLLM does not read files of speculators' type eagle")
    if method == EAGLE_1 and layout.has("fc.bias"):
        return Problem(key="model", message="vLLM's EAGLE-1 classes leave out fc.bias, which this head has")
    if options.share_embeddings:
        return Problem(key="share_embeddings", message="vLLM takes the head's own embedding where it differs")
    theirs = aux_layers_of_vllm(layout, target.num_layers)
    if layout.aux and theirs != layout.aux:
        message = f"vLLM reads the layers {list(theirs)} of config.json, and the head wants {list(layout.aux)}"
        return Problem(key=KEY, message=message)
    keys: dict[str, Any] = {"method": method}
    if layout.mask_token is not None:
        keys["parallel_drafting"] = True
    for name in ("disable_padded_drafter_batch", "disable_eagle_block_drop"):
        if getattr(options, name):
            keys[name] = True
    return keys


def aux_layers_of_vllm(layout: Layout, num_layers: int) -> tuple[int, ...]:
    """Return the R_k that vLLM has the target record for a head: any list counts the layer that a state enters."""
    inner = layout.config.get(INNER)
    for config in (layout.config, inner if isinstance(inner, Mapping) else {}):
        ids = config.get(KEY)
        if isinstance(ids, Sequence) and not isinstance(ids, str) and len(ids):
            return tuple(sorted({int(i) for i in ids}))
    return tuple(sorted({2, num_layers // 2, num_layers - 3}))
