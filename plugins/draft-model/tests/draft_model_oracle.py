"""What a draft model drafts, by the stock model alone: the whole text in every forward, no cache, in float64.

Shares no code with the plugin: tables of ids are plain mappings, written down by each test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import BatchView, Draft
from specdec_core.protocols import Proposer


@dataclass(frozen=True)
class Ids:
    """How ids are translated: target id -> draft id, draft id -> target id, and what is read for target ids without."""

    to_draft: Mapping[int, int]
    to_target: Mapping[int, int]
    unknown: int = 0

    @classmethod
    def same(cls, size: int) -> Ids:
        table = {i: i for i in range(size)}
        return cls(table, table)

    def spell(self, tokens: Sequence[int]) -> list[int]:
        return [self.to_draft.get(int(token), self.unknown) for token in tokens]


@dataclass
class Oracle:
    """Greedy drafts of one model.

    margin  the smallest gap between the two best logits that a draft rested on
    """

    folder: str
    ids: Ids
    pard_token: int | None = None
    margin: float = float("inf")
    distributions: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        import transformers

        model = transformers.AutoModelForCausalLM.from_pretrained(
            self.folder, attn_implementation="eager", experts_implementation="eager"
        )
        self.model: Any = model.double().eval()

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Return the logits [n, V_d] of a text, ids that may not be proposed at minus infinity."""
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
        allowed = torch.full((logits.shape[1],), -torch.inf, dtype=torch.float64)
        allowed[list(self.ids.to_target)] = 0.0
        return logits + allowed

    def drafts(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return the `count` drafts behind all known target ids."""
        if not count:
            return []
        text = self.ids.spell(tokens)
        if self.pard_token is not None:
            rows = self.logits([*text, *[self.pard_token] * (count - 1)])[len(text) - 1 :]
            return [self._best(row) for row in rows]
        drafted: list[int] = []
        for _ in range(count):
            drafted.append(self._best(self.logits(text)[-1]))
            text.append(self.ids.to_draft[drafted[-1]])
        return drafted

    def _best(self, row: Tensor) -> int:
        best = row.topk(2)
        self.margin = min(self.margin, float(best.values[0] - best.values[1]))
        return self.ids.to_target[int(best.indices[0])]


class Checked:
    """A proposer whose every draft is held against the oracle's."""

    def __init__(self, inner: Proposer, oracle: Oracle, end: int = 10**6) -> None:
        """No draft is expected at position `end` or beyond."""
        self.inner, self.oracle, self.end = inner, oracle, end
        self.compared: list[tuple[int, int]] = []  # known ids and drafts of each row

    def start(self, request: Any) -> None:
        self.inner.start(request)

    def finish(self, request: Any, reason: Any) -> None:
        self.inner.finish(request, reason)

    def close(self) -> None:
        self.inner.close()

    def propose(self, batch: BatchView) -> Draft:
        draft = self.inner.propose(batch)
        ends = np.cumsum(draft.lengths or ())
        for i, end in enumerate(ends.tolist()):
            tokens = batch.request(i).tokens.tolist()
            count = min(int(batch.max_draft[i]), max(0, self.end - len(tokens)))
            got = draft.tokens[end - (draft.lengths or ())[i] : end].tolist()
            assert got == self.oracle.drafts(tokens, count), f"{batch.request(i).id} of {len(tokens)} ids"
            if count:
                self.compared.append((len(tokens), count))
        return draft
