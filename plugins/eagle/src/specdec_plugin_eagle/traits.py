"""What a configured head needs and gives, which k it asks for, and what is wrong with it; no torch."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.context import MethodContext
from specdec_core.sources import Default, Note, Problem
from specdec_core.token_tree import TokenTree
from specdec_core.traits import MethodTraits
from specdec_nn.checkpoints import speculators
from specdec_plugin_eagle.layout import EagleReader
from specdec_plugin_eagle.options import EagleOptions


def traits_of(ctx: MethodContext[EagleOptions]) -> MethodTraits:
    """Return the traits; of a checkpoint that cannot be used, those of a usual one."""
    options = ctx.options
    layout = None if ctx.draft is None else EagleReader(ctx.method, ctx.draft, options, ctx.target).layout()
    tree = options.speculative_token_tree
    branches = options.tree_top_k is not None or (tree is not None and not TokenTree(tree).is_chain)
    drawn = ctx.samples_drafts and options.tree_top_k is None  # a dynamic tree keeps its likeliest tokens
    parallel = layout is not None and layout.mask_token is not None
    return MethodTraits(
        shape="tree" if branches else "chain",
        rows="all",
        hidden=layout is None or not layout.aux,
        aux_layers=() if layout is None else layout.aux,
        draft_distribution="soft" if drawn else "deterministic",
        shares_noise=drawn and ctx.shares_noise,
        weights="own",
        vocabulary="subset" if layout is not None and layout.has("d2t") else "target",
        tree_nodes=len(tree) if tree is not None else None,
        when_off="gap",
        extra_slots=(ctx.config.num_speculative_tokens or 1) - 1 if parallel else 0,
    )


def defaults_of(ctx: MethodContext[EagleOptions]) -> Sequence[Default]:
    """Return k where the tree or the checkpoint gives it."""
    tree = ctx.options.speculative_token_tree
    if tree is not None:
        reason = f"the nodes of speculative_token_tree, {len(tree)}"
        return [Default(key="num_speculative_tokens", value=len(tree), reason=reason)]
    proposed = None if ctx.draft is None else speculators.proposed_tokens(ctx.draft.hf_config)
    if proposed is None:
        return []
    reason = "speculative_tokens of the checkpoint's first proposal method"
    return [Default(key="num_speculative_tokens", value=proposed, reason=reason)]


def problems_of(ctx: MethodContext[EagleOptions]) -> Sequence[Problem | Note]:
    """Return everything that is wrong, and what was read otherwise than its place says."""
    reading = EagleReader(ctx.method, ctx.checkpoint, ctx.options, ctx.target)
    layout, tree = reading.layout(), ctx.options.speculative_token_tree
    problems: list[Problem | Note] = [*reading.problems]
    widest = 0 if tree is None else max(map(len, TokenTree(tree).children.values()))
    if layout is not None and widest > layout.vocab_size:
        message = f"a node has {widest} children, and the head knows {layout.vocab_size} ids"
        problems.append(Problem(key="speculative_token_tree", message=message, next_step="give a narrower tree"))
    return [*problems, *reading.notes]
