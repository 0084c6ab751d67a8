"""How a token is drawn at a row: every row is drawn by this rule, speculation or not; verifiers only compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import BoolArray, IntArray
from specdec_core.noise import Noise
from specdec_engine.decoding.cutting import Legal
from specdec_engine.requests.request import Request
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_engine.sampling.draw_rows import DrawRows
from specdec_engine.sampling.edits import Edits
from specdec_engine.sampling.grammar_mask import forbid
from specdec_engine.sampling.pipeline import Pipeline
from specdec_engine.sampling.state import SamplingState
from specdec_nn.ops.truncate.reference import Truncation

Draw = Callable[[Tensor, Noise, BoolArray], Tensor]
Truncate = Callable[[Tensor, Truncation], Tensor]
Shaping = tuple[int, ScheduledRows, SamplingState]  # the first row, the rows and the state of a request that has one


class Sampler:
    """Processes logits and draws: argmax for greedy rows, else argmax of p(v) / e(v) with the row's own noise.

    It keeps what sampling remembers of each request, from `start` to `finish`.
    """

    def __init__(self, draw: Draw, truncate: Truncate, *, looks: bool = True) -> None:
        """Take the kernels `draw` and `truncate`.

        With `looks`, rows without a distribution are found before anything is drawn. Without it whoever draws gives -1
        there, as `draw` does and verifiers on a device: that spares them a pass over the logits, and a read.
        """
        self._looks = looks
        self._draw = draw
        self._truncate = truncate
        self._states: dict[str, SamplingState] = {}

    def start(self, request: Request, state: SamplingState) -> None:
        """Keep the state of a request until `finish`."""
        if state.grammar is not None or state.pipeline is not None:
            self._states[request.id] = state

    def state(self, request: Request) -> SamplingState | None:
        """Return what sampling remembers of a request, None for nothing."""
        return self._states.get(request.id)

    def commit(self, request: Request, ids: IntArray) -> None:
        """Move a request's state on by ids that it has emitted."""
        state = self.state(request)
        if state is not None:
            state.commit(ids.tolist())

    def finish(self, request: Request) -> None:
        """Forget a request."""
        self._states.pop(request.id, None)

    def legal(self, request: Request) -> Legal | None:
        """Return how many of ids that would follow a request's own it can emit, as a function; None: all of them."""
        state = self.state(request)
        return None if state is None else partial(state.legal, request)

    def _shaping(self, rows: DrawRows) -> list[Shaping]:
        """Return what has to be shaped by a state."""
        if not self._states:
            return []
        entries = zip(rows.starts.tolist(), rows.items, strict=True)
        return [(first, item, s) for first, item in entries if (s := self.state(item.request)) is not None]

    def noise(self, rows: DrawRows) -> Noise:
        """Return the noise of the rows; what is drawn at a row stands at the row's position + 1."""
        keys = np.array([r.key for r in rows.requests], np.uint64)
        seq = np.array([r.seq_index for r in rows.requests], np.int32)
        return Noise(rows.spread(keys), rows.positions + np.int32(1), rows.spread(seq))

    def process(self, logits: Tensor, rows: DrawRows) -> Tensor:
        """Return processed logits [R, V] float32, -inf where truncated; the given ones stay as they are.

        Every row is processed as if it were the next one of its own prefix: prompt, output, and the drafts on its
        path. Greedy rows are neither scaled nor truncated. Rows without a distribution are noted in `rows`, and get a
        flat one, so that what is drawn or verified at them is harmless; unless this sampler does not look for them,
        which then leaves logits that nothing is done to in the dtype that they have.
        """
        finite = None
        if self._looks:
            logits = logits.float()
            finite = _finite(logits, rows)
        shaping = self._shaping(rows)
        if shaping:
            logits = self._shaped(logits, rows, shaping)
        truncation = _truncation(rows)
        if shaping or truncation is not None or finite is not None:
            rows.best = None
        processed = logits if truncation is None else self._truncate(logits, truncation)
        return processed if finite is None else torch.where(finite[:, None], processed, 0.0)

    def _shaped(self, logits: Tensor, rows: DrawRows, shaping: Sequence[Shaping]) -> Tensor:
        """Return a float32 copy after everything but temperature and truncation."""
        masked = forbid(logits, [(first, item, s.grammar) for first, item, s in shaping if s.grammar is not None])
        shaped = masked.to(torch.float32, copy=masked is logits, memory_format=torch.contiguous_format)
        edits = Edits(shaped.shape[1])
        pipelines = [(first, item, s.pipeline) for first, item, s in shaping if s.pipeline is not None]
        for first, item, pipeline in pipelines:
            for stage in pipeline.stages:
                stage.edit(item, first, edits)
        edits.apply(shaped)
        for first, item, pipeline in pipelines:
            if pipeline.processors is not None:
                failures = pipeline.processors.apply(item, shaped[first : first + item.wants])
                rows.dead.update({first + row: why for row, why in failures.items()})
        _bury(shaped, rows, pipelines)
        return shaped

    def draw(self, processed: Tensor, noise: Noise, rows: DrawRows) -> Tensor:
        """Return the drawn ids [R] int64."""
        known = rows.known
        return self._draw(processed, noise, rows.spread(rows.greedy)) if known is None else known


