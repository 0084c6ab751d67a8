"""One decoding step: propose, forward, sample, verify, commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
import torch

from specdec.draft import Draft, IntArray, StepStats, Verdict
from specdec.protocols import Verifier
from specdec_engine.drafting import Drafting
from specdec_engine.outputs import StopKind
from specdec_engine.request import PendingRows, Request, Work
from specdec_engine.rows import DrawRows
from specdec_engine.sampler import Sampler
from specdec_engine.scheduler import Scheduler
from specdec_engine.stopping import StopRules
from specdec_engine.target import ForwardOutput, Target


class Stepper:
    """Runs steps over the scheduler's requests; without drafting it is a plain decoder."""

    def __init__(
        self,
        target: Target,
        scheduler: Scheduler,
        sampler: Sampler,
        rules: StopRules,
        drafting: Drafting | None,
        verifier: Verifier | None,
        observe: Callable[[StepStats], None],
        max_draft: int,
    ) -> None:
        """Take the parts; `max_draft` is what admission leaves room for."""
        self._target = target
        self._scheduler = scheduler
        self._sampler = sampler
        self._rules = rules
        self._drafting = drafting
        self._verifier = verifier
        self._observe = observe
        self._max_draft = max_draft

    def step(self) -> list[Request]:
        """Advance all running requests; return those that gained ids. No-op without requests."""
        clock = [perf_counter()]
        self._scheduler.admit(self._max_draft)
        running = self._scheduler.running
        ready = [request for request in running if request.newest_known]
        draft = Draft.empty(len(ready)) if self._drafting is None else self._drafting.draft(running, ready)
        works, draft = self._scheduler.plan(ready, draft)
        if not works:
            return []
        clock.append(perf_counter())
        out = self._target.forward(works)
        clock.append(perf_counter())
        drawing = [work for work in works if work.wants]
        verdict = self._decide(drawing, draft, out, clock)
        gained = self._commit(works, drawing, verdict, out)
        clock.append(perf_counter())
        self._report(drawing, verdict, gained, out.rows, clock)
        return [request for request, _ in gained]

    def _decide(self, drawing: Sequence[Work], draft: Draft, out: ForwardOutput, clock: list[float]) -> Verdict:
        """Draw a token at every wanted row and let the verifier compare; plain rows emit what was drawn."""
        if not drawing or out.logits is None:
            clock.extend([clock[-1]] * 2)
            none = np.empty(0, np.int32)
            return Verdict(none, none, none, none)
        rows = DrawRows.of(drawing)
        noise = self._sampler.noise(rows)
        with torch.inference_mode():
            logits = self._sampler.process(out.logits, rows)
            draws = self._sampler.draw(logits, noise, rows)
            clock.append(perf_counter())
            if self._verifier is None or not len(draft.tokens):
                emitted = draws.cpu().numpy().astype(np.int32)
                verdict = Verdict(
                    np.zeros(len(drawing), np.int32), np.empty(0, np.int32), emitted, _count(len(drawing))
                )
            else:
                draft.lengths = [work.num_draft for work in drawing]
                verdict = self._verifier.verify(draft, logits, noise, draws)
            clock.append(perf_counter())
        return verdict

    def _commit(
        self, works: Sequence[Work], drawing: Sequence[Work], verdict: Verdict, out: ForwardOutput
    ) -> list[tuple[Request, int]]:
        """Append what stands, note the committed rows, end what is over; return (request, ids gained)."""
        accepted = {id(w): int(a) for w, a in zip(drawing, verdict.accepted, strict=True)}
        at = 0
        for work in works:
            committed = len(work.ids) - work.num_draft + accepted.get(id(work), 0)
            self._note_rows(work, committed, out, at)
            work.request.run_len = work.start + committed
            at += len(work.ids)
        gained = []
        end = 0
        for work, count in zip(drawing, verdict.accepted.tolist(), strict=True):
            start, end = end, end + count + 1
            gained.append((work.request, self._append(work, verdict.emitted[start:end], count)))
        return gained

    def _note_rows(self, work: Work, committed: int, out: ForwardOutput, at: int) -> None:
        if self._drafting is None or (out.hidden is None and out.aux is None and not self._drafting.wants_rows):
            return
        hidden = None if out.hidden is None else out.hidden[at : at + committed]
        aux = None if out.aux is None else out.aux[at : at + committed]
        work.request.pending.append(PendingRows(work.start, committed, hidden, aux))

    def _append(self, work: Work, emitted: IntArray, accepted: int) -> int:
        request = work.request
        kept, reason, stop_id = self._rules.cut(request, emitted)
        request.append(emitted[:kept])
        if not work.prompt:
            request.metrics.add_row(work.num_draft, work.num_draft, accepted, kept)
        if reason is not None:
            self.end(request, reason, stop_id)
        return kept

    def end(self, request: Request, reason: StopKind, stop_id: int | None = None) -> None:
        """End a request and free what it holds."""
        request.finish_reason, request.stop_reason = reason, stop_id
        self._scheduler.remove(request)
        request.pending.clear()
        if self._drafting is not None:
            self._drafting.finish(request, "aborted" if reason == "abort" else "done")

    def _report(
        self,
        drawing: Sequence[Work],
        verdict: Verdict,
        gained: Sequence[tuple[Request, int]],
        rows: int,
        clock: list[float],
    ) -> None:
        if self._drafting is None:
            return
        decode = [i for i, work in enumerate(drawing) if not work.prompt]
        names = ("propose", "forward", "sample", "verify", "commit")
        self._observe(
            StepStats(
                request_ids=[drawing[i].request.id for i in decode],
                proposed=[drawing[i].num_draft for i in decode],
                drafted=[drawing[i].num_draft for i in decode],
                accepted=[int(verdict.accepted[i]) for i in decode],
                emitted=[gained[i][1] for i in decode],
                failed=self._drafting.failed,
                rows=rows,
                seconds=dict(zip(names, np.diff(clock).tolist(), strict=True)),
            )
        )


def _count(n: int) -> IntArray:
    return np.arange(n, dtype=np.int32)
