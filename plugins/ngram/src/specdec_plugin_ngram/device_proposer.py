"""The proposer `ngram_gpu`: ids of all requests in one buffer on the device, searched there; never waits for it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from specdec_core.draft import Draft
from specdec_core.errors import SpecdecError

if TYPE_CHECKING:
    from torch import Tensor

    from specdec_core.context import ProposerBuild
    from specdec_core.draft import BatchView, FinishReason, IntArray, RequestView
    from specdec_plugin_ngram.options import NgramOptions

NgramMatch = Callable[["Tensor", "Tensor", int, int, int, bool], "Tensor"]


def make_device_proposer(options: NgramOptions, build: ProposerBuild) -> NgramGpuProposer:
    """Build the proposer with the best installed `ngram_match` for the target's device."""
    target = build.target
    return NgramGpuProposer(
        options,
        match=build.kernels.get("ngram_match", target.device),
        width=build.num_speculative_tokens,
        max_num_seqs=target.max_num_seqs,
        max_model_len=target.info.max_model_len,
        vocab_size=target.info.vocab_size,
        device=target.device,
    )


class NgramGpuProposer:
    """Prompt lookup on the target's device: the drafts of `ngram`, in the device form of `Draft`.

    A step copies the new ids of all rows in one transfer and searches each whole context; nothing is read back.
    """

    def __init__(
        self,
        options: NgramOptions,
        *,
        match: NgramMatch,
        width: int,
        max_num_seqs: int,
        max_model_len: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        """Allocate [max_num_seqs, max_model_len] int32 ids on the device; drafts are `width` ids wide."""
        self._options = options
        self._match = match
        self._width = width
        self._vocab_size = vocab_size
        self._tokens = torch.zeros((max_num_seqs, max_model_len), dtype=torch.int32, device=device)
        self._columns = torch.arange(width, device=device)
        self._free = list(range(max_num_seqs))  # a heap: low slots first, so that a search sees few unused ones
        self._slots: dict[str, int] = {}
        self._sent = [0] * max_num_seqs  # ids of each slot that are on the device
        self._search(1, 2, torch.zeros(1, dtype=torch.int64, device=device))  # compiles, if the kernel needs it

    def start(self, request: RequestView) -> None:
        """Give the request a slot; its ids are copied when it may draft."""
        slot = self._slots.get(request.id)
        if slot is None:
            if not self._free:
                message = (
                    f"ngram_gpu: {len(self._slots)} requests are running, as many as max_num_seqs allows, and "
                    f"{request.id!r} starts; finish a request first or raise max_num_seqs"
                )
                raise SpecdecError(message)
            slot = self._slots[request.id] = heapq.heappop(self._free)
        self._sent[slot] = 0

    def propose(self, batch: BatchView) -> Draft:
        """Return a draft [n, width] on the device with lengths None."""
        n = len(batch)
        limits = np.where(batch.newest_known, batch.max_draft, 0).astype(np.int64)
        rows = np.flatnonzero(limits).tolist()
        if not rows:
            return Draft(lengths=None, tokens=self._tokens.new_full((n, self._width), -1))
        slots = np.asarray([self._slot(request.id) for request in batch.requests], np.int64)
        lengths = np.zeros(int(slots.max()) + 1, np.int64)  # a slot without a drafting row stays empty
        positions, ids = self._new_ids(batch, rows, slots, lengths)
        sizes = [len(lengths), n, n, len(positions), len(ids)]
        packed = torch.from_numpy(np.concatenate((lengths, slots, limits, positions, ids)))
        # The copy of pageable memory is staged before the call returns, so the array need not outlive it.
        on_device = torch.split(packed.to(self._tokens.device, non_blocking=True), sizes)
        self._tokens.view(-1).index_copy_(0, on_device[3], on_device[4].to(torch.int32))
        drafts = self._search(len(lengths), int(lengths.max()), on_device[0]).index_select(0, on_device[1])
        return Draft(lengths=None, tokens=self._masked(drafts, on_device[2]))

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Free the request's slot, whatever the reason."""
        slot = self._slots.pop(request.id, None)
        if slot is not None:
            heapq.heappush(self._free, slot)

    def close(self) -> None:
        """Release the buffer."""
        self._slots.clear()
        self._tokens = self._tokens.new_empty((0, 0))

    def memory_bytes(self) -> int:
        """Return the bytes of the buffer on the device, which do not depend on the requests."""
        return self._tokens.numel() * self._tokens.element_size()

    def _new_ids(
        self, batch: BatchView, rows: list[int], slots: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return flat positions in the buffer and ids [m] int64 that the device lacks; fill in lengths by slot."""
        positions: list[np.ndarray] = []
        ids: list[IntArray] = []
        for row in rows:
            tokens, slot = batch.request(row).tokens, int(slots[row])
            sent, length = self._sent[slot], len(tokens)
            start = slot * self._tokens.shape[1]
            positions.append(np.arange(start + sent, start + length))
            ids.append(tokens[sent:])
            self._sent[slot] = lengths[slot] = length
        return np.concatenate(positions), np.concatenate(ids)

    def _search(self, slots: int, longest: int, lengths: Tensor) -> Tensor:
        """Return raw drafts [slots, width] of the first slots, given their lengths [slots] on the device."""
        low, high = self._options.prompt_lookup_min, self._options.prompt_lookup_max
        latest = self._options.match == "latest"
        return self._match(self._tokens[:slots, :longest], lengths, low, high, self._width, latest)

    def _masked(self, drafts: Tensor, limits: Tensor) -> Tensor:
        """Cut each row of drafts [n, width] at its limit and before the first id that no embedding has."""
        usable = (drafts >= 0) & (drafts < self._vocab_size) & (self._columns < limits[:, None])
        return torch.where(usable.int().cumprod(1).bool(), drafts, -1)

    def _slot(self, request_id: str) -> int:
        """Return a request's slot."""
        slot = self._slots.get(request_id)
        if slot is None:
            message = f"ngram_gpu: request {request_id!r} is not known; call start(request) before propose(batch)"
            raise SpecdecError(message)
        return slot
