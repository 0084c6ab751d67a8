"""What a method needs from its host and what its drafts are; hosts branch on these, never on a method's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = Literal["chain", "tree"]
RowsNeeded = Literal["none", "last", "all"]
Law = Literal["deterministic", "soft"]
Weights = Literal["none", "own", "target"]
Vocabulary = Literal["target", "subset", "other"]
WhenOff = Literal["catch_up", "gap", "retire"]


@dataclass(frozen=True, kw_only=True)
class MethodTraits:
    """Capabilities and needs of one configured method.

    shape          "chain": drafts are sequences. "tree": `Draft.parents` may be set.
    rows           which target rows `BatchView.rows` must carry: "none", the "last" committed one of each request,
                   or "all" newly committed ones (shifted layout).
    hidden         the rows carry the target's final hidden states (after the last norm), [rows, H].
    aux_layers     residual-stream indices R_k (the stream after k decoder layers) delivered as `Rows.aux`, ascending.
    law            "deterministic": each draft is a point mass. "soft": drawn from `Draft.q`.
    shares_noise   drafts are drawn with `BatchView.noise`, keyed like the target's own draws.
    weights        "none", "own" (a checkpoint of its own), or "target" (inside the target's checkpoint).
    vocabulary     ids of the drafts: the "target"'s, a "subset" mapped by the method, or an "other" tokenizer's.
    max_tokens     the longest draft that the method can make, None for no limit of its own.
    max_position   drafts may not stand at this position or beyond (a drafter with a short context), None for no limit.
    when_off       what happens to a request while speculation is off for it: "catch_up" (calls are skipped, ids
                   suffice later), "gap" (rows are dropped and a gap is reported), "retire" (the proposer gets
                   `finish(request, "aborted")` and does not see the request again).
    """

    shape: Shape = "chain"
    rows: RowsNeeded = "none"
    hidden: bool = False
    aux_layers: tuple[int, ...] = ()
    law: Law = "deterministic"
    shares_noise: bool = False
    weights: Weights = "none"
    vocabulary: Vocabulary = "target"
    max_tokens: int | None = None
    max_position: int | None = None
    when_off: WhenOff = "catch_up"
