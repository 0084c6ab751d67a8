"""`coupled`: a draft stands iff it equals what the host drew at its place; so the text does not depend on drafts.

The host's draws use noise keyed by (request, position, token id), greedy rows take the argmax. Every emitted token is
therefore a fresh draw from the target's own law (sample-and-match), exact for any drafts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specdec.draft import Draft, IntArray, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from specdec.noise import Noise


class Coupled:
    """Compares drafts with the host's draws; on a tree it walks to the child that equals the draw."""

    def verify(self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None) -> Verdict:
        """Return the accepted path of each row; see `specdec.protocols.Verifier`. Needs the host's draws."""
        if target_draws is None:
            message = "the verifier 'coupled' compares with the host's draws, but the host gave none"
            raise ValueError(message)
        draws = target_draws.cpu().numpy().astype(np.int32)
        lengths = np.asarray(draft.lengths, np.int32)
        if draft.parents is None:
            return _chains(draft.tokens, lengths, draws)
        return _trees(draft.tokens, draft.parents, lengths, draws)


def _chains(tokens: IntArray, lengths: IntArray, draws: IntArray) -> Verdict:
    """Verify chains: draft i of a row stands iff all before it stand and it equals the draw at its parent's row."""
    n = len(lengths)
    first_row = np.arange(n) + np.cumsum(lengths) - lengths  # logits row of each batch row's newest id
    owner = np.repeat(np.arange(n), lengths)
    index = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    equal = tokens == draws[first_row[owner] + index]
    # The first mismatch of a row is the smallest index where the draw differs, or the row's length.
    accepted = lengths.copy()
    np.minimum.at(accepted, owner[~equal], index[~equal])
    total = accepted + 1
    within = np.arange(int(total.sum())) - np.repeat(np.cumsum(total) - total, total)
    rows = np.repeat(first_row, total) + within
    path = np.arange(int(accepted.sum())) - np.repeat(np.cumsum(accepted) - accepted, accepted)
    return Verdict(
        accepted=accepted.astype(np.int32),
        path=path.astype(np.int32),
        emitted=draws[rows],
        logits_row=rows.astype(np.int32),
    )


def _trees(tokens: IntArray, parents: IntArray, lengths: IntArray, draws: IntArray) -> Verdict:
    """Verify trees: from the newest id, go to the child that equals the draw at the node, until there is none."""
    accepted: list[int] = []
    path: list[int] = []
    rows: list[int] = []
    node_start = row_start = 0
    for length in lengths.tolist():
        children = {
            (int(parents[node_start + node]), int(tokens[node_start + node])): node for node in reversed(range(length))
        }
        node, steps = -1, 0
        rows.append(row_start)
        while (child := children.get((node, int(draws[row_start + 1 + node])))) is not None:
            path.append(child)
            rows.append(row_start + 1 + child)
            node, steps = child, steps + 1
        accepted.append(steps)
        node_start += length
        row_start += length + 1
    taken = np.array(rows, np.int32)
    return Verdict(np.array(accepted, np.int32), np.array(path, np.int32), draws[taken], taken)
