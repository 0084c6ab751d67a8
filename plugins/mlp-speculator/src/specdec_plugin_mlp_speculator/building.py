"""From a checkpoint to a drafter: reads the weights and wires the network; no drafting here."""

from __future__ import annotations

from functools import cache

from specdec_core.context import MethodContext, ProposerBuild
from specdec_nn.checkpoints.head_weights import HeadWeights
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.sequences import SequencePlan
from specdec_nn.drafters.stateless_heads import LastRowDrafter
from specdec_plugin_mlp_speculator import names
from specdec_plugin_mlp_speculator.layout import Layout, SpeculatorReader
from specdec_plugin_mlp_speculator.names import TENSORS
from specdec_plugin_mlp_speculator.network import Cell, CellSpeculator, Network, Speculator, SpeculatorHead
from specdec_plugin_mlp_speculator.options import MlpSpeculatorOptions
from specdec_plugin_mlp_speculator.plans import CandidatesPlan
from specdec_plugin_mlp_speculator.trees import form_of


def make(ctx: MethodContext[MlpSpeculatorOptions], build: ProposerBuild) -> LastRowDrafter:
    """Build the proposer. Raises ConfigError for weights that are no floating-point numbers."""
    options, target = ctx.options, build.target
    reader = SpeculatorReader(ctx.checkpoint, target.info)
    layout = reader.checked()
    form = form_of(options, reader)
    depth = min(layout.n_predict, build.num_speculative_tokens) if form is None else len(form.widths)
    weights = HeadWeights(reader, target, build.kernels, layout.tensors(depth))
    made = _cell if layout.lstm else _speculator
    network = made(weights, layout, depth, target.info.vocab_size)
    if form is not None:
        return LastRowDrafter(CandidatesPlan(network, form))
    sampler = DraftSampler.of(build)
    return LastRowDrafter(SequencePlan(network, sampler, weights.first_ids(layout.rows)))


def _speculator(weights: HeadWeights, layout: Layout, depth: int, vocabulary: int) -> Network:
    """Return the network of the first heads; what tied heads share is one object, and rows of padding are left out."""
    get, linear = cache(weights.get), cache(weights.linear)
    heads = []
    for head in range(depth):
        emb, proj, output, norm_weight, norm_bias = (layout.name(kind, head) for kind in TENSORS)
        heads.append(
            SpeculatorHead(
                projection=linear(proj.removesuffix(".weight")),
                embedding=get(emb),
                norm=(get(norm_weight), get(norm_bias)),
                output=linear(output.removesuffix(".weight"), vocabulary),
            )
        )
    return Speculator(heads, layout.embedding_factor, scale_input=layout.scale_input)


def _cell(weights: HeadWeights, layout: Layout, depth: int, vocabulary: int) -> Network:
    """Return the network of an LSTM speculator; rows of padding are left out."""
    (cell_weight, cell_bias), (state_weight, state_bias) = names.CELL_NORM, names.STATE_NORM
    head = layout.name(TENSORS[2], 0).removesuffix(".weight")
    cell = Cell(
        projections=tuple(weights.stacked(gates) for gates in names.PROJECTIONS[:depth]),
        embedding=weights.get(names.TABLE),
        cell_norm=(weights.get(cell_weight), weights.get(cell_bias)),
        state_norm=(weights.get(state_weight), weights.get(state_bias)),
        output=weights.linear(head, vocabulary),
    )
    return CellSpeculator(cell, layout.embedding_factor, scale_input=layout.scale_input)
