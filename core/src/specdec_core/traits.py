"""What a method needs from its host and what its drafts are; hosts branch on these, never on a method's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = Literal["chain", "tree"]
RowsNeeded = Literal["none", "last", "all"]
DraftDistribution = Literal["deterministic", "soft"]
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
    draft_distribution
                   "deterministic": each draft is a point mass. "soft": drawn from `Draft.q`.
    shares_noise   drafts are drawn with `BatchView.noise`, keyed like the target's own draws.
    remembers      drafts may depend on outputs of other requests, or on what was kept from earlier sessions. The
                   proposer must then have `memory_digest` (`specdec_core.protocols.Remembers`), and where a verifier
                   decides by noise of its own, the host keys that noise by the order of arrival and by the digest as
                   well.
    weights        "none", "own" (a checkpoint of its own), or "target" (inside the target's checkpoint).
    vocabulary     ids of the drafts: the "target"'s, a "subset" mapped by the method, or an "other" tokenizer's.
    max_tokens     the longest draft that the method can make, None for no limit of its own.
    max_position   drafts may not be at this position or beyond (a drafter with a short context), None for no limit.
    when_off       what happens to a request while speculation is off for it: "catch_up" (calls are skipped, ids
                   suffice later), "gap" (rows are dropped and a gap is reported), "retire" (the proposer gets
                   `finish(request, "aborted")` and does not see the request again).
    n_predict      tokens that the drafter's modules (heads, MTP layers) make one after the other, each once; None where
                   there is no such number. With `max_tokens` the same, a larger k is refused; with a larger
                   `max_tokens` or None the modules are used again: such a k must be a multiple of n_predict, and the
                   user is warned.
    tree_nodes     nodes of a tree that is given beforehand: k is then exactly this. None without such a tree.
    extra_slots    input rows that one round of drafting adds for each request to the rows that the target committed:
                   0 for a drafter that is called once a token, k - 1 or k for one that fills in mask tokens.
    verified_top_k the n most likely next ids that `BatchView.verified` carries for each row of the last step, rejected
                   drafts included; 0: the method asks for none, and the host then looks for none.
    num_lookahead_slots
                   positions beyond the newest id for which the drafter writes keys and values. None: k for a drafter
                   with weights, unless it asks for the "last" row only and so keeps no cache; 0 for all others.
    first_layers   how many of the target's decoder layers, from the first on, the drafter runs on rows of its own
                   (`ProposerBuild.first_layers`, `specdec_core.first_layers`); 0: none. A host that cannot run a part
                   of its target refuses the method.
    target_keys    the drafter's queries attend to the target's own keys and values (`ProposerBuild.target_keys`,
                   `specdec_core.target_keys`). A host that cannot lend them refuses the method.
    """

    shape: Shape = "chain"
    rows: RowsNeeded = "none"
    hidden: bool = False
    aux_layers: tuple[int, ...] = ()
    draft_distribution: DraftDistribution = "deterministic"
    shares_noise: bool = False
    remembers: bool = False
    weights: Weights = "none"
    vocabulary: Vocabulary = "target"
    max_tokens: int | None = None
    max_position: int | None = None
    when_off: WhenOff = "catch_up"
    n_predict: int | None = None
    tree_nodes: int | None = None
    extra_slots: int = 0
    verified_top_k: int = 0
    num_lookahead_slots: int | None = None
    first_layers: int = 0
    target_keys: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a number that is invalid."""
        counts = ("extra_slots", "verified_top_k", "num_lookahead_slots", "first_layers")
        least = {"n_predict": 1, "tree_nodes": 1, **dict.fromkeys(counts, 0)}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < low):
                message = f"MethodTraits.{name} must be a whole number of at least {low}, got {value!r}"
                raise ValueError(message)

    def lookahead_tokens(self, k: int) -> int:
        """Return `num_lookahead_slots`, or what None means for k drafts; vLLM calls it num_lookahead_tokens."""
        if self.num_lookahead_slots is not None:
            return self.num_lookahead_slots
        keeps_cache = self.weights != "none" and self.rows != "last"
        return k if keeps_cache else 0
