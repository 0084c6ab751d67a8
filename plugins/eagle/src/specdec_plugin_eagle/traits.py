"""What a configured head needs and gives, which k it asks for, and what is wrong with it; no torch."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.config.speculative import COUPLED, SpeculativeConfig
from specdec_core.sources import Default, DraftSource, Note, Problem, TargetInfo
from specdec_core.token_tree import TokenTree
from specdec_core.traits import MethodTraits
from specdec_nn.checkpoints import speculators
from specdec_plugin_eagle.layout import EagleReader
from specdec_plugin_eagle.options import EagleOptions


def traits_of(
    method: str, config: SpeculativeConfig, options: EagleOptions, draft: DraftSource | None, target: TargetInfo
) -> MethodTraits:
    """Return the traits; of a checkpoint that cannot be used, those of a usual one."""
    layout = None if draft is None else EagleReader(method, draft, options, target).layout()
    tree = options.speculative_token_tree
    branches = options.tree_top_k is not None or (tree is not None and not TokenTree(tree).is_chain)
    drawn = config.draft_sample_method == "probabilistic"
    parallel = layout is not None and layout.mask_token is not None
    return MethodTraits(
        shape="tree" if branches else "chain",
        rows="all",
        hidden=layout is None or not layout.aux,
        aux_layers=() if layout is None else layout.aux,
        law="soft" if drawn else "deterministic",
        shares_noise=drawn and config.rejection_sample_method == COUPLED,
        weights="own",
        vocabulary="subset" if layout is not None and layout.has("d2t") else "target",
        max_tokens=len(tree) if tree is not None else None,
        when_off="gap",
        extra_slots=(config.num_speculative_tokens or 1) - 1 if parallel else 0,
    )


def defaults_of(options: EagleOptions, draft: DraftSource | None) -> Sequence[Default]:
    """Return k where the tree or the checkpoint says it."""
    tree = options.speculative_token_tree
    if tree is not None:
        reason = f"the nodes of speculative_token_tree, {len(tree)}"
        return [Default(key="num_speculative_tokens", value=len(tree), reason=reason)]
    proposed = None if draft is None else speculators.proposed_tokens(draft.hf_config)
    if proposed is None:
        return []
    reason = "speculative_tokens of the checkpoint's first proposal method"
    return [Default(key="num_speculative_tokens", value=proposed, reason=reason)]


def problems_of(
    method: str, config: SpeculativeConfig, options: EagleOptions, draft: DraftSource | None, target: TargetInfo
) -> Sequence[Problem | Note]:
    """Return everything that is wrong, and what was read otherwise than its place says."""
    if draft is None:
        message = "an EAGLE head is a checkpoint of its own, and none was given"
        return [Problem(key="model", message=message, next_step="give its folder, file or hub id as model")]
    reading = EagleReader(method, draft, options, target)
    layout = reading.layout()
    problems = reading.problems
    drawn = config.draft_sample_method == "probabilistic"
    if drawn and options.tree_top_k is not None:
        message = "a dynamic tree keeps its likeliest tokens, so they are not drawn from a law"
        problems.append(Problem(key="draft_sample_method", message=message, next_step="use greedy, or a static tree"))
    if drawn and config.rejection_sample_method == COUPLED and options.speculative_token_tree is not None:
        if not TokenTree(options.speculative_token_tree).is_chain:
            message = "with the target's own noise there is one draw a place, and a tree has several tokens there"
            problems.append(Problem(key="draft_sample_method", message=message, next_step="leave one of the two out"))
    tree, k = options.speculative_token_tree, config.num_speculative_tokens
    widest = 0 if tree is None else max(map(len, TokenTree(tree).children.values()))
    if layout is not None and widest > layout.vocab_size:
        message = f"a node has {widest} children, and the head knows {layout.vocab_size} ids"
        problems.append(Problem(key="speculative_token_tree", message=message, next_step="give a narrower tree"))
    if tree is not None and k is not None and k != len(tree):
        message = f"{k} was given, and speculative_token_tree has {len(tree)} nodes"
        problems.append(Problem(key="num_speculative_tokens", message=message, next_step="leave it out"))
    return [*problems, *reading.notes]
