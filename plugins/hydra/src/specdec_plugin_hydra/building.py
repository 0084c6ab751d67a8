"""From a checkpoint to a drafter: reads the weights and wires heads and prefix layer; no drafting here."""

from __future__ import annotations

import logging

import torch

from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.protocols import Proposer
from specdec_core.token_tree import TokenTree
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.checkpoints.head_weights import HeadWeights
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.head_parts import aux_states, final_states
from specdec_nn.drafters.hidden_state import HiddenStateDrafter
from specdec_nn.drafters.sequences import SequencePlan, SequenceTreePlan
from specdec_nn.drafters.stateless_heads import LastRowDrafter
from specdec_nn.layers.block import Block, Linear
from specdec_nn.layers.block_config import BlockConfig
from specdec_nn.layers.rotary import Rotary
from specdec_plugin_hydra.heads import HydraHead, HydraNetwork, PrefixLayer
from specdec_plugin_hydra.layout import HydraReader, Layout
from specdec_plugin_hydra.names import NORM
from specdec_plugin_hydra.options import HydraOptions

logger = logging.getLogger("specdec_plugin_hydra")


def make(ctx: MethodContext[HydraOptions], build: ProposerBuild) -> Proposer:
    """Build the proposer. Raises ConfigError for a checkpoint that has changed since it was checked."""
    options, draft, target = ctx.options, ctx.checkpoint, build.target
    reader = HydraReader(draft, options, target.info)
    layout = reader.checked()
    if layout.notes:
        logger.warning("%s: %s; the tensors are used as they are", draft.model, "; ".join(layout.notes))
    tree = None if options.speculative_token_tree is None else TokenTree(options.speculative_token_tree)
    count = build.num_speculative_tokens if tree is None else tree.depth
    weights = HeadWeights(reader, target, build.kernels, [name for name in reader.files if _is_needed(name, count)])
    heads = [_head(weights, layout, head, target.info.vocab_size) for head in range(count)]
    network = HydraNetwork(heads, weights.embedding(options.share_embeddings, logger), grounded=layout.grounded)
    sampler, d2t = DraftSampler.of(build), weights.first_ids(layout.rows)
    if tree is None or tree.is_chain:
        plan: SequencePlan | SequenceTreePlan = SequencePlan(network, sampler, d2t)
    else:
        plan = SequenceTreePlan(tree, network, sampler, d2t)
    states = aux_states if layout.aux else final_states
    if not layout.prefix:
        return LastRowDrafter(plan, states)
    config = BlockConfig.of({"hidden_size": target.info.hidden_size, **layout.config})
    rotary = Rotary(layout.config, config.head_dim, target.info.max_model_len, target.device, target.dtype)
    norms = (weights.norm("layers.0.input_layernorm.weight", config.eps), weights.norm(NORM, config.eps))
    block = Block(weights.layer(0), config, rotary, build.kernels, target.device, 0)
    prefix = PrefixLayer(states, block, norms, rotary)
    return HiddenStateDrafter(prefix, DraftCache.of(target, 0), lambda drafts, head, cache: plan(drafts))


def _is_needed(name: str, count: int) -> bool:
    part, number, *_ = name.split(".")
    return not part.startswith("hydra_") or int(number) < count


def _head(weights: HeadWeights, layout: Layout, number: int, vocabulary: int) -> HydraHead:
    """Return one head; blocks with equal weights are one, and rows of padding are left out."""
    blocks: list[Linear] = []
    names: list[str] = []
    for block in layout.blocks[number]:
        name = f"hydra_mlp.{number}.{block}.linear"
        same = next((i for i, other in enumerate(names) if _is_same(weights, name, other)), None)
        blocks.append(weights.linear(name) if same is None else blocks[same])
        names.append(name)
    residual = weights.linear(f"hydra_mlp.{number}.0.res_connection") if layout.grounded else None
    return HydraHead(residual, blocks, weights.linear(f"hydra_lm_head.{number}", vocabulary))


def _is_same(weights: HeadWeights, one: str, other: str) -> bool:
    """Return whether two linears have equal weights and biases."""
    pairs = ((weights.stored[f"{name}.{end}"] for name in (one, other)) for end in ("weight", "bias"))
    return one == other or all(torch.equal(*pair) for pair in pairs)
