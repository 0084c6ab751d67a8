"""EAGLE-2's dynamic trees (arXiv 2406.16858, section 4): expand the likeliest nodes, then keep the best of all.

The form of a tree follows from scores, so it grows where these are. On another device than the CPU it stays there, form
and all (`Draft.is_grown`): how many nodes it has is known without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import Draft, IntArray
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.device_copies import to_device
from specdec_nn.drafters.hidden_state import FeatureHead, Round
from specdec_nn.ops.ancestor_bits.reference import WORD
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
        parents = torch.zeros((requests, k), dtype=torch.int64, device=device)  # rows of `states`
        all_parents = [parents - 1]
        frontier = torch.arange(k, device=device).expand(requests, k)  # places in the flat list
        # A node needs all its ancestors in the draft, so none is chosen that is deeper than the limit.
        levels = min(self._depth, int(drafts.limits.max())) - 1
        own = _own_bits(levels, k, device)
        bits = torch.zeros((requests, 1, own.shape[2]), dtype=torch.int64, device=device)
        for depth in range(levels):
            features, flat, positions = self._draft_rows(head.feedback(states), parents, tokens, starts, depth)
            bits = bits.gather(1, parents[:, :, None].expand(-1, -1, bits.shape[2])) | own[depth]
            step = cache.append(drafts.names, [k] * requests, grown=bits.flatten(0, 1))
            states = head.forward(flat, features, positions, cache.arena, step, depth + 1).view(requests, k, -1)
            children, cumulative = self._children(head, states, scores)
            width = children.shape[1] // k
            offset = sum(part.shape[1] for part in all_parents)
            all_tokens.append(children)
            all_scores.append(cumulative)
            all_parents.append(frontier[:, :, None].expand(-1, -1, width).flatten(1))
            # The lowest index first among equals, so that a parent never loses to its child.
            scores, best = (part[:, :k] for part in torch.sort(cumulative, dim=1, descending=True, stable=True))
            tokens, parents, frontier = children.gather(1, best), best // width, offset + best
        found, likely, above = (torch.cat(parts, 1) for parts in (all_tokens, all_scores, all_parents))
        if device.type != "cpu":
            return likeliest_there(found, likely, above, drafts.limits)
        return likeliest(found.numpy(), likely.numpy(), above.numpy(), drafts.limits)

    def _children(self, head: FeatureHead, states: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return target ids and cumulative scores [A, n * top_k] of the children of states [A, n, H]."""
        logits = head.logits(states.flatten(0, 1)).float()
        ids, cumulative = self._expand(logits, scores.flatten(), min(self._top_k, logits.shape[1]))
        ids = ids if head.d2t is None else ids + head.d2t[ids]
        return ids.view(len(states), -1), cumulative.view(len(states), -1)


def _own_bits(levels: int, k: int, device: torch.device) -> Tensor:
    """Return the bit of each row that is run, [levels, k, words] int64; level after level, k rows a level."""
    rows = np.arange(levels * k)
    bits = np.zeros((levels * k, levels * k // WORD + 1), np.uint64)
    bits[rows, rows // WORD] = np.uint64(1) << (rows % WORD).astype(np.uint64)
    return to_device(bits.view(np.int64).reshape(levels, k, bits.shape[1]), device)


def likeliest(
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


def likeliest_there(tokens: Tensor, scores: Tensor, parents: Tensor, limits: IntArray) -> Draft:
    """Return what `likeliest` does where the scores are, without a wait for their device."""
    (requests, nodes), device = tokens.shape, tokens.device
    counts = np.minimum(limits, nodes)
    most = int(counts.max())
    order = torch.sort(-scores, dim=1, stable=True).indices[:, :most]
    within = np.arange(most) < counts[:, None]
    ragged = not within.all()
    if ragged:
        order = torch.where(to_device(within, device), order, nodes)
    chosen = order.sort(dim=1).values  # what is beyond a limit comes last
    # Where each node of the list comes to be: first the parent -1, then the nodes, then what is beyond a limit.
    place = torch.full((requests, nodes + 2), -1, dtype=torch.int64, device=device)
    place.scatter_(1, chosen + 1, torch.arange(most, device=device).expand(requests, -1))
    chosen = chosen.clamp_max(nodes - 1)
    above = place.gather(1, parents.gather(1, chosen) + 1)
    parts = [part.flatten() for part in (tokens.gather(1, chosen), above, scores.gather(1, chosen).exp())]
    if ragged:
        flat = to_device(np.flatnonzero(within), device)
        parts = [part[flat] for part in parts]
    ids, above, likely = parts
    # The fields are tensors as long as the draft is on a device.
    drafted: Any = ids.int(), above.int(), likely
    return Draft(counts.tolist(), drafted[0], drafted[1], confidence=drafted[2])
