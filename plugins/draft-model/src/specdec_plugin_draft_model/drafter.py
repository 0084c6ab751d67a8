"""Drafts ids that target and drafter share, one after the other or all in one pass over mask tokens; no texts here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import BatchView, Draft, FinishReason, IntArray, RequestView
from specdec_nn.drafters.draft_sampler import DraftSampler, Picks
from specdec_nn.drafters.hidden_state import spread
from specdec_plugin_draft_model.running import Runner, Text
from specdec_plugin_draft_model.vocabulary import Vocabulary

Indices = npt.NDArray[np.int64]


@dataclass(slots=True)
class Wanted:
    """The requests that get drafts in this step: their batch rows [A], names and the most drafts of each [A]."""

    index: Indices
    names: list[str]
    limits: IntArray
    batch: BatchView


class DraftModel:
    """A proposer that reads the ids of requests alone; `traits.rows` is "none"."""

    def __init__(
        self,
        runner: Runner,
        vocabulary: Vocabulary,
        sampler: DraftSampler,
        max_position: int,
        *,
        parallel: bool,
        threshold: float | None,
    ) -> None:
        """Take the parts. No id is read or drafted at `max_position` or beyond; `threshold` ends drafts early."""
        self._runner = runner
        self._vocabulary = vocabulary
        self._sampler = sampler
        self._end = max_position
        self._parallel = parallel
        self._threshold = threshold
        self._settled: dict[str, int] = {}  # how many ids were known at the last call

    def start(self, request: RequestView) -> None:
        """Begin with no rows."""
        self._runner.open(request.id)
        self._settled[request.id] = 0

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Give the request's rows back."""
        self._runner.close(request.id)
        self._settled.pop(request.id, None)

    def close(self) -> None:
        """Give everything back."""
        self._runner.clear()
        self._settled.clear()

    def memory_bytes(self) -> int:
        """Return the size of the cache."""
        return self._runner.memory_bytes()

    def propose(self, batch: BatchView) -> Draft:
        """Take in what is known of all requests, and draft for those that may have drafts and have been caught up."""
        room = np.array([self._end - len(request.tokens) for request in batch.requests], np.int64)
        limits = np.minimum(batch.max_draft, np.maximum(room, 0)).astype(np.int32)
        texts = [self._text(request, int(limits[i])) for i, request in enumerate(batch.requests)]
        with torch.inference_mode():
            there, logits = self._runner.take_in(texts)
            if logits is None:
                return Draft.empty(len(batch))
            index = np.array(there, np.int64)
            drafts = Wanted(index, [texts[i].name for i in there], limits[index], batch)
            picks = self._sampler.begin(drafts, self._vocabulary.d2t)
            (self._fill_in if self._parallel else self._go_on)(drafts, picks, logits)
            return spread(picks.draft(), index, len(batch))

    def _text(self, request: RequestView, limit: int) -> Text:
        """Return what has come since the last call, in the drafter's ids."""
        tokens = request.tokens[: self._end]
        settled = min(self._settled[request.id], self._runner.rows(request.id), len(tokens) - 1)
        self._settled[request.id] = len(tokens)
        masks = limit - 1 if self._parallel else 0
        return Text(request.id, settled, self._vocabulary.spell(tokens[settled:]), masks if limit else None)

    def _go_on(self, drafts: Wanted, picks: Picks, logits: Tensor) -> None:
        """Draft one id after the other, each from the row of the one before."""
        active = np.arange(len(drafts.names))
        ran: list[tuple[Indices, Tensor]] = []
        for depth in range(int(drafts.limits.max())):
            tokens, sure = self._pick(picks, logits, active, depth)
            going = np.flatnonzero((drafts.limits[active] > depth + 1) & sure)
            if not len(going):
                break
            active = active[going]
            ids = self._vocabulary.spell_drafts(tokens[torch.from_numpy(going).to(tokens.device)])
            ran.append((active, ids))
            logits = self._runner.extend([drafts.names[i] for i in active.tolist()], ids)
        for chains, ids in ran:
            for chain, token in zip(chains.tolist(), ids.tolist(), strict=True):
                self._runner.note(drafts.names[chain], [token])

    def _fill_in(self, drafts: Wanted, picks: Picks, logits: Tensor) -> None:
        """Draft all ids from rows that have run already: the newest id's, and those of mask tokens behind it."""
        first = np.cumsum(drafts.limits) - drafts.limits
        active = np.arange(len(drafts.names))
        for depth in range(int(drafts.limits.max())):
            rows = torch.from_numpy((first[active] + depth).astype(np.int64)).to(logits.device)
            _, sure = self._pick(picks, logits[rows], active, depth)
            active = active[(drafts.limits[active] > depth + 1) & sure]
            if not len(active):
                break

    def _pick(self, picks: Picks, logits: Tensor, active: Indices, depth: int) -> tuple[Tensor, npt.NDArray[np.bool_]]:
        """Return drafted target ids [a], and which chains may go on behind them.

        An unsure id is drafted all the same: left out, it would be as if unlikely ids were never drawn, and the
        distribution that is reported would not be the one of those that are.
        """
        narrowed = self._vocabulary.narrow(logits)
        tokens = picks.pick(narrowed, active, depth)
        if self._threshold is None:
            return tokens, np.ones(len(active), np.bool_)
        return tokens, (self._vocabulary.probabilities(narrowed, tokens) >= self._threshold).cpu().numpy()
