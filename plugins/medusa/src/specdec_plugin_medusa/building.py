"""From a checkpoint to a drafter: reads the weights, checks the map, wires the heads; no drafting here."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.token_tree import TokenTree
from specdec_nn.checkpoints.head_weights import HeadWeights
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.stateless_heads import LastRowDrafter
from specdec_plugin_medusa.heads import MedusaHead
from specdec_plugin_medusa.layout import TOKEN_MAP, Layout, MedusaReader
from specdec_plugin_medusa.options import MedusaOptions
from specdec_plugin_medusa.plans import HeadChainPlan, HeadTreePlan

logger = logging.getLogger("specdec_plugin_medusa")


def make(ctx: MethodContext[MedusaOptions], build: ProposerBuild) -> LastRowDrafter:
    """Build the proposer. Raises ConfigError for a checkpoint that has changed since it was checked."""
    options, draft, target, kernels = ctx.options, ctx.checkpoint, build.target, build.kernels
    reader = MedusaReader(draft, target.info)
    layout = reader.checked()
    if layout.notes:
        logger.warning("%s: %s; the tensors are used as they are", draft.model, "; ".join(layout.notes))
    tree = None if options.speculative_token_tree is None else TokenTree(options.speculative_token_tree)
    count = build.num_speculative_tokens if tree is None else tree.depth
    names = [name for name in reader.files if _is_needed(name, count, layout)]
    weights = HeadWeights(reader, target, kernels, names)
    vocabulary = target.info.vocab_size
    ids = weights.stored[TOKEN_MAP].to(torch.int64) if layout.mapped else None
    heads, sampler = _heads(weights, layout, count, _rows(layout, ids, vocabulary)), DraftSampler.of(build)
    d2t = weights.first_ids(layout.rows) if ids is None else (ids - torch.arange(len(ids))).to(target.device)
    if tree is None or tree.is_chain:
        return LastRowDrafter(HeadChainPlan(heads, sampler, d2t))
    return LastRowDrafter(HeadTreePlan(tree, heads, sampler, d2t))


def _is_needed(name: str, count: int, layout: Layout) -> bool:
    if name == TOKEN_MAP:
        return True
    return int(name.split(".")[1]) < (1 if layout.shared_head and name.startswith("lm_heads.") else count)


def _rows(layout: Layout, ids: Tensor | None, vocabulary: int) -> Tensor | None:
    """Return the rows of an output head that draft: those that the map names, none of padding; None = all."""
    if ids is not None:
        return ids
    return torch.arange(vocabulary) if layout.rows > vocabulary else None


def _heads(weights: HeadWeights, layout: Layout, count: int, rows: Tensor | None) -> list[MedusaHead]:
    """Return the heads in order; what several share is one tensor."""
    heads, shared = [], None
    for head in range(count):
        stored = {layer: weights.linear(f"blocks.{head}.layers.{layer}") for layer in set(layout.layers[head])}
        if shared is None or not layout.shared_head:
            name = f"lm_heads.{head}"
            is_cut = rows is not None and len(rows) < len(weights.stored[f"{name}.weight"])
            shared = weights.linear(name, rows if is_cut else None)
        heads.append(MedusaHead([stored[layer] for layer in layout.layers[head]], shared, layout.logit_scale))
    return heads
