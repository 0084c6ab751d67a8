"""What a configured head needs and gives, which k it asks for, and what is wrong with it; no torch."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.context import MethodContext
from specdec_core.sources import Default, Note, Problem
from specdec_core.traits import MethodTraits
from specdec_nn.checkpoints import speculators
from specdec_plugin_dflash import reading
from specdec_plugin_dflash.layout import DFlashReader
from specdec_plugin_dflash.names import DSPARK
from specdec_plugin_dflash.options import DFlashOptions, DSparkOptions
from specdec_plugin_dflash.refusing import OMNI


def traits_of(ctx: MethodContext[DFlashOptions]) -> MethodTraits:
    """Return the traits; of a checkpoint that cannot be used, those of a usual one."""
    layout = None if ctx.draft is None else DFlashReader(ctx.method, ctx.draft, ctx.target).layout()
    k = ctx.config.num_speculative_tokens or 1
    rows = k + 1 if layout is None else layout.rows(k)
    return MethodTraits(
        rows="all",
        hidden=layout is None or not layout.aux,
        aux_layers=() if layout is None else layout.aux,
        draft_distribution="soft" if ctx.samples_drafts else "deterministic",
        shares_noise=ctx.shares_noise,
        weights="own",
        vocabulary="subset" if layout is not None and "d2t" in layout.shapes else "target",
        max_tokens=None if layout is None else layout.most_tokens,
        when_off="gap",
        extra_slots=rows - 1,
        num_lookahead_slots=rows,
    )


def defaults_of(ctx: MethodContext[DFlashOptions]) -> Sequence[Default]:
    """Return k where the checkpoint gives it: as many drafts as a block has places for them."""
    if ctx.draft is None:
        return []
    config = ctx.draft.hf_config
    from_anchor = reading.samples_anchor(config, ctx.method == DSPARK)
    proposed, size = speculators.proposed_tokens(config), reading.block_size(config)
    most = None if size is None else reading.drafts_of(size, from_anchor=from_anchor)
    if proposed is not None and (most is None or proposed <= most):
        reason = "speculative_tokens of the checkpoint's first proposal method"
        return [Default(key="num_speculative_tokens", value=proposed, reason=reason)]
    if not most:
        return []
    reason = f"the checkpoint's block_size {size}" + ("" if from_anchor else ", less the row of the newest id")
    return [Default(key="num_speculative_tokens", value=most, reason=reason)]


def problems_of(ctx: MethodContext[DFlashOptions]) -> list[Problem | Note]:
    """Return everything that is wrong, and what was read otherwise than its name says."""
    draft, options = ctx.checkpoint, ctx.options
    reading_ = DFlashReader(ctx.method, draft, ctx.target)
    layout = reading_.layout()
    reading_.expect_sharing(options.share_embeddings)
    problems: list[Problem | Note] = [*reading_.problems, *reading_.notes]
    if layout is None or not isinstance(options, DSparkOptions):
        return problems
    k, size = ctx.config.num_speculative_tokens, layout.block_size
    if OMNI in draft.architectures and None not in (k, size) and k != size:
        message = f"{k} given, and a {OMNI} drafts the {size} places of its block, neither fewer nor more"
        problems.append(Problem(key="num_speculative_tokens", message=message, next_step="leave it out"))
    topk = options.dspark_draft_topk
    if topk is not None and topk > layout.vocab_size:
        message = f"{topk} candidates were asked for, and the head knows {layout.vocab_size} ids"
        problems.append(Problem(key="dspark_draft_topk", message=message, next_step="give a smaller number"))
    if options.confidence_threshold is not None and not layout.confident:
        message = f"{draft.model!r} has no confidence head, so its drafts cannot be cut by confidence"
        problems.append(Problem(key="confidence_threshold", message=message, next_step="leave it out"))
    return problems