def _truncation(rows: DrawRows) -> Truncation | None:
    """Return what temperature, min_p, top_k and top_p ask of each row, None if they ask nothing of any."""
    params = [request.sampling_params for request in rows.requests]
    asked = [(1.0, 0.0, 0, 1.0) if p.greedy else (p.temperature, p.min_p, max(p.top_k, 0), p.top_p) for p in params]
    if all(values == (1.0, 0.0, 0, 1.0) for values in asked):
        return None
    temperature, min_p, top_k, top_p = zip(*asked, strict=True)
    return Truncation(
        rows.spread(np.minimum(temperature, np.finfo(np.float32).max).astype(np.float32)),
        rows.spread(np.array(min_p, np.float64)),
        rows.spread(np.array(top_k, np.int64)),
        rows.spread(np.array(top_p, np.float64)),
    )


def _finite(logits: Tensor, rows: DrawRows) -> Tensor | None:
    """Return for each row [R] whether the model gives it a distribution; None where all have one. Notes both in `rows`.

    The largest of a row is finite unless the row has a NaN or +inf, or nothing above -inf. On a GPU the answer is not
    read here, since the host reads once a step, later.
    """
    if logits.device.type != "cpu":
        rows.finite = torch.isfinite(logits.amax(dim=-1))
        return rows.finite
    values = logits.numpy()
    rows.best = values.argmax(axis=-1)  # numpy's is vectorised, torch's is not; of a row with a NaN it is the first one
    finite = np.isfinite(values[np.arange(len(values)), rows.best])
    if finite.all():
        return None
    rows.finite = torch.from_numpy(finite)
    rows.read_finite()
    return torch.from_numpy(finite)


def _bury(shaped: Tensor, rows: DrawRows, pipelines: Sequence[tuple[int, ScheduledRows, Pipeline]]) -> None:
    """Find the rows that parameters left no distribution, and give them and the failed ones a flat one."""
    editing = [entry for entry in pipelines if entry[2].processors is not None or entry[2].forbids]
    if editing:
        largest = shaped.amax(dim=-1).cpu().numpy()
        finite = np.isfinite(largest).tolist()
        for first, item, pipeline in editing:
            for row in range(first, first + item.wants):
                if finite[row]:
                    continue
                reason = f"{', '.join(pipeline.forbids)} left no id with a finite logit"
                if pipeline.processors is not None and (not pipeline.forbids or largest[row] != -np.inf):
                    reason = "the logits processors returned logits that are not finite"
                rows.dead.setdefault(row, reason)
    for row in rows.dead:
        shaped[row] = 0.0
