"""Drafts on the level of texts, for a drafter with another tokenizer: in its own ids, answered in the target's."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import BatchView, Draft, FinishReason, RequestView
from specdec_plugin_draft_model.bridge import Bridge, Spelled
from specdec_plugin_draft_model.running import Runner, Text


@dataclass(slots=True)
class _Draft:
    """One request in a step: its text in the drafter's ids, the most ids that may be drafted behind
    it, and those that were."""

    row: int
    name: str
    ids: list[int]
    limit: int
    drafted: list[int]


class TextDraftModel:
    """A proposer that reads the ids of requests alone; `traits.rows` is "none"."""

    def __init__(
        self, runner: Runner, bridge: Bridge, max_position: int, ends: Collection[int], *, threshold: float | None
    ) -> None:
        """Take the parts. The drafter reads and drafts no id of its own at `max_position` or beyond.

        `ends` are ids of the drafter that end a text, and so a draft; `threshold` ends drafts early.
        """
        self._runner = runner
        self._bridge = bridge
        self._end = max_position
        self._ends = frozenset(ends)
        self._threshold = threshold
        self._spelled: dict[str, Spelled] = {}

    def start(self, request: RequestView) -> None:
        """Begin with no rows."""
        self._runner.open(request.id)
        self._spelled[request.id] = self._bridge.begin()

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Give the request's rows back."""
        self._runner.close(request.id)
        self._spelled.pop(request.id, None)

    def close(self) -> None:
        """Give everything back."""
        self._runner.clear()
        self._spelled.clear()

    def memory_bytes(self) -> int:
        """Return the size of the cache."""
        return self._runner.memory_bytes()

    def propose(self, batch: BatchView) -> Draft:
        """Take in the texts of all requests, and draft for those that may have drafts and have been caught up."""
        drafts: list[_Draft] = []
        texts: list[Text] = []
        for i, request in enumerate(batch.requests):
            text, draft = self._text(i, request, int(batch.max_draft[i]))
            if text is not None:
                texts.append(text)
                drafts.append(draft)
        with torch.inference_mode():
            there, logits = self._runner.take_in(texts)
            if logits is not None:
                self._go_on([drafts[i] for i in there], logits)
        rows: list[list[int]] = [[] for _ in batch.requests]
        for draft in (drafts[i] for i in there):
            answer = self._bridge.answer(batch.request(draft.row).tokens, draft.ids, draft.drafted)
            rows[draft.row] = answer[: int(batch.max_draft[draft.row])]
        return Draft.of(rows)

    def _text(self, row: int, request: RequestView, limit: int) -> tuple[Text | None, _Draft]:
        """Spell a request's text; None for one that is beyond the drafter's end."""
        spelled = self._spelled[request.id]
        frozen = len(spelled.frozen)
        ids = self._bridge.read(spelled, request.tokens)
        room = min(limit, self._end - len(ids))
        draft = _Draft(row, request.id, ids, room, [])
        if not ids or room < 0:
            return None, draft
        settled = min(frozen, self._runner.rows(request.id), len(ids) - 1)
        tail = np.array(ids[settled:], np.int64)
        return Text(request.id, settled, tail, 0 if room > 0 else None), draft

    def _go_on(self, drafts: list[_Draft], logits: Tensor) -> None:
        """Draft one id after the other in each text, until its limit or an id that is no text."""
        active = list(range(len(drafts)))
        ran: list[tuple[str, int]] = []
        while active:
            logits = logits[:, : self._bridge.draft_ids]
            tokens = logits.argmax(dim=-1)
            sure = [True] * len(active)
            if self._threshold is not None:
                chosen = logits.float().softmax(dim=-1).gather(1, tokens[:, None])[:, 0]
                sure = (chosen >= self._threshold).tolist()
            ids = tokens.tolist()
            going = []
            for i, (chain, token) in enumerate(zip(active, ids, strict=True)):
                draft = drafts[chain]
                if token in self._ends or self._bridge.is_special(token):
                    continue
                draft.drafted.append(token)
                if sure[i] and len(draft.drafted) < draft.limit:
                    going.append(i)
            active = [active[i] for i in going]
            if active:
                names = [drafts[chain].name for chain in active]
                logits = self._runner.extend(names, tokens[torch.tensor(going, device=tokens.device)])
                ran += zip(names, (ids[i] for i in going), strict=True)
        for name, token in ran:
            self._runner.note(name, [token])
