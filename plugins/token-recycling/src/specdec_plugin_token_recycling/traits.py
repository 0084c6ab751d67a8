"""What `token_recycling` is, and k where nobody gives one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specdec_core.context import MethodContext
from specdec_core.sources import Default
from specdec_core.traits import MethodTraits
from specdec_plugin_token_recycling.options import RecyclingOptions

NODES: Final = 15  # with the newest id, sixteen rows
DEPTH: Final = 5  # of a chain


def traits_of(ctx: MethodContext[RecyclingOptions]) -> MethodTraits:
    """Return chains or trees, from what the target answered at earlier rows."""
    options = ctx.options
    return MethodTraits(
        shape="chain" if options.tree == "chain" else "tree",
        remembers=options.shared,
        verified_top_k=options.candidates,
        max_tokens=len(options.template) if options.template is not None else None,
    )


def defaults_of(ctx: MethodContext[RecyclingOptions]) -> Sequence[Default]:
    """Return k."""
    options = ctx.options
    if options.template is not None:
        value, reason = len(options.template), f"the template has {len(options.template)} nodes"
    elif options.tree == "chain":
        value, reason = DEPTH, "candidates of candidates are seldom right further on"
    else:
        value, reason = NODES, "with the newest id sixteen rows, which cost little more than one"
    return [Default(key="num_speculative_tokens", value=value, reason=reason)]


def expected_failures() -> Mapping[str, str]:
    """Return what does not hold while requests share a table."""
    return {
        "test_a_batch_drafts_what_its_rows_draft_alone": "drafts may depend on outputs of other requests",
        "test_a_name_can_be_used_again_after_finish": "what ranks are worth is learnt from all requests",
    }
