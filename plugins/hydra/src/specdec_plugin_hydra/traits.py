"""What configured Hydra heads need and give, which k they ask for, and what is wrong with them; no torch."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.context import MethodContext
from specdec_core.sources import Default, Problem
from specdec_core.token_tree import TokenTree
from specdec_core.traits import MethodTraits
from specdec_nn.drafters.published_trees import problems_of_tree
from specdec_plugin_hydra.layout import NUM_HEADS, HydraReader
from specdec_plugin_hydra.options import HydraOptions


def traits_of(ctx: MethodContext[HydraOptions]) -> MethodTraits:
    """Return the traits; of a checkpoint that cannot be used, those of a usual one."""
    layout = None if ctx.draft is None else HydraReader(ctx.draft, ctx.options, ctx.target).layout()
    heads, tree = None if layout is None else layout.heads, ctx.options.speculative_token_tree
    aux = () if layout is None else layout.aux
    return MethodTraits(
        shape="tree" if tree is not None and not TokenTree(tree).is_chain else "chain",
        rows="all" if layout is not None and layout.prefix else "last",
        hidden=not aux,
        aux_layers=aux,
        draft_distribution="soft" if ctx.samples_drafts else "deterministic",
        shares_noise=ctx.shares_noise,
        weights="own",
        vocabulary="subset" if layout is not None and layout.rows < ctx.target.vocab_size else "target",
        max_tokens=heads if tree is None else None,
        when_off="gap",  # without a prefix layer only the last row is read; with one, the layer sees fewer rows
        tree_nodes=None if tree is None else len(tree),
        n_predict=heads if tree is None else None,  # k counts the nodes of a tree, not its depth
        num_lookahead_slots=0,  # drafts are no rows of the prefix layer
    )


def defaults_of(ctx: MethodContext[HydraOptions]) -> Sequence[Default]:
    """Return k: the nodes of the tree, or the heads of the checkpoint."""
    key, tree = "num_speculative_tokens", ctx.options.speculative_token_tree
    if tree is not None:
        return [Default(key=key, value=len(tree), reason=f"the nodes of speculative_token_tree, {len(tree)}")]
    reading = None if ctx.draft is None else HydraReader(ctx.draft, ctx.options, ctx.target)
    layout = None if reading is None else reading.layout()
    if layout is None or reading is None:
        # The check reports what is wrong with the checkpoint; that k is missing too would only hide it.
        return [Default(key=key, value=1, reason="there is no checkpoint that can be used")]
    said = reading.said.get(NUM_HEADS)
    against = "" if said in (None, layout.heads) else f"; config.json has {NUM_HEADS} {said}"
    return [Default(key=key, value=layout.heads, reason=f"n_predict: the tensors have {layout.heads} heads{against}")]


def problems_of(ctx: MethodContext[HydraOptions]) -> Sequence[Problem]:
    """Return everything that is wrong with the checkpoint, and with a tree for it."""
    reading = HydraReader(ctx.checkpoint, ctx.options, ctx.target)
    layout, paths = reading.layout(), ctx.options.speculative_token_tree
    if layout is None or paths is None:
        return reading.problems
    return [*reading.problems, *problems_of_tree(paths, layout.heads, layout.rows)]
