"""How a token is drawn at a row: every row is drawn by this rule, speculation or not; verifiers only compare."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from specdec_core.noise import Noise, Purpose
from specdec_engine.sampling.draw_rows import DrawRows
from specdec_engine.sampling.edits import Edits
from specdec_engine.sampling.grammar_mask import forbid
from specdec_nn.ops.truncate.reference import Truncation

Race = Callable[[Tensor, Noise, int], Tensor]
Truncate = Callable[[Tensor, Truncation], Tensor]


class Sampler:
    """Processes logits and draws: argmax for greedy rows, else argmax of p(v) / e(v) with the row's own noise."""

    def __init__(self, race: Race, truncate: Truncate) -> None:
        """Take the kernels `race` and `truncate`."""
        self._race = race
        self._truncate = truncate

    def noise(self, rows: DrawRows) -> Noise:
        """Return the noise of the rows; what is drawn at a row stands at the row's position + 1."""
        keys = np.array([r.key for r in rows.requests], np.uint64)
        seq = np.array([r.seq_index for r in rows.requests], np.int32)
        return Noise(rows.spread(keys), rows.positions + np.int32(1), rows.spread(seq))

    def process(self, logits: Tensor, rows: DrawRows) -> Tensor:
        """Return processed logits [R, V] float32, -inf where truncated; the given ones stay as they are.

        Every row is processed as if it were the next one of its own prefix: prompt, output, and the drafts on its
        path. Greedy rows are neither scaled nor truncated. Rows without a distribution are noted in `rows`, and get a
        flat one, so that what is drawn or verified at them is harmless.
        """
        logits = logits.float()
        finite = _finite(logits, rows)
        if any(r.pipeline is not None or r.grammar is not None for r in rows.requests):
            logits = self._shaped(logits, rows)
        truncation = _truncation(rows)
        processed = logits if truncation is None else self._truncate(logits, truncation)
        return processed if finite is None else torch.where(finite[:, None], processed, 0.0)

    def _shaped(self, logits: Tensor, rows: DrawRows) -> Tensor:
        """Return a float32 copy after everything but temperature and truncation."""
        masked = forbid(logits, rows)
        shaped = masked.to(torch.float32, copy=masked is logits, memory_format=torch.contiguous_format)
        edits = Edits(shaped.shape[1])
        starts = rows.starts.tolist()
        pipelines = [(work, first, work.request.pipeline) for work, first in zip(rows.works, starts, strict=True)]
        for work, first, pipeline in pipelines:
            for stage in () if pipeline is None else pipeline.stages:
                stage.edit(work, first, edits)
        edits.apply(shaped)
        for work, first, pipeline in pipelines:
            if pipeline is not None and pipeline.processors is not None:
                failures = pipeline.processors.apply(work, shaped[first : first + work.wants])
                rows.dead.update({first + row: why for row, why in failures.items()})
        _bury(shaped, rows)
        return shaped

    def draw(self, processed: Tensor, noise: Noise, rows: DrawRows) -> Tensor:
        """Return the drawn ids [R] int64."""
        greedy_of = np.array([request.sampling_params.greedy for request in rows.requests], np.bool_)
        if greedy_of.all():
            return argmax(processed)
        greedy = rows.spread(greedy_of)
        if not greedy.any():
            return self._race(torch.softmax(processed, dim=-1), noise, Purpose.TARGET)
        draws = argmax(processed)
        sampled = np.flatnonzero(~greedy)
        index = torch.from_numpy(sampled).to(processed.device)
        part = Noise(noise.keys[sampled], noise.positions[sampled], noise.seq_index[sampled])
        draws[index] = self._race(torch.softmax(processed[index], dim=-1), part, Purpose.TARGET)
        return draws


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
    """Say of each row [R] whether the model gives it a distribution, and note it; None where all of them have one.

    The largest of a row is finite unless the row has a NaN or +inf, or nothing above -inf. On a GPU the answer is not
    read here, since the host reads once a step, later.
    """
    if logits.device.type != "cpu":
        rows.finite = torch.isfinite(logits.amax(dim=-1))
        return rows.finite
    finite = np.isfinite(logits.numpy().max(axis=-1))  # numpy's is vectorised, torch's is not
    if finite.all():
        return None
    rows.finite = torch.from_numpy(finite)
    rows.settle()
    return torch.from_numpy(finite)


def _bury(shaped: Tensor, rows: DrawRows) -> None:
    """Find the rows that parameters left no distribution, and give them and the failed ones a flat one."""
    editing = [r.pipeline is not None and (r.pipeline.processors is not None or len(r.pipeline.forbids) > 0)
               for r in rows.requests]  # fmt: skip
    if any(editing):
        largest = shaped.amax(dim=-1).cpu().numpy()
        owner = np.repeat(np.arange(len(rows.works)), rows.counts)
        for row in np.flatnonzero(~np.isfinite(largest) & rows.spread(np.array(editing))).tolist():
            pipeline = rows.requests[owner[row]].pipeline
            assert pipeline is not None
            reason = f"{', '.join(pipeline.forbids)} left no id with a finite logit"
            if pipeline.processors is not None and (not pipeline.forbids or largest[row] != -np.inf):
                reason = "the logits processors returned logits that are not finite"
            rows.dead.setdefault(row, reason)
    for row in rows.dead:
        shaped[row] = 0.0


def argmax(logits: Tensor) -> Tensor:
    """Return the id of the largest of each row [R, V] float32, the lowest one on ties, [R] int64."""
    if logits.device.type == "cpu":
        # numpy's is vectorised, torch's is not; both return the first of equal values.
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)
