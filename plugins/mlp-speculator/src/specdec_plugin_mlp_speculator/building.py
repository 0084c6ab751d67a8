"""From a checkpoint to a drafter: reads the weights and wires the network; no drafting here."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.errors import ConfigError
from specdec_core.registry.kernels import Kernels
from specdec_core.sources import DraftSource, TargetHandle
from specdec_nn.checkpoints.weights import read_tensors
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.stateless_heads import LastRowDrafter
from specdec_nn.layers.block import Linear
from specdec_plugin_mlp_speculator.layout import TENSORS, Layout, Reading
from specdec_plugin_mlp_speculator.network import Speculator, SpeculatorHead
from specdec_plugin_mlp_speculator.options import MlpSpeculatorOptions
from specdec_plugin_mlp_speculator.plans import CandidatesPlan, SequencePlan
from specdec_plugin_mlp_speculator.trees import form_of

EMB, PROJ, HEAD, NORM_WEIGHT, NORM_BIAS = TENSORS


def make(ctx: MethodContext[MlpSpeculatorOptions], build: ProposerBuild) -> LastRowDrafter:
    """Build the proposer. Raises ConfigError for weights that are no floating-point numbers."""
    options, draft, target, kernels = ctx.options, ctx.checkpoint, build.target, build.kernels
    reading = Reading(draft, target.info)
    layout = reading.layout()
    if layout is None:  # resolve has checked it; the file has changed since
        message = f"{draft.model!r} is no longer what it was when the configuration was checked"
        raise ConfigError(message)
    form = form_of(options, reading)
    depth = min(layout.n_predict, build.num_speculative_tokens) if form is None else len(form.widths)
    speculator = Weights(layout, draft, target, kernels, depth).speculator()
    if form is not None:
        return LastRowDrafter(CandidatesPlan(speculator, form))
    rows, vocabulary = layout.rows, target.info.vocab_size
    # A head of fewer ids has the target's first ones, which its laws must say.
    d2t = None if rows >= vocabulary else torch.zeros(rows, dtype=torch.int64, device=target.device)
    sampler = DraftSampler.of(build)
    return LastRowDrafter(SequencePlan(speculator, sampler, d2t))


class Weights:
    """The tensors of the first heads, on the target's device and in its dtype; tied ones once."""

    def __init__(self, layout: Layout, draft: DraftSource, target: TargetHandle, kernels: Kernels, depth: int) -> None:
        """Read the tensors of the first `depth` heads."""
        self._layout, self._depth, self._vocabulary = layout, depth, target.info.vocab_size
        self._kernel = kernels.get("linear", target.device)
        needed = {layout.files[layout.name(kind, head)] for kind in TENSORS for head in range(depth)}
        ours = {file: name for name, file in layout.files.items()}
        self._tensors: dict[str, Tensor] = {}
        for file, tensor in read_tensors(draft, needed.__contains__).items():
            if not tensor.dtype.is_floating_point:
                message = f"{draft.model!r}: {file} is {tensor.dtype}; speculators are read in floating point"
                raise ConfigError(message)
            self._tensors[ours[file]] = tensor.to(target.device, target.dtype)
        self._linears: dict[str, Linear] = {}

    def speculator(self) -> Speculator:
        """Return the network."""
        heads = [
            SpeculatorHead(
                projection=self._linear(PROJ, head),
                embedding=self._get(EMB, head),
                norm=(self._get(NORM_WEIGHT, head), self._get(NORM_BIAS, head)),
                output=self._linear(HEAD, head),
            )
            for head in range(self._depth)
        ]
        return Speculator(heads, self._layout.embedding_factor, scale_input=self._layout.scale_input)

    def _get(self, kind: str, head: int) -> Tensor:
        return self._tensors[self._layout.name(kind, head)]

    def _linear(self, kind: str, head: int) -> Linear:
        """Return a linear, one object for all heads that share it; rows of padding are left out of outputs."""
        name = self._layout.name(kind, head)
        if name not in self._linears:
            weight = self._tensors[name]
            self._linears[name] = Linear(weight[: self._vocabulary] if kind == HEAD else weight, None, self._kernel)
        return self._linears[name]
