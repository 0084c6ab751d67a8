"""What a configured head needs and gives, which k it asks for, and what is wrong with it; no torch."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.config.speculative import COUPLED, SpeculativeConfig
from specdec_core.sources import Default, DraftSource, Note, Problem, TargetInfo
from specdec_core.traits import MethodTraits
from specdec_nn.checkpoints import speculators
from specdec_plugin_dflash import reading
from specdec_plugin_dflash.layout import DFlashReader
from specdec_plugin_dflash.names import DSPARK
from specdec_plugin_dflash.options import DFlashOptions, DSparkOptions


def traits_of(method: str, config: SpeculativeConfig, draft: DraftSource | None, target: TargetInfo) -> MethodTraits:
    """Return the traits; of a checkpoint that cannot be used, those of a usual one."""
    layout = None if draft is None else DFlashReader(method, draft, target).layout()
    drawn, k = config.draft_sample_method == "probabilistic", config.num_speculative_tokens or 1
    rows = k + 1 if layout is None else layout.rows(k)
    return MethodTraits(
        rows="all",
        hidden=layout is None or not layout.aux,
        aux_layers=() if layout is None else layout.aux,
        law="soft" if drawn else "deterministic",
        shares_noise=drawn and config.rejection_sample_method == COUPLED,
        weights="own",
        vocabulary="subset" if layout is not None and "d2t" in layout.shapes else "target",
        when_off="gap",
        extra_slots=rows - 1,
        lookahead=rows,
    )


def defaults_of(method: str, draft: DraftSource | None) -> Sequence[Default]:
    """Return k where the checkpoint says it: as many drafts as a block has places for them."""
    if draft is None:
        return []
    config = draft.hf_config
    from_anchor = reading.samples_anchor(config, method == DSPARK)
    proposed, size = speculators.proposed_tokens(config), reading.block_size(config)
    most = None if size is None else reading.drafts_of(size, from_anchor=from_anchor)
    if proposed is not None and (most is None or proposed <= most):
        reason = "speculative_tokens of the checkpoint's first proposal method"
        return [Default(key="num_speculative_tokens", value=proposed, reason=reason)]
    if not most:
        return []
    reason = f"the checkpoint's block_size {size}" + ("" if from_anchor else ", less the row of the newest id")
    return [Default(key="num_speculative_tokens", value=most, reason=reason)]


def problems_of(
    method: str, options: DFlashOptions, draft: DraftSource | None, target: TargetInfo
) -> list[Problem | Note]:
    """Return everything that is wrong, and what was read otherwise than its name says."""
    if draft is None:
        message = f"a {method} head is a checkpoint of its own, and none was given"
        return [Problem(key="model", message=message, next_step="give its folder, file or hub id as model")]
    reading_ = DFlashReader(method, draft, target)
    layout = reading_.layout()
    problems: list[Problem | Note] = [*reading_.problems, *reading_.notes]
    if layout is None or not isinstance(options, DSparkOptions):
        return problems
    topk = options.dspark_draft_topk
    if topk is not None and topk > layout.vocab_size:
        message = f"{topk} candidates were asked for, and the head knows {layout.vocab_size} ids"
        problems.append(Problem(key="dspark_draft_topk", message=message, next_step="give a smaller number"))
    if options.confidence_threshold is not None and not layout.confident:
        message = f"{draft.model!r} has no confidence head, so its drafts cannot be cut by confidence"
        problems.append(Problem(key="confidence_threshold", message=message, next_step="leave it out"))
    return problems
