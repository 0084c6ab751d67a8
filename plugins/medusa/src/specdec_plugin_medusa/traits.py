"""What configured Medusa heads need and give, which k they ask for, and what is wrong with them; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specdec_core.config.speculative import COUPLED, SpeculativeConfig
from specdec_core.sources import Default, DraftSource, Problem, TargetInfo
from specdec_core.token_tree import TokenTree
from specdec_core.traits import MethodTraits
from specdec_plugin_medusa.layout import Layout, MedusaReader
from specdec_plugin_medusa.options import MedusaOptions
from specdec_plugin_medusa.settings import num_heads


def traits_of(
    config: SpeculativeConfig, options: MedusaOptions, draft: DraftSource | None, target: TargetInfo
) -> MethodTraits:
    """Return the traits; of a checkpoint that cannot be used, those of a usual one."""
    layout = None if draft is None else MedusaReader(draft, target).layout()
    heads, tree = None if layout is None else layout.heads, options.speculative_token_tree
    branches = tree is not None and not TokenTree(tree).is_chain
    subset = layout is not None and (layout.mapped or layout.rows < target.vocab_size)
    drawn = config.draft_sample_method == "probabilistic"
    return MethodTraits(
        shape="tree" if branches else "chain",
        rows="last",
        hidden=True,
        law="soft" if drawn else "deterministic",
        shares_noise=drawn and config.rejection_sample_method == COUPLED,
        weights="own",
        vocabulary="subset" if subset else "target",
        max_tokens=heads if tree is None else len(tree),
        when_off="gap",  # rows that were dropped are not missed: only the last one is read
        n_predict=heads if tree is None else None,  # k counts the nodes of a tree, not its depth
    )


def defaults_of(options: MedusaOptions, draft: DraftSource | None, target: TargetInfo) -> Sequence[Default]:
    """Return k: the nodes of the tree, or the heads of the checkpoint."""
    key, tree = "num_speculative_tokens", options.speculative_token_tree
    if tree is not None:
        return [Default(key=key, value=len(tree), reason=f"the nodes of speculative_token_tree, {len(tree)}")]
    reading = None if draft is None else MedusaReader(draft, target)
    layout = None if reading is None else reading.layout()
    if layout is None or reading is None:
        # What is wrong with the checkpoint is said by the check; that k is missing too would only hide it.
        return [Default(key=key, value=1, reason="there is no checkpoint that can be used")]
    said = num_heads(reading.config)
    against = f"; config.json says {said[0]} {said[1]}" if said is not None and said[1] != layout.heads else ""
    reason = f"n_predict: the tensors have {layout.heads} heads{against}"
    return [Default(key=key, value=layout.heads, reason=reason)]


def problems_of(
    config: SpeculativeConfig, options: MedusaOptions, draft: DraftSource | None, target: TargetInfo
) -> Sequence[Problem]:
    """Return everything that is wrong."""
    if draft is None:
        message = "Medusa heads are in a checkpoint of their own, none was given, and the target's has none"
        return [Problem(key="model", message=message, next_step="give its folder, file or hub id as model")]
    reading = MedusaReader(draft, target)
    layout = reading.layout()
    return [*reading.problems, *_of_tree(config, options, layout)]


def _of_tree(config: SpeculativeConfig, options: MedusaOptions, layout: Layout | None) -> Iterator[Problem]:
    paths = options.speculative_token_tree
    if paths is None:
        return
    key, tree, k = "speculative_token_tree", TokenTree(paths), config.num_speculative_tokens
    if layout is not None and tree.depth > layout.heads:
        message = f"its deepest path has {tree.depth} ranks, and the checkpoint has {layout.heads} heads"
        yield Problem(key=key, message=message, next_step="give a tree that is no deeper")
    widest = 1 + max(path[-1] for path in paths)
    if layout is not None and widest > layout.rows:
        message = f"a node has {widest} children, and a head knows {layout.rows} ids"
        yield Problem(key=key, message=message, next_step="give a narrower tree")
    if k is not None and k != len(paths):
        message = f"{k} was given, and speculative_token_tree has {len(paths)} nodes"
        yield Problem(key="num_speculative_tokens", message=message, next_step="leave it out")
    drawn = config.draft_sample_method == "probabilistic"
    if drawn and config.rejection_sample_method == COUPLED and not tree.is_chain:
        message = "with the target's own noise there is one draw a place, and a tree has several tokens there"
        yield Problem(key="draft_sample_method", message=message, next_step="leave one of the two out")
