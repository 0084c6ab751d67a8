"""`coupled`: a draft is accepted iff it equals what is drawn at its place; so the text does not depend on drafts.

Draws use noise keyed by (request, position, token id), greedy rows take the argmax. Every emitted token is therefore a
fresh draw from the target's own distribution (sample-and-match), exact for any drafts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specdec_core.draft import BoolArray, Draft, IntArray, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from specdec_core.noise import Noise
    from specdec_core.registry.kernels import Kernels
    from specdec_plugin_verifiers.trial import Trial


class Coupled:
    """Compares drafts with the draws at their places; on a tree it walks to the child that equals the draw.

    With kernels it draws by itself, by the op that the host's sampler uses too (`draw`), and on another device than the
    CPU it does all of it there (`verify_coupled`). Draws that a host gives are taken as they are.
    """

    def __init__(self, kernels: Kernels | None = None) -> None:
        """Take the session's kernels; without them the host has to draw."""
        self._kernels = kernels

    @property
    def draws_for_itself(self) -> bool:
        """Whether the host need not draw."""
        return self._kernels is not None

    def verify(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Verdict:
        """Return the accepted path of each row; see `specdec_core.protocols.Verifier`."""
        lengths = np.asarray(draft.lengths, np.int32)
        if target_draws is None:
            if self._kernels is None:
                message = "the verifier 'coupled' compares with the host's draws, but the host gave none"
                raise ValueError(message)
            if logits.device.type != "cpu":
                from specdec_plugin_verifiers.ending import read

                trial = self._trial(draft, logits, noise, None, greedy)
                return read(trial, trial.op("verify_coupled")(trial))
            rows = np.repeat(np.asarray(greedy, np.bool_), lengths + 1)
            target_draws = self._kernels.get("draw", logits.device)(logits, noise, rows)
        draws = target_draws.cpu().numpy().astype(np.int32)
        if draft.parents is None:
            return _chains(draft.tokens, lengths, draws)
        return _trees(draft.tokens, draft.parents, lengths, draws)

    def verify_on_device(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Tensor:
        """Decide without a read; see `specdec_core.protocols.VerifiesOnDevice`. Needs kernels."""
        trial = self._trial(draft, logits, noise, target_draws, greedy)
        result: Tensor = trial.op("verify_coupled")(trial)
        return result

    def _trial(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Trial:
        from specdec_plugin_verifiers.trial import Trial

        if self._kernels is None:
            message = "the verifier 'coupled' was made without kernels, and cannot verify on a device"
            raise ValueError(message)
        return Trial.of(self._kernels, None, draft, logits, noise, target_draws, greedy)


def _chains(tokens: IntArray, lengths: IntArray, draws: IntArray) -> Verdict:
    """Verify chains: draft i of a row is accepted iff all before it are and it equals the draw at its parent's row."""
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
