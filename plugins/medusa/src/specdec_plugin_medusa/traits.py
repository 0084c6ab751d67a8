"""What configured Medusa heads need and give, which k they ask for, and what is wrong with them; no torch."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.context import MethodContext
from specdec_core.sources import Default, Problem
from specdec_core.token_tree import TokenTree
from specdec_core.traits import MethodTraits
from specdec_nn.drafters.published_trees import problems_of_tree
from specdec_plugin_medusa.layout import MedusaReader
from specdec_plugin_medusa.options import MedusaOptions
from specdec_plugin_medusa.settings import num_heads


def traits_of(ctx: MethodContext[MedusaOptions]) -> MethodTraits:
    """Return the traits; of a checkpoint that cannot be used, those of a usual one."""
    layout = None if ctx.draft is None else MedusaReader(ctx.draft, ctx.target).layout()
    heads, tree = None if layout is None else layout.heads, ctx.options.speculative_token_tree
    branches = tree is not None and not TokenTree(tree).is_chain
    subset = layout is not None and (layout.mapped or layout.rows < ctx.target.vocab_size)
    return MethodTraits(
        shape="tree" if branches else "chain",
        rows="last",
        hidden=True,
        draft_distribution="soft" if ctx.samples_drafts else "deterministic",
        shares_noise=ctx.shares_noise,
        weights="own",
        vocabulary="subset" if subset else "target",
        max_tokens=heads if tree is None else None,
        when_off="gap",  # rows that were dropped are not missed: only the last one is read
        tree_nodes=None if tree is None else len(tree),
        n_predict=heads if tree is None else None,  # k counts the nodes of a tree, not its depth
    )


def defaults_of(ctx: MethodContext[MedusaOptions]) -> Sequence[Default]:
    """Return k: the nodes of the tree, or the heads of the checkpoint."""
    key, tree = "num_speculative_tokens", ctx.options.speculative_token_tree
    if tree is not None:
        return [Default(key=key, value=len(tree), reason=f"the nodes of speculative_token_tree, {len(tree)}")]
    reading = None if ctx.draft is None else MedusaReader(ctx.draft, ctx.target)
    layout = None if reading is None else reading.layout()
    if layout is None or reading is None:
        # What is wrong with the checkpoint is said by the check; that k is missing too would only hide it.
        return [Default(key=key, value=1, reason="there is no checkpoint that can be used")]
    said = num_heads(reading.config)
    against = f"; config.json has {said[0]} {said[1]}" if said is not None and said[1] != layout.heads else ""
    reason = f"n_predict: the tensors have {layout.heads} heads{against}"
    return [Default(key=key, value=layout.heads, reason=reason)]


def problems_of(ctx: MethodContext[MedusaOptions]) -> Sequence[Problem]:
    """Return everything that is wrong with the checkpoint, and with a tree for it."""
    reading = MedusaReader(ctx.checkpoint, ctx.target)
    layout, paths = reading.layout(), ctx.options.speculative_token_tree
    if layout is None or paths is None:
        return reading.problems
    return [*reading.problems, *problems_of_tree(paths, layout.heads, layout.rows)]
