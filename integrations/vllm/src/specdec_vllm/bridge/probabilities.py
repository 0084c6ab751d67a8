"""The distributions that soft drafts were drawn from, in the form in which vLLM's rejection sampler takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from specdec_core.draft import BoolArray, Draft

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def probabilities(draft: Draft, names: Sequence[str], vocab_size: int) -> tuple[Tensor, list[str]] | None:
    """Return q [R, longest, V] float32 of the R requests with drafts, and these; None if all are point masses.

    `draft` is a chain for each of `names`, in host form. A point mass beside drawn drafts is a distribution of its own.
    Distributions over a part of the vocabulary get 0 for the other ids. What stands behind the end of a draft is never
    read.
    """
    import torch

    if draft.q is None or draft.q_row is None or not bool((draft.q_row >= 0).any()):
        return None
    lengths = np.asarray(draft.lengths, np.int64)
    drafting = np.flatnonzero(lengths)
    lengths = lengths[drafting]
    device = draft.q.device
    distributions = torch.zeros((len(drafting), int(lengths.max()), vocab_size), dtype=torch.float32, device=device)
    rows = np.repeat(np.arange(len(drafting)), lengths)
    depths = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # One row of a flat view for each draft.
    places = torch.from_numpy(rows * distributions.shape[1] + depths).to(device)
    flat = distributions.view(-1, vocab_size)
    drawn = draft.q_row >= 0
    soft, point = places[_index(drawn, device)], places[_index(~drawn, device)]
    given = draft.q[torch.from_numpy(draft.q_row[drawn].astype(np.int64)).to(device)].float()
    if draft.d2t is None:
        flat[soft] = given
    else:
        ids = torch.arange(given.shape[1], device=device) + draft.d2t.to(device)
        flat[soft[:, None], ids[None, :]] = given
    flat[point, torch.from_numpy(draft.tokens[~drawn].astype(np.int64)).to(device)] = 1.0
    return distributions, [names[i] for i in drafting.tolist()]


def _index(mask: BoolArray, device: torch.device) -> Tensor:
    import torch

    return torch.from_numpy(np.flatnonzero(mask)).to(device)
