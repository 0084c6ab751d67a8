"""From a checkpoint to a drafter: reads the weights, checks the map, wires the heads; no drafting here."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.errors import ConfigError
from specdec_core.registry.kernels import Kernels
from specdec_core.sources import DraftSource, TargetHandle
from specdec_core.token_tree import TokenTree
from specdec_nn.checkpoints.weights import read_tensors
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.stateless_heads import LastRowDrafter
from specdec_nn.layers.block import Linear
from specdec_plugin_medusa.heads import MedusaHead
from specdec_plugin_medusa.layout import Layout, Reading
from specdec_plugin_medusa.names import TOKEN_MAP
from specdec_plugin_medusa.options import MedusaOptions
from specdec_plugin_medusa.plans import HeadChainPlan, HeadTreePlan

logger = logging.getLogger("specdec_plugin_medusa")


def make(ctx: MethodContext[MedusaOptions], build: ProposerBuild) -> LastRowDrafter:
    """Build the proposer. Raises ConfigError for a map or a dtype that cannot be meant."""
    options, draft, target, kernels = ctx.options, ctx.checkpoint, build.target, build.kernels
    layout = Reading(draft, target.info).layout()
    if layout is None:  # resolve has checked it; the file has changed since
        message = f"{draft.model!r} is no longer what it was when the configuration was checked"
        raise ConfigError(message)
    if layout.notes:
        logger.warning("%s: %s; the tensors are used as they are", draft.model, "; ".join(layout.notes))
    tree = None if options.speculative_token_tree is None else TokenTree(options.speculative_token_tree)
    parts = Parts(layout, draft, target, kernels, build.num_speculative_tokens if tree is None else tree.depth)
    sampler = DraftSampler.of(build)
    heads, d2t = parts.heads(), parts.offsets()
    if tree is None or tree.is_chain:
        return LastRowDrafter(HeadChainPlan(heads, sampler, d2t))
    return LastRowDrafter(HeadTreePlan(tree, heads, sampler, d2t))


class Parts:
    """The heads that drafts need, on the target's device and in its dtype."""

    def __init__(self, layout: Layout, draft: DraftSource, target: TargetHandle, kernels: Kernels, count: int) -> None:
        """Read the tensors of the first `count` heads."""
        self._layout, self._target, self._count = layout, target, count
        self._kernel = kernels.get("linear", target.device)
        ours = {file: name for name, file in layout.files.items()}
        read = read_tensors(draft, lambda file: file in ours and self._needs(ours[file]))
        self._tensors = {ours[file]: tensor for file, tensor in read.items()}
        for name, tensor in self._tensors.items():
            if name != TOKEN_MAP and not tensor.dtype.is_floating_point:
                message = f"{draft.model!r}: {layout.files[name]} is {tensor.dtype}; heads are read in floating point"
                raise ConfigError(message)
        self._map = self._read_map()

    def _needs(self, name: str) -> bool:
        if name == TOKEN_MAP:
            return True
        head = int(name.split(".")[1])
        return head < (1 if self._layout.shared_head and name.startswith("lm_heads.") else self._count)

    def heads(self) -> list[MedusaHead]:
        """Return the heads in order; what several share is one tensor."""
        shared = self._output(0) if self._layout.shared_head else None
        return [
            MedusaHead(self._residual(head), shared or self._output(head), self._layout.logit_scale)
            for head in range(self._count)
        ]

    def _residual(self, head: int) -> list[Linear]:
        stored = {layer: self._linear(f"blocks.{head}.layers.{layer}") for layer in set(self._layout.layers[head])}
        return [stored[layer] for layer in self._layout.layers[head]]

    def _output(self, head: int) -> Linear:
        """Return an output head: without rows of padding, and only with the rows that the map names."""
        name, ids, vocabulary = f"lm_heads.{head}", self._map, self._target.info.vocab_size
        if ids is not None and len(ids) < len(self._tensors[f"{name}.weight"]):
            return self._linear(name, ids)
        if ids is None and self._layout.rows > vocabulary:
            return self._linear(name, torch.arange(vocabulary))
        return self._linear(name)

    def _linear(self, name: str, rows: Tensor | None = None) -> Linear:
        """Return a linear with the bias that the file has, whatever config.json says of biases."""
        found = [self._tensors.get(f"{name}.{part}") for part in ("weight", "bias")]
        picked = (tensor if tensor is None or rows is None else tensor[rows] for tensor in found)
        weight, bias = (None if t is None else t.to(self._target.device, self._target.dtype) for t in picked)
        assert weight is not None  # the layout has it
        return Linear(weight, bias, self._kernel)

    def offsets(self) -> Tensor | None:
        """Return what to add to a head's ids to get the target's, [V_d]; None where they are the same for all."""
        if self._map is None:
            rows, vocabulary = self._layout.rows, self._target.info.vocab_size
            return None if rows >= vocabulary else torch.zeros(rows, dtype=torch.int64, device=self._target.device)
        return (self._map - torch.arange(len(self._map))).to(self._target.device)

    def _read_map(self) -> Tensor | None:
        """Return the target's id of each row of a head, None without a map; raises ConfigError for a wrong one."""
        if not self._layout.mapped:
            return None
        ids, vocabulary = self._tensors[TOKEN_MAP].to(torch.int64), self._target.info.vocab_size
        least, most = int(ids.min()), int(ids.max())
        full = self._tensors["lm_heads.0.weight"].shape[0]
        last = min(vocabulary, full if full > len(ids) else vocabulary)
        if least < 0 or most >= last:
            message = f"token_map names ids {least} .. {most}, and they must be within 0 .. {last - 1}"
            raise ConfigError(message)
        distinct = len(set(ids.tolist()))
        if distinct != len(ids):
            message = f"token_map names {len(ids) - distinct} ids more than once"
            raise ConfigError(message)
        return ids
