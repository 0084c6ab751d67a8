"""From a checkpoint to a drafter: reads the weights, checks maps and tables, wires the head; no drafting here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.draft import Rows
from specdec_core.errors import ConfigError
from specdec_core.registry.kernels import Kernels
from specdec_core.sources import TargetHandle
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.checkpoints.head_weights import HeadWeights
from specdec_nn.checkpoints.vocabulary import warn_of_other_vocabulary
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.head_parts import Vocabulary, aux_states, final_states
from specdec_nn.drafters.hidden_state import HiddenStateDrafter, Plan
from specdec_nn.layers.block import Block, RMSNorm
from specdec_nn.layers.block_config import BlockConfig
from specdec_nn.layers.pairs import neighbours_to_halves, reordered
from specdec_nn.layers.rotary import Rotary
from specdec_plugin_dflash import names, reading
from specdec_plugin_dflash.assembling import capped, chooser_of, convolutions
from specdec_plugin_dflash.choosers import Chooser
from specdec_plugin_dflash.head import BlockHead, Layer, MarkovHead
from specdec_plugin_dflash.layout import DFlashReader, Layout
from specdec_plugin_dflash.mask import read_mask
from specdec_plugin_dflash.options import DFlashOptions, DSparkOptions
from specdec_plugin_dflash.plans import BlockPlan, MarkovPlan, Shape, WalkPlan

logger = logging.getLogger("specdec_plugin_dflash")


def make(ctx: MethodContext[DFlashOptions], build: ProposerBuild) -> HiddenStateDrafter[BlockHead]:
    """Build the proposer. Raises ConfigError for maps and tables that contradict each other."""
    options, draft, target, kernels = ctx.options, ctx.checkpoint, build.target, build.kernels
    k = build.num_speculative_tokens
    reader = DFlashReader(ctx.method, draft, target.info)
    layout = reader.checked()
    _warn_of_long_blocks(layout, k)
    warn_of_other_vocabulary(layout.config, target.info.vocab_size, draft.model, logger)
    parts = Parts(layout, HeadWeights(reader, target, kernels), target, kernels, k)
    head = parts.head(options)
    plan = _plan(parts, head, DraftSampler.of(build), options, k)
    return HiddenStateDrafter(head, DraftCache.of(target, layout.rows(k)), plan)


def _warn_of_long_blocks(layout: Layout, k: int) -> None:
    size = layout.block_size
    if size is None or layout.rows(k) <= size:
        return
    logger.warning(
        "num_speculative_tokens %d makes blocks of %d rows; the head was trained on %d, so drafts past %d will be poor",
        k,
        layout.rows(k),
        size,
        reading.drafts_of(size, from_anchor=layout.from_anchor),
    )


def _plan(parts: Parts, head: BlockHead, sampler: DraftSampler, options: DFlashOptions, k: int) -> Plan:
    layout = parts.layout
    shape = Shape(
        mask=layout.mask_token,
        whole=0 if all(layer.causal for layer in layout.attention) and not layout.additions.whole else k,
        first=layout.first_place,
        more=layout.rows(0),
    )
    if isinstance(options, DSparkOptions):
        return MarkovPlan(head, sampler, shape, parts.markov(options), threshold=options.confidence_threshold)
    chooser = parts.chooser()
    return BlockPlan(head, sampler, shape) if chooser is None else WalkPlan(head, sampler, shape, chooser)


class Parts:
    """The parts of one head, on the target's device and in its dtype."""

    def __init__(self, layout: Layout, weights: HeadWeights, target: TargetHandle, kernels: Kernels, k: int) -> None:
        """Read the sizes of the layers."""
        self.layout, self._weights, self._target, self._kernels = layout, weights, target, kernels
        self._block = BlockConfig.of({"hidden_size": layout.width, **layout.config})
        last = target.info.max_model_len + k
        self._rotary = Rotary(layout.config, self._block.head_dim, last, target.device, target.dtype)
        self._words: Vocabulary | None = None

    def head(self, options: DFlashOptions) -> BlockHead:
        """Return the network."""
        norms = tuple(self._weights.norm(name, self._block.eps) for name in (names.HIDDEN_NORM, names.NORM))
        self._words = self._vocabulary(options)
        return BlockHead(self._words, self._mix(), self._layers(), self._rotary, (norms[0], norms[1]))

    def chooser(self) -> Chooser | None:
        """Return what goes through the places of a block, None where each is drafted on its own; after `head`."""
        assert self._words is not None
        return chooser_of(self.layout.additions, self._weights, self._words, self._block.eps)

    def _layers(self) -> list[Layer]:
        layers = []
        for i, attention in enumerate(self.layout.attention):
            own = self._weights.layer(i)
            if not self.layout.split_half:
                own = reordered(own, neighbours_to_halves(self._block.head_dim, self._rotary.width))
            for name in ("self_attn.v_proj.weight", "self_attn.v_proj.bias"):
                if name in own and self.layout.value_scale != 1.0:
                    own[name] = own[name] * self.layout.value_scale
            config = replace(self._block, window=attention.window)
            block = Block(own, config, self._rotary, self._kernels, self._weights.device, i)
            norm = RMSNorm(own["input_layernorm.weight"], self._block.eps)
            layers.append(Layer(block, norm, attention.causal, convolutions(self.layout.additions, self._weights, i)))
        return layers

    def _mix(self) -> Callable[[Rows], Tensor]:
        """Return what makes one state of the target's states of a row."""
        if not self.layout.aux:
            return final_states
        fc = self._weights.linear("fc")
        return lambda rows: fc(aux_states(rows))

    def _vocabulary(self, options: DFlashOptions) -> Vocabulary:
        weights = self._weights
        table = weights.embedding(options.share_embeddings, logger)
        file, token, mask = self.layout.mask_embedding, self.layout.mask_token, None
        if file is not None:
            mask = token, read_mask(file, token, self.layout.width).to(weights.device, weights.dtype)
        elif token >= len(table):
            message = (
                f"the mask id {token} is outside of the target's {len(table)} embeddings; leave out share_embeddings"
            )
            raise ConfigError(message)
        made, logits = self.layout.additions, weights.logits()
        if made.multiplier != 1.0 or made.cap is not None:
            logits = capped(logits, made.multiplier, made.cap)
        return Vocabulary(table, logits, weights.offsets(), made.scale, mask)

    def markov(self, options: DSparkOptions) -> MarkovHead:
        """Return the Markov and confidence heads."""
        topk = options.dspark_draft_topk or reading.setting(self.layout.config, "dspark_draft_topk")
        weights, rows = self._weights, self._target.info.vocab_size
        confidence = None
        if self.layout.confident:
            bias = weights.stored.get(names.CONFIDENCE_BIAS, torch.zeros(1))
            parts = (part.to(weights.device, torch.float32) for part in (weights.stored[names.CONFIDENCE], bias))
            confidence = next(parts), next(parts)
        w2, linear = weights.get(names.W2, rows), weights.linear(names.W2.removesuffix(".weight"), rows)
        return MarkovHead(weights.get(names.W1), w2, linear, confidence, topk)
