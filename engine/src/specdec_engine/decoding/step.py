"""One decoding step: propose, forward, sample, verify, commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
import torch

from specdec_core.draft import Draft, IntArray, StepStats, Verdict
from specdec_core.host.requests import Slot
from specdec_core.host.runner import ProposerRunner
from specdec_core.protocols import Verifier
from specdec_engine.decoding import trees
from specdec_engine.decoding.cutting import Legal, cut
from specdec_engine.decoding.scheduler import Scheduler
from specdec_engine.decoding.target import ForwardOutput, Target
from specdec_engine.outputs import StopKind
from specdec_engine.requests.request import Request, Work
from specdec_engine.requests.stopping import StopRules
from specdec_engine.sampling.draw_rows import DrawRows
from specdec_engine.sampling.logprobs import HEAD_ROWS, LogprobReader
from specdec_engine.sampling.sampler import Sampler

logger = logging.getLogger("specdec_engine")


class Stepper:
    """Runs steps over the scheduler's requests; without drafting it is a plain decoder."""

    def __init__(
        self,
        target: Target,
        scheduler: Scheduler,
        sampler: Sampler,
        rules: StopRules,
        logprobs: LogprobReader,
        runner: ProposerRunner | None,
        verifier: Verifier | None,
        observe: Callable[[StepStats], None],
        max_draft: int,
        exact: bool = True,
    ) -> None:
        """Take the parts; `max_draft` is what admission leaves room for. `exact`: the verifier is not lossy."""
        self._target = target
        self._scheduler = scheduler
        self._sampler = sampler
        self._rules = rules
        self._logprobs = logprobs
        self._runner = runner
        self._verifier = verifier
        self._observe = observe
        self._max_draft = max_draft
        self._exact = exact

    def step(self) -> list[Request]:
        """Advance all running requests; return those that gained ids or ended. No-op without requests."""
        clock = [perf_counter()]
        self._scheduler.admit(self._max_draft)
        running = self._scheduler.running
        ready = [request for request in running if request.newest_known]
        works, draft = self._plan(ready, self._propose(running))
        if not works:
            return []
        clock.append(perf_counter())
        out = self._target.forward(works)
        clock.append(perf_counter())
        drawing = [work for work in works if work.wants]
        verdict, processed = self._decide(drawing, draft, out, clock)
        self._score_prompts(works, out)
        gained = self._commit(works, drawing, verdict, out, processed if self._logprobs.processed else out.logits)
        clock.append(perf_counter())
        self._report(drawing, verdict, gained, out.rows, clock)
        return [request for request, _ in gained] + self._end_scored(works)

    def _end_scored(self, works: Sequence[Work]) -> list[Request]:
        """End the requests that asked for nothing but the log-probabilities of their prompts, and have them now."""
        scored = [work.request for work in works if work.request.only_scored]
        ended = [request for request in scored if request.run_len == request.prompt_len]
        for request in ended:
            self.end(request, "length")
        return ended

    def _slot(self, request: Request) -> Slot:
        # n + k + 1 ids must fit: the last draft needs a place, and so does the id drawn after it.
        return Slot(request, request.run_len, request.newest_known, self._rules.budget(request) - 1)

    def _propose(self, running: Sequence[Request]) -> Draft:
        """Return one draft row for each request whose newest id waits to be run."""
        if self._runner is None:
            return Draft.empty(sum(request.newest_known for request in running))
        slots = [self._slot(request) for request in running]
        draft = self._runner.propose(slots)
        # Requests inside their prompts have empty rows, so that only lengths differ.
        draft.lengths = [n for slot, n in zip(slots, draft.lengths or (), strict=True) if slot.newest_known]
        return draft

    def _plan(self, ready: Sequence[Request], draft: Draft) -> tuple[list[Work], Draft]:
        """Cut from the draft what requests cannot emit, and return the work of this step with its draft."""
        proposed = {id(request): length for request, length in zip(ready, draft.lengths or (), strict=True)}
        if (
            self._runner is not None and self._runner.drafts_trees
        ):  # chains of such a method have no limit of depth either
            room = self._target.arena.num_tokens
            deepest = [self._runner.budget.depth(self._slot(request)) for request in ready]
            draft = trees.within(draft, deepest, [room - len(request) for request in ready])
        rules = [_legal(request) for request in ready]
        works, draft = self._scheduler.plan(ready, cut(draft, rules, exact=self._exact))
        for work in works:
            work.proposed = proposed.get(id(work.request), 0)
            work.asked = self._runner is not None and self._runner.asked(work.request)
        return works, draft

    def _decide(
        self, drawing: Sequence[Work], draft: Draft, out: ForwardOutput, clock: list[float]
    ) -> tuple[Verdict, torch.Tensor | None]:
        """Draw a token at every wanted row and let the verifier compare; plain rows emit what was drawn.

        Return the processed logits, too.
        """
        if not drawing or out.logits is None:
            clock.extend([clock[-1]] * 2)
            none = np.empty(0, np.int32)
            return Verdict(none, none, none, none), None
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
                greedy = np.array([request.sampling_params.greedy for request in rows.requests], np.bool_)
                verdict = self._verifier.verify(draft, logits, noise, draws, greedy)
            verdict = rows.withhold(verdict)
            clock.append(perf_counter())
        return verdict, logits

    def _score_prompts(self, works: Sequence[Work], out: ForwardOutput) -> None:
        """Add the log-probabilities of the prompt ids that this step's prompt chunks predict."""
        if out.scored is None:
            return
        scored = [work for work in works if work.scored]
        for work, hidden in zip(scored, torch.split(out.scored, [len(work.scored) for work in scored]), strict=True):
            for part in torch.split(hidden, HEAD_ROWS):
                self._logprobs.add_prompt(work.request, self._target.compute_logits(part))

    def _commit(
        self,
        works: Sequence[Work],
        drawing: Sequence[Work],
        verdict: Verdict,
        out: ForwardOutput,
        logits: torch.Tensor | None,
    ) -> list[tuple[Request, int]]:
        """Append what stands, note the committed rows, end what is over; return (request, ids gained).

        `logits` are the rows, raw or processed, whose log-probabilities callers get.
        """
        ends = np.cumsum(verdict.accepted)
        paths = {id(w): verdict.path[e - a : e] for w, a, e in zip(drawing, verdict.accepted, ends, strict=True)}
        self._target.arena.keep(
            (work.request.segment, work.start + 1, paths[id(work)]) for work in drawing if work.parents is not None
        )
        at = 0
        for work in works:
            committed = work.committed(paths.get(id(work)))
            self._note_rows(work, committed, out, at)
            work.request.run_len = work.start + len(committed)
            at += len(work.ids)
        gained = []
        end = 0
        for work, count in zip(drawing, verdict.accepted.tolist(), strict=True):
            start, end = end, end + count + 1
            kept = self._append(work, verdict.emitted[start:end], count)
            gained.append((work.request, kept))
            if work.request.logprobs is not None and logits is not None:
                rows = torch.from_numpy(verdict.logits_row[start : start + kept]).to(logits.device)
                self._logprobs.add(work.request, verdict.emitted[start : start + kept].tolist(), logits[rows])
        return gained

    def _note_rows(self, work: Work, committed: range | IntArray, out: ForwardOutput, at: int) -> None:
        if self._runner is None or not self._runner.wants_rows:
            return
        rows: slice | torch.Tensor = slice(at, at + len(committed))
        if not isinstance(committed, range):
            rows = torch.from_numpy(committed.astype(np.int64) + at)
        hidden = None if out.hidden is None else out.hidden[rows]
        aux = None if out.aux is None else out.aux[rows]
        self._runner.commit(work.request, work.start, len(committed), hidden, aux)

    def _append(self, work: Work, emitted: IntArray, accepted: int) -> int:
        request = work.request
        if request.error is not None:
            logger.error("%s", request.error)
            self.end(request, "error")
            return 0
        kept, reason, stop_reason = self._rules.cut(request, emitted)
        request.append(emitted[:kept])
        if request.grammar is not None:
            request.grammar.commit(emitted[:kept].tolist())
        if request.pipeline is not None:
            request.pipeline.commit(emitted[:kept].tolist())
        if not work.prompt:
            request.metrics.add_row(work.proposed, work.num_draft, accepted, kept, work.draft_depth, asked=work.asked)
        if reason is not None:
            self.end(request, reason, stop_reason)
        return kept

    def end(self, request: Request, reason: StopKind, stop_reason: int | str | None = None) -> None:
        """End a request and free what it holds."""
        request.finish_reason, request.stop_reason = reason, stop_reason
        self._scheduler.remove(request)
        request.grammar = request.pipeline = None
        if self._runner is not None:
            self._runner.finish(request, "aborted" if reason in ("abort", "error") else "done")

    def _report(
        self,
        drawing: Sequence[Work],
        verdict: Verdict,
        gained: Sequence[tuple[Request, int]],
        rows: int,
        clock: list[float],
    ) -> None:
        if self._runner is None:
            return
        decode = [i for i, work in enumerate(drawing) if not work.prompt]
        names = ("propose", "forward", "sample", "verify", "commit")
        self._observe(
            StepStats(
                request_ids=[drawing[i].request.id for i in decode],
                proposed=[drawing[i].proposed for i in decode],
                drafted=[drawing[i].num_draft for i in decode],
                accepted=[int(verdict.accepted[i]) for i in decode],
                emitted=[gained[i][1] for i in decode],
                depths=[drawing[i].draft_depth for i in decode],
                asked=[drawing[i].asked for i in decode],
                failed=self._runner.containment.step,
                rows=rows,
                seconds=dict(zip(names, np.diff(clock).tolist(), strict=True)),
            )
        )


def _legal(request: Request) -> Legal | None:
    """Return the rule by which the request's drafts are cut, None where all is legal."""
    grammar, pipeline = request.grammar, request.pipeline
    if pipeline is None:
        return None if grammar is None else grammar.legal

    def both(ids: IntArray) -> int:
        count = pipeline.legal(request, ids)
        return count if grammar is None else min(count, grammar.legal(ids))

    return both


def _count(n: int) -> IntArray:
    return np.arange(n, dtype=np.int32)
