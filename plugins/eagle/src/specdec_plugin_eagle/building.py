"""From a checkpoint to a drafter: reads the weights, checks maps and tables, wires the head; no drafting here."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.draft import Rows
from specdec_core.registry.kernels import Kernels
from specdec_core.sources import TargetHandle
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.checkpoints.head_weights import HeadWeights
from specdec_nn.checkpoints.vocabulary import warn_of_other_vocabulary
from specdec_nn.drafters.head_parts import Vocabulary, aux_states, final_states
from specdec_nn.drafters.hidden_state import FeatureHead, HiddenStateDrafter
from specdec_nn.layers.block import Block, RMSNorm
from specdec_nn.layers.block_config import BlockConfig
from specdec_nn.layers.pairs import neighbours_to_halves, reordered
from specdec_nn.layers.rotary import Rotary
from specdec_plugin_eagle.head import Eagle1Head, Eagle3Head, Layer
from specdec_plugin_eagle.layout import EagleReader, Layout
from specdec_plugin_eagle.options import EagleOptions
from specdec_plugin_eagle.plans import make_plan, round_rows
from specdec_plugin_eagle.required import EAGLE_1

logger = logging.getLogger("specdec_plugin_eagle")


def make(ctx: MethodContext[EagleOptions], build: ProposerBuild) -> HiddenStateDrafter[FeatureHead]:
    """Build the proposer. Raises ConfigError for maps and tables that contradict each other."""
    options, draft, target, kernels = ctx.options, ctx.checkpoint, build.target, build.kernels
    k = build.num_speculative_tokens
    reader = EagleReader(ctx.method, draft, options, target.info)
    layout = reader.checked()
    warn_of_other_vocabulary(layout.config, target.info.vocab_size, draft.model, logger)
    parts = Parts(layout, HeadWeights(reader, target, kernels), options, target, kernels, k)
    head = parts.eagle_1() if ctx.method == EAGLE_1 else parts.eagle_3()
    plan = make_plan(options, build, parts.mask(head))
    return HiddenStateDrafter(head, DraftCache.of(target, round_rows(options, k)), plan)


class Parts:
    """The parts of one head, on the target's device and in its dtype."""

    def __init__(
        self,
        layout: Layout,
        weights: HeadWeights,
        options: EagleOptions,
        target: TargetHandle,
        kernels: Kernels,
        k: int,
    ) -> None:
        """Read the sizes of the blocks."""
        self._layout, self._weights, self._options, self._kernels = layout, weights, options, kernels
        self._block = BlockConfig.of({"hidden_size": layout.width, **layout.config})
        if layout.flavour == "minicpm":
            depth = float(layout.config.get("mup_denominator") or layout.num_layers)
            self._block = replace(
                self._block, residual_scale=float(layout.config.get("scale_depth", 1.0)) / math.sqrt(depth)
            )
        if layout.flavour == "llama4":
            self._block = replace(self._block, l2_norm=layout.flag("use_qk_norm"))
        last = target.info.max_model_len + k
        self._rotary = Rotary(layout.config, self._block.head_dim, last, target.device, target.dtype)

    def _norm(self, name: str) -> RMSNorm:
        return self._weights.norm(name, self._block.eps)

    def eagle_1(self) -> Eagle1Head:
        """Return an EAGLE-1 head; a bias of fc counts whatever the configuration says of it."""
        keeps_norm = self._layout.flavour in ("llama4", "mistral") and "norm.weight" in self._weights
        minicpm = self._layout.flavour == "minicpm"
        return Eagle1Head(
            self._vocabulary(float(self._layout.config.get("scale_emb", 1.0)) if minicpm else 1.0),
            self._weights.linear("fc"),
            self._layers(),
            self._rotary,
            input_norms=(self._norm("input_norm1.weight"), self._norm("input_norm2.weight")) if minicpm else None,
            final_norm=self._norm("norm.weight") if keeps_norm else None,
            width_scale=self._width_scale(),
        )

    def _width_scale(self) -> float:
        """Return what states are divided by in front of heads: 1, but for MiniCPM."""
        base = self._layout.config.get("dim_model_base") if self._layout.flavour == "minicpm" else None
        return self._layout.width / float(base) if base else 1.0

    def eagle_3(self) -> Eagle3Head:
        """Return an EAGLE-3 head."""
        names = ("layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight", "norm.weight")
        embedding, state, final = (self._norm(name) for name in names)
        return Eagle3Head(
            self._vocabulary(1.0),
            self._mix(),
            self._layers(first_norm=False),
            self._rotary,
            (embedding, state, final),
            norm_before_residual=self._layout.flag("norm_before_residual"),
            norm_output=self._layout.flag("norm_output"),
        )

    def _layers(self, *, first_norm: bool = True) -> list[Layer]:
        layers = []
        for i in range(self._layout.num_layers):
            own = self._weights.layer(i)
            if self._layout.flavour == "llama4":
                own = reordered(own, neighbours_to_halves(self._block.head_dim, self._block.head_dim))
            block = Block(own, self._block, self._rotary, self._kernels, self._weights.device, i)
            norm = own.get("input_layernorm.weight") if i or first_norm else None
            layers.append(Layer(block, None if norm is None else RMSNorm(norm, self._block.eps)))
        return layers

    def _mix(self) -> Callable[[Rows], Tensor]:
        """Return what makes features of the target's states: aux states through norms and fc, or the final one."""
        if not self._layout.aux:
            return final_states
        mix = self._mix_states()
        return lambda rows: mix(aux_states(rows))

    def _mix_states(self) -> Callable[[Tensor], Tensor]:
        """Return the way of concatenated states [N, n_a * H_t] to [N, H_d]."""
        fc = self._weights.linear("fc")
        if self._layout.flag("norm_before_fc"):
            norm = self._norm("input_norm.weight")
            return lambda states: fc(norm(states))
        if self._layout.flag("fc_norm"):
            norms = [self._norm(f"fc_norm.{i}.weight") for i in range(len(self._layout.aux))]
            return lambda states: fc(
                torch.cat([n(part) for n, part in zip(norms, states.chunk(len(norms), dim=-1), strict=True)], dim=-1)
            )
        return fc

    def mask(self, head: Eagle1Head | Eagle3Head) -> tuple[int, Tensor] | None:
        """Return mask id and mask features [1, H_d] of a head that drafts in parallel, None for others."""
        if self._layout.mask_token is None:
            return None
        with torch.inference_mode():
            return self._layout.mask_token, self._mix_states()(self._weights.get("mask_hidden").reshape(1, -1))

    def _vocabulary(self, scale: float) -> Vocabulary:
        weights = self._weights
        table = weights.embedding(self._options.share_embeddings, logger)
        return Vocabulary(table, weights.logits(self._width_scale()), weights.offsets(), scale)
