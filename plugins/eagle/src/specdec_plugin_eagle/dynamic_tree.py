"""EAGLE-2's dynamic trees (arXiv 2406.16858, section 4): expand the likeliest nodes, then keep the best of all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import Draft, IntArray
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.device_copies import read, to_device
from specdec_nn.drafters.hidden_state import FeatureHead, Round
from specdec_plugin_eagle.static_tree import DraftRows

Expand = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


class DynamicTreePlan:
    """top_k children a node, the top_k best of a level are expanded, `depth` levels; the best nodes are the draft."""

    def __init__(self, top_k: int, depth: int, expand: Expand, draft_rows: DraftRows) -> None:
        """Take the shape and the kernels `tree_expand` and `draft_rows`."""
        self._top_k, self._depth, self._expand, self._draft_rows = top_k, depth, expand, draft_rows

    def __call__(self, drafts: Round, head: FeatureHead, cache: DraftCache) -> Draft:
        """Return for each request the `limits` best nodes."""
        requests, device = len(drafts.names), drafts.states.device
        starts = to_device(drafts.positions.astype(np.int64), device)
        states = drafts.states[:, None]
        zero = torch.zeros(requests, dtype=torch.float32, device=device)
        tokens, scores = self._children(head, states, zero[:, None])
        k = tokens.shape[1]
        all_tokens, all_scores = [tokens], [scores]
        all_parents = [np.full((requests, k), -1, np.int64)]
        frontier = np.tile(np.arange(k), (requests, 1))  # places in the flat list
        parents = torch.zeros((requests, k), dtype=torch.int64, device=device)  # rows of `states`
        rows = np.full((requests, k), -1, np.int64)  # rows of this round that they come from
        # A node needs all its ancestors in the draft, so none is chosen that is deeper than the limit.
        for depth in range(min(self._depth, int(drafts.limits.max())) - 1):
            features, flat, positions = self._draft_rows(head.feedback(states), parents, tokens, starts, depth)
            step = cache.append(drafts.names, [k] * requests, parents=rows.flatten())
            states = head.forward(flat, features, positions, cache.arena, step, depth + 1).view(requests, k, -1)
            children, cumulative = self._children(head, states, scores)
            width = children.shape[1] // k
            offset = sum(part.shape[1] for part in all_parents)
            all_tokens.append(children)
            all_scores.append(cumulative)
            all_parents.append(np.repeat(frontier, width, axis=1))
            # The lowest index first among equals, so that a parent never loses to its child.
            scores, best = (part[:, :k] for part in torch.sort(cumulative, dim=1, descending=True, stable=True))
            tokens, parents = children.gather(1, best), best // width
            chosen = best.cpu().numpy()
            frontier, rows = offset + chosen, depth * k + chosen // width
        ids, likely = read((torch.cat(all_tokens, 1), torch.cat(all_scores, 1)))
        return _best(ids, likely, np.concatenate(all_parents, 1), drafts.limits)

    def _children(self, head: FeatureHead, states: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return target ids and cumulative scores [A, n * top_k] of the children of states [A, n, H]."""
        logits = head.logits(states.flatten(0, 1)).float()
        ids, cumulative = self._expand(logits, scores.flatten(), min(self._top_k, logits.shape[1]))
        ids = ids if head.d2t is None else ids + head.d2t[ids]
        return ids.view(len(states), -1), cumulative.view(len(states), -1)


def _best(
    tokens: npt.NDArray[np.int64], scores: npt.NDArray[np.float32], parents: npt.NDArray[np.int64], limits: IntArray
) -> Draft:
    """Return the best nodes of each request in the order of the flat list, parents before children.

    tokens, scores, parents [A, n]; a parent is an index of the list, -1 the newest id. Its score is never below its
    child's, and it stands earlier, so it is chosen wherever its child is.
    """
    order = np.argsort(-scores, axis=1, kind="stable")
    rows = []
    for row, limit in enumerate(limits.tolist()):
        chosen = np.sort(order[row, :limit])
        place = np.full(tokens.shape[1] + 1, -1, np.int32)  # the last entry serves parent -1
        place[chosen] = np.arange(len(chosen))
        rows.append((tokens[row, chosen], place[parents[row, chosen]], np.exp(scores[row, chosen])))
    ids, above, likely = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    return Draft(
        lengths=[len(row[0]) for row in rows],
        tokens=ids.astype(np.int32),
        parents=above.astype(np.int32),
        confidence=likely.astype(np.float32),
    )
