"""What a configured speculator needs and gives, which k it asks for, and what is wrong with it; no torch."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.context import MethodContext
from specdec_core.sources import Default, Problem
from specdec_core.traits import MethodTraits
from specdec_plugin_mlp_speculator.layout import SpeculatorReader
from specdec_plugin_mlp_speculator.options import MlpSpeculatorOptions
from specdec_plugin_mlp_speculator.trees import form_of, is_tree, problems_of_form


def traits_of(ctx: MethodContext[MlpSpeculatorOptions]) -> MethodTraits:
    """Return the traits; of a checkpoint that cannot be used, those of a usual one."""
    reading = None if ctx.draft is None else SpeculatorReader(ctx.draft, ctx.target)
    layout = None if reading is None else reading.layout()
    form = None if reading is None else form_of(ctx.options, reading)
    tree, n_predict = is_tree(ctx.options), None if layout is None else layout.n_predict
    drawn = ctx.samples_drafts and not tree  # a tree keeps the likeliest sequences
    return MethodTraits(
        shape="tree" if tree else "chain",
        rows="last",
        hidden=True,
        draft_distribution="soft" if drawn else "deterministic",
        shares_noise=drawn and ctx.shares_noise,
        weights="own",
        vocabulary="subset" if layout is not None and layout.rows < ctx.target.vocab_size else "target",
        max_tokens=(None if form is None else form.most_nodes) if tree else n_predict,
        when_off="gap",  # rows that were dropped are not missed: only the last one is read
        n_predict=None if tree else n_predict,  # k counts the nodes of a tree, not its depth
    )


def defaults_of(ctx: MethodContext[MlpSpeculatorOptions]) -> Sequence[Default]:
    """Return k: the most nodes of a tree, or the heads of the checkpoint."""
    key, reading = "num_speculative_tokens", None if ctx.draft is None else SpeculatorReader(ctx.draft, ctx.target)
    layout = None if reading is None else reading.layout()
    if reading is None or layout is None:
        # What is wrong with the checkpoint is said by the check; that k is missing too would only hide it.
        return [Default(key=key, value=1, reason="there is no checkpoint that can be used")]
    if is_tree(ctx.options):
        form = form_of(ctx.options, reading)
        if form is None:
            return [Default(key=key, value=1, reason="there is no tree that can be made")]
        reason = f"the most nodes of {form.kept} sequences under {list(form.widths)}"
        return [Default(key=key, value=form.most_nodes, reason=reason)]
    return [Default(key=key, value=layout.n_predict, reason=f"n_predict of the checkpoint, {layout.n_predict}")]


def problems_of(ctx: MethodContext[MlpSpeculatorOptions]) -> Sequence[Problem]:
    """Return everything that is wrong with the checkpoint, and with a tree for it."""
    reading = SpeculatorReader(ctx.checkpoint, ctx.target)
    layout = reading.layout()
    return [*reading.problems, *([] if layout is None else problems_of_form(ctx.options, reading, layout))]
