"""What configured suffix decoding gives, and which k it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specdec_core.context import MethodContext
from specdec_core.sources import Default
from specdec_core.traits import MethodTraits, Shape
from specdec_plugin_suffix.options import SuffixOptions

SHARES = "requests of one namespace share what they have said, so company adds drafts"


def traits_of(ctx: MethodContext[SuffixOptions]) -> MethodTraits:
    """Return the traits; a shared cache makes drafts depend on earlier outputs."""
    shape: Shape = "tree" if ctx.options.tree_drafts else "chain"
    return MethodTraits(shape=shape, remembers=ctx.options.suffix_decoding_max_cached_requests > 0)


def defaults_of(ctx: MethodContext[SuffixOptions]) -> Sequence[Default]:
    """Return k: as vLLM does, the depth of the tree."""
    depth = ctx.options.suffix_decoding_max_tree_depth
    reason = f"no draft is longer than the tree is deep, and that is {depth}"
    return [Default(key="num_speculative_tokens", value=depth, reason=reason)]


def expected_failures() -> Mapping[str, str]:
    """Return what does not hold while requests share a cache."""
    return {"test_a_batch_drafts_what_its_rows_draft_alone": SHARES}
