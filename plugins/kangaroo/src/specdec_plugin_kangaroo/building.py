"""From a checkpoint to a drafter: reads the weights and wires adapter, layers and head; no drafting here."""

from __future__ import annotations

from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.errors import TargetError
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.checkpoints.head_weights import HeadWeights
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.layers.block import Attention
from specdec_nn.layers.block_config import BlockConfig
from specdec_nn.layers.rotary import Rotary
from specdec_plugin_kangaroo.adapter import Adapter
from specdec_plugin_kangaroo.layout import NORM, KangarooReader, Layout
from specdec_plugin_kangaroo.options import KangarooOptions
from specdec_plugin_kangaroo.proposer import AdapterPlan, Kangaroo


def make(ctx: MethodContext[KangarooOptions], build: ProposerBuild) -> Kangaroo:
    """Build the proposer.

    Raises TargetError where the target's first layers cannot be run by themselves, and ConfigError for a checkpoint
    that has changed since it was checked.
    """
    reader = KangarooReader(ctx.checkpoint, build.target.info)
    adapter = _adapter(reader.checked(), HeadWeights(reader, build.target, build.kernels), build)
    try:
        layers = build.first_layers()
    except TargetError as error:
        message = f"{ctx.method} with exit_layer {build.traits.first_layers} cannot draft here: {error}"
        raise TargetError(f"{message}; use another method") from error
    threshold = ctx.options.draft_confidence_threshold
    plan = AdapterPlan(layers, DraftSampler.of(build), threshold, build.target.compute_logits)
    return Kangaroo(adapter, DraftCache.of(build.target, build.num_speculative_tokens), layers, plan)


def _adapter(layout: Layout, weights: HeadWeights, build: ProposerBuild) -> Adapter:
    target, config = build.target, BlockConfig.of(layout.config)
    rotary = Rotary(layout.config, config.head_dim, target.info.max_model_len, target.device, target.dtype)
    layers = [
        (
            weights.norm(f"layers.{number}.input_layernorm.weight", config.eps),
            Attention(weights.layer(number), config, rotary, build.kernels, target.device, number),
        )
        for number in range(layout.layers)
    ]
    return Adapter(layers, weights.norm(NORM, config.eps), rotary)
