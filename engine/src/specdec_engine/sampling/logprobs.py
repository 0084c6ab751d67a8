"""Log-probabilities: from rows of logits to the entries that callers see; knows no step and no draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import IntArray
from specdec_core.errors import TargetError
from specdec_engine.outputs import Logprob, Logprobs
from specdec_engine.requests.request import Request

LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]
HEAD_ROWS: Final = 64  # rows of a prompt whose logits are made at one time: a vocabulary is wide
Counts = npt.NDArray[Any]
Emitted = tuple[Request, IntArray, IntArray]  # a request, the ids that it emits, and the rows that they came from
Place = tuple[int, float, int, list[int], list[float]]  # id, its value and rank; the best ids and their values
STRETCH: Final = 64  # ids a block of a row
MODES: Final[tuple[str, ...]] = get_args(LogprobsMode)


def check_mode(mode: object) -> None:
    """Raise TargetError for what is none of `MODES`."""
    if mode not in MODES:
        message = f"logprobs_mode={mode!r} is none of {', '.join(MODES)}"
        raise TargetError(message)


class LogprobReader:
    """Reads rows for requests: of each the chosen id and the best ones, with vLLM's names, shapes and modes.

    Raw modes read the model's own rows, processed modes those after penalties, temperature, truncation and all else.
    Modes that end in "logits" give the logits themselves where the others give their log-softmax.
    """

    def __init__(self, mode: str, tokenizer: Any) -> None:
        """Take one of `MODES`; the tokenizer, if any, gives ids their text."""
        self.processed = mode.startswith("processed")
        self._as_logits = mode.endswith("logits")
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def add(self, emitted: Sequence[Emitted], logits: Tensor) -> None:
        """Add the entries of what requests emit, from the rows of logits [R, V]; those that asked for none get none.

        All requests are read together: what is done to rows is done once a step, not once a row.
        """
        asked = [(request, ids, rows) for request, ids, rows in emitted if request.logprobs is not None and len(ids)]
        if not asked:
            return
        taken = torch.from_numpy(np.concatenate([rows for _, _, rows in asked])).to(logits.device)
        rows = logits[taken].float()
        values = rows if self._as_logits else torch.log_softmax(rows, dim=-1)
        params = [request.sampling_params for request, _, _ in asked]
        counts = [np.full(len(ids), p.logprobs or 0) for p, (_, ids, _) in zip(params, asked, strict=True)]
        places = iter(_places(rows, values, np.concatenate([ids for _, ids, _ in asked]), np.concatenate(counts)))
        for (request, ids, _), p in zip(asked, params, strict=True):
            assert request.logprobs is not None
            request.logprobs += [self._entry(place, p.detokenize) for place in islice(places, len(ids))]

    def add_prompt(self, request: Request, rows: Tensor) -> None:
        """Add the entries of the next ids of a prompt, from the rows [r, V] before them.

        They are log-probabilities of the model's own rows in every mode, for nothing is drawn there (as in vLLM).
        """
        known, count = request.prompt_logprobs, request.sampling_params.prompt_logprobs
        if known is None or count is None:
            return
        ids = request.tokens[len(known) : len(known) + len(rows)]
        rows = rows.float()
        values, texts = torch.log_softmax(rows, dim=-1), request.sampling_params.detokenize
        known += [self._entry(place, texts) for place in _places(rows, values, ids, np.full(len(ids), count))]

    def _entry(self, place: Place, texts: bool) -> Logprobs:
        token, value, rank, best, best_values = place
        entry = {token: Logprob(value, rank, self._text(token, texts))}
        for other_rank, (other, logprob) in enumerate(zip(best, best_values, strict=True), start=1):
            if other != token:
                entry[other] = Logprob(logprob, other_rank, self._text(other, texts))
        return entry

    def _text(self, token: int, wanted: bool) -> str | None:
        if self._tokenizer is None or not wanted:
            return None
        if token not in self._texts:
            self._texts[token] = self._tokenizer.decode([token], clean_up_tokenization_spaces=False)
        return self._texts[token]


def _places(rows: Tensor, values: Tensor, ids: IntArray, counts: Counts) -> Iterator[Place]:
    """Yield of each of r rows [r, V] what stands there: ids [r], and the counts [r] best ones, -1 = all."""
    width = rows.shape[1]
    counts = np.where(counts < 0, width, np.minimum(counts, width))
    chosen = torch.from_numpy(ids.astype(np.int64)).to(rows.device)[:, None]
    starts, best, best_values = _best(rows, values, int(counts.max(initial=0)))
    ranks = _ranks(rows, chosen).tolist()
    known = values.gather(1, chosen)[:, 0].tolist()
    for n, (token, count) in enumerate(zip(ids.tolist(), counts.tolist(), strict=True)):
        own = slice(starts[n], starts[n] + count)
        yield token, known[n], ranks[n], best[own].tolist(), best_values[own].tolist()


def _best(rows: Tensor, values: Tensor, count: int) -> tuple[list[int], Counts, Counts]:
    """Return the best ids of rows [r, V], row after row, with their values, and where each row begins.

    Of each row they are at least `count`, the best first, and the lowest id first among equals.
    """
    if count == 0:
        return [0] * len(rows), np.empty(0, np.int64), np.empty(0, np.float32)
    at, ids = _not_below(rows, _low_bound(rows, count))
    places = tuple(torch.from_numpy(part).to(rows.device) for part in (at, ids))
    order = np.lexsort((ids, -rows[places].cpu().numpy(), at))
    starts: list[int] = np.searchsorted(at, np.arange(len(rows))).tolist()
    return starts, ids[order], values[places].cpu().numpy()[order]


def _low_bound(rows: Tensor, count: int) -> Tensor:
    """Return values [r, 1] that at least `count` logits of each row [r, V] reach, and few more do."""
    # So many blocks have a largest logit at or above the bound; blocks are fewer than ids.
    blocks = rows.shape[1] // STRETCH
    if blocks > 4 * count:
        rows = rows[:, : blocks * STRETCH].reshape(len(rows), blocks, STRETCH).amax(-1)
    return rows.topk(count).values[:, -1:]


def _not_below(rows: Tensor, bounds: Tensor) -> tuple[Counts, Counts]:
    """Return row and id, in order, of all logits of rows [r, V] that are not below their row's bound [r, 1]."""
    if rows.device.type != "cpu":
        row, column = (rows >= bounds).nonzero(as_tuple=True)
        return row.cpu().numpy(), column.cpu().numpy()
    return np.divmod(np.flatnonzero(rows.numpy() >= bounds.numpy()), rows.shape[1])  # torch's take 8 times as long


def _ranks(rows: Tensor, chosen: Tensor) -> Counts:
    """Return how many ids of each row [r, V] come before the chosen one [r, 1] in the order of `_best`, plus one."""
    logit = rows.gather(1, chosen)
    if rows.device.type != "cpu":
        earlier = torch.arange(rows.shape[1], device=rows.device) < chosen
        before: Counts = ((rows > logit) | ((rows == logit) & earlier)).sum(1).cpu().numpy()
        return before + 1
    values, own = rows.numpy(), logit.numpy()
    above = np.fromiter(map(np.count_nonzero, values > own), np.int64, len(rows))
    at, ids = np.divmod(np.flatnonzero(values == own), rows.shape[1])
    return above + np.bincount(at[ids < chosen[:, 0].numpy()[at]], minlength=len(rows)) + 1
