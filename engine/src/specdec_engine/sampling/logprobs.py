"""Log-probabilities: from rows of logits to the entries that callers see; knows no step and no draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor

from specdec_core.errors import TargetError
from specdec_engine.outputs import Logprob, Logprobs
from specdec_engine.requests.request import Request

LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]
HEAD_ROWS: Final = 64  # rows of a prompt whose logits are made at one time: a vocabulary is wide
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

    def add(self, request: Request, ids: Sequence[int], rows: Tensor) -> None:
        """Add the entries of ids [r] that a request that asked for them emits, from the rows [r, V] they came from."""
        count = request.sampling_params.logprobs
        if request.logprobs is None or count is None:
            return
        rows = rows.float()
        values = rows if self._as_logits else torch.log_softmax(rows, dim=-1)
        request.logprobs += self._entries(rows, values, ids, count, texts=request.sampling_params.detokenize)

    def add_prompt(self, request: Request, rows: Tensor) -> None:
        """Add the entries of the next ids of a prompt, from the rows [r, V] before them.

        They are log-probabilities of the model's own rows in every mode, for nothing is drawn there (as in vLLM).
        """
        known, count = request.prompt_logprobs, request.sampling_params.prompt_logprobs
        if known is None or count is None:
            return
        ids = request.tokens[len(known) : len(known) + len(rows)].tolist()
        rows = rows.float()
        values = torch.log_softmax(rows, dim=-1)
        known += self._entries(rows, values, ids, count, texts=request.sampling_params.detokenize)

    def _entries(self, rows: Tensor, values: Tensor, ids: Sequence[int], count: int, *, texts: bool) -> list[Logprobs]:
        """Return an entry a row: the id that stands there, then the `count` best, -1 = all."""
        size = rows.shape[1] if count == -1 else min(count, rows.shape[1])
        entries = []
        for row, value, token in zip(rows, values, ids, strict=True):
            best = _best(row, size)
            entry = {token: Logprob(float(value[token]), _rank(row, token), self._text(token, texts))}
            for rank, (other, logprob) in enumerate(zip(best.tolist(), value[best].tolist(), strict=True), start=1):
                if other != token:
                    entry[other] = Logprob(logprob, rank, self._text(other, texts))
            entries.append(entry)
        return entries

    def _text(self, token: int, wanted: bool) -> str | None:
        if self._tokenizer is None or not wanted:
            return None
        if token not in self._texts:
            self._texts[token] = self._tokenizer.decode([token], clean_up_tokenization_spaces=False)
        return self._texts[token]


def _best(row: Tensor, count: int) -> Tensor:
    """Return the `count` best ids of a row [V], best first and the lowest first among equals."""
    if count == 0:
        return row.new_empty(0, dtype=torch.long)
    # topk leaves open which of several equal logits it takes, so it only says how low the last of them is.
    candidates = (row >= row.topk(count).values[-1]).nonzero().squeeze(1)
    order = torch.sort(row[candidates], descending=True, stable=True).indices
    return candidates[order[:count]]


def _rank(row: Tensor, token: int) -> int:
    """Return how many ids of a row [V] come before `token` in the order of `_best`, plus one."""
    before = (row > row[token]).sum() + (row[:token] == row[token]).sum()
    return int(before) + 1
