"""`coupled`: a draft stands iff it equals what the host drew at its place; so the text does not depend on drafts.

The host's draws use noise keyed by (request, position, token id), greedy rows take the argmax. Every emitted token is
therefore a fresh draw from the target's own law (sample-and-match), exact for any drafts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from specdec_core.draft import BoolArray, Draft, IntArray, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from specdec_core.noise import Noise


class Coupled:
    """Compares drafts with the host's draws; on a tree it walks to the child that equals the draw."""

    def verify(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Verdict:
        """Return the accepted path of each row; see `specdec_core.protocols.Verifier`. Needs the host's draws."""
        if target_draws is None:
            message = "the verifier 'coupled' compares with the host's draws, but the host gave none"
            raise ValueError(message)
        draws = target_draws.cpu().numpy().astype(np.int32)
        lengths = np.asarray(draft.lengths, np.int32)
        if draft.parents is None:
            return _chains(draft.tokens, lengths, draws)
        return _trees(draft.tokens, draft.parents, lengths, draws)


def greedy_verdict(
    draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
) -> Verdict:
    """Return the verdict of every rule for greedy requests: a draft stands iff it is the most likely id at its place.

    The host's draws at greedy rows are those ids; without them, the lowest of equal ones is taken.
    """
    draws = argmax(logits) if target_draws is None else target_draws
    return Coupled().verify(draft, logits, noise, draws, greedy)


def argmax(logits: Tensor) -> Tensor:
    """Return the most likely id of each row, [a] int64, the lowest of equal ones."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(-1))  # vectorised, which torch's is not
    return logits.argmax(-1)


def _chains(tokens: IntArray, lengths: IntArray, draws: IntArray) -> Verdict:
    """Verify chains: draft i of a row stands iff all before it stand and it equals the draw at its parent's row."""
    # Plain lists: for the few numbers of a step they are quicker than arrays.
    drafted, drawn = tokens.tolist(), draws.tolist()
    accepted: list[int] = []
    path: list[int] = []
    rows: list[int] = []
    start = row = 0
    for length in lengths.tolist():
        count = 0
        while count < length and drafted[start + count] == drawn[row + count]:
            count += 1
        accepted.append(count)
        path.extend(range(count))
        rows.extend(range(row, row + count + 1))
        start, row = start + length, row + length + 1
    taken = np.array(rows, np.int32)
    return Verdict(np.array(accepted, np.int32), np.array(path, np.int32), draws[taken], taken)


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
