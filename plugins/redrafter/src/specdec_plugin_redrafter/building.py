"""From a checkpoint to a drafter: reads the weights and wires the network; no drafting here."""

from __future__ import annotations

import logging

from specdec_core.context import MethodContext, ProposerBuild
from specdec_nn.checkpoints.head_weights import HeadWeights
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.sequences import SequencePlan
from specdec_nn.drafters.stateless_heads import LastRowDrafter
from specdec_plugin_redrafter.beams import BeamPlan
from specdec_plugin_redrafter.layout import RedrafterReader
from specdec_plugin_redrafter.network import Recurrence, RedrafterNetwork
from specdec_plugin_redrafter.options import RedrafterOptions

logger = logging.getLogger("specdec_plugin_redrafter")


def make(ctx: MethodContext[RedrafterOptions], build: ProposerBuild) -> LastRowDrafter:
    """Build the proposer. Raises ConfigError for a checkpoint that has changed since it was checked."""
    options, draft, target = ctx.options, ctx.checkpoint, build.target
    reader = RedrafterReader(draft, target.info)
    layout = reader.checked()
    if layout.notes:
        logger.warning("%s: %s; the tensors are used as they are", draft.model, "; ".join(layout.notes))
    weights = HeadWeights(reader, target, build.kernels)
    network = RedrafterNetwork(
        table=target.embedding_weight,
        recurrence=Recurrence(weights.linear("rnn_w"), weights.linear("rnn_u")) if layout.recurrent else None,
        projection=weights.linear("input_proj") if layout.projected else None,
        layers=[weights.linear(f"layers.{i}.linear") for i in range(layout.layers)],
        output=weights.linear("output", target.info.vocab_size),
    )
    if options.num_beams is not None:
        depth = options.depth(build.num_speculative_tokens)
        return LastRowDrafter(BeamPlan(network, options.num_beams, depth, options.verified))
    return LastRowDrafter(SequencePlan(network, DraftSampler.of(build), weights.first_ids(layout.rows)))
