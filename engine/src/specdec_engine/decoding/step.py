"""One decoding step: propose, forward, sample, verify, commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import Draft, Verdict
from specdec_core.noise import Noise
from specdec_engine.decoding.cutting import cut
from specdec_engine.decoding.device_drafts import DeviceDrafts
from specdec_engine.decoding.one_read import Arrays, read_draws, read_verdict
from specdec_engine.decoding.scheduler import Scheduler
from specdec_engine.decoding.speculation import Speculation
from specdec_engine.decoding.target import ForwardOutput, Target
from specdec_engine.outputs import StopKind
from specdec_engine.requests.request import Request
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_engine.requests.stopping import StopRules
from specdec_engine.sampling.draw_rows import DrawRows
from specdec_engine.sampling.logprobs import HEAD_ROWS, LogprobReader
from specdec_engine.sampling.sampler import Sampler
from specdec_nn.device_copies import read

logger = logging.getLogger("specdec_engine")


@dataclass(slots=True)
class Step:
    """One step on its way from draft to commit; each phase adds what the next ones need.

    items    what runs: decode rows first, in the order of the draft's rows, then pieces of prompts
    draft    one row for each decode row; after sampling, one for each item at which a token is drawn
    there    what of it is on a device and not known here, None where nothing is
    out      what the target's forward gave
    drawn    the R rows at which a token is drawn
    noise    of these rows
    logits   [R, V] processed, float32 on the CPU; None where no row is drawn at
    draws    [R] int64, the ids drawn; None where the verifier draws and nobody knows them yet
    seconds  by phase
    """

    items: list[ScheduledRows] = field(init=False)
    draft: Draft = field(init=False)
    out: ForwardOutput = field(init=False)
    drawn: DrawRows = field(init=False)
    noise: Noise = field(init=False)
    there: DeviceDrafts | None = None
    logits: torch.Tensor | None = None
    draws: torch.Tensor | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=perf_counter)

    def lap(self, phase: str) -> None:
        """Note the seconds since the last phase ended."""
        now = perf_counter()
        self.seconds[phase], self._since = now - self._since, now


class Stepper:
    """Runs steps over the scheduler's requests; without speculation it is a plain decoder.

    watch  is shown every step that ran rows, with or without speculation; None: nobody
    """

    def __init__(
        self,
        target: Target,
        scheduler: Scheduler,
        sampler: Sampler,
        rules: StopRules,
        logprobs: LogprobReader,
        speculation: Speculation | None,
    ) -> None:
        """Take the parts of an engine."""
        self._target = target
        self._scheduler = scheduler
        self._prefix = scheduler.prefix
        self._sampler = sampler
        self._rules = rules
        self._logprobs = logprobs
        self.speculation = speculation
        self.watch: Callable[[Step], None] | None = None

    def step(self) -> list[Request]:
        """Advance all running requests; return those that gained ids or ended. No-op without requests."""
        step = Step()
        self._propose(step)
        if not step.items:
            return []
        step.lap("propose")
        step.there = DeviceDrafts.of(step.draft, self._target.ancestor_bits)
        step.out = self._target.forward(step.items, step.there)
        step.lap("forward")
        with torch.inference_mode():
            self._sample(step)
            step.lap("sample")
            self._verify(step)
        step.lap("verify")
        self._commit(step)
        step.lap("commit")
        if self.speculation is not None:
            self.speculation.report(step.items, step.out.rows, step.seconds)
        if self.watch is not None:
            self.watch(step)
        return step.drawn.requests + self._end_scored(step.items)

    def _propose(self, step: Step) -> None:
        """Admit requests, draft for those whose newest id waits to be run, and schedule rows."""
        speculation, running = self.speculation, self._scheduler.running
        self._scheduler.admit(0 if speculation is None else speculation.max_draft)
        if speculation is None:
            decode = [ScheduledRows.newest(request, 0, False) for request in running if request.newest_known]
            draft = Draft.empty(len(decode))
        else:
            with self._target.lent(running):
                decode, draft = speculation.propose(running, self._rules)
            if len(draft.tokens):  # what a request cannot emit need not run
                legal = [self._sampler.legal(item.request) for item in decode]
                if draft.on_device and any(rule is not None for rule in legal):
                    draft = draft.to_host()
                draft = speculation.within(decode, draft, self._rules, self._target.arena.num_tokens)
                draft = cut(draft, legal, exact=speculation.exact)
        step.items, step.draft = self._scheduler.plan(decode, draft)

    def _sample(self, step: Step) -> None:
        """Draw a token at every row that wants one, each behind its own prefix."""
        step.drawn = DrawRows.of([item for item in step.items if item.wants])
        if step.out.logits is None:
            return
        if step.out.logits.device.type == "cpu":  # elsewhere kernels read the model's own dtype, in half the bytes
            step.out.logits = step.out.logits.float()  # once for all who read them
        step.noise = self._sampler.noise(step.drawn)
        step.logits = self._sampler.process(step.out.logits, step.drawn)
        verifier = None if self.speculation is None else self.speculation.verifier
        if verifier is None or not len(step.draft.tokens) or not verifier.draws_for_itself:
            step.draws = self._sampler.draw(step.logits, step.noise, step.drawn)
        else:
            step.draws = step.drawn.known

    def _verify(self, step: Step) -> None:
        """Let the verifier compare drafts and draws; rows without drafts emit what was drawn."""
        if step.logits is None or step.out.logits is None:
            return
        drawn, speculation = step.drawn, self.speculation
        answers = () if speculation is None else speculation.answers(step.out.logits)
        if step.logits.device.type == "cpu":
            verdict, answered = self._verdict(step), read(answers)
        else:
            verdict, answered = self._read_verdict(step, answers)
        drawn.hand_out(drawn.withhold(verdict))
        if speculation is not None:
            speculation.answer(drawn.items, answered)

    def _verdict(self, step: Step) -> Verdict:
        """Return the verdict of a step, which on the CPU is there at once."""
        drawn = step.drawn
        assert step.logits is not None
        if self.speculation is None or not len(step.draft.tokens):
            assert step.draws is not None
            none, each = np.zeros(len(drawn.items), np.int32), np.arange(len(drawn.items), dtype=np.int32)
            return Verdict(none, none[:0], step.draws.cpu().numpy().astype(np.int32), each)
        step.draft.lengths = [item.num_draft for item in drawn.items]
        return self.speculation.verifier.verify(step.draft, step.logits, step.noise, step.draws, drawn.greedy)

    def _read_verdict(self, step: Step, answers: Sequence[Tensor]) -> tuple[Verdict, Arrays]:
        """Return the verdict of a step and the target's answers, by one read if the verifier allows it."""
        drawn = step.drawn
        assert step.logits is not None
        if self.speculation is None or not len(step.draft.tokens):
            assert step.draws is not None
            return read_draws(step.draws, drawn, answers)
        verifier = self.speculation.verifier
        if not verifier.is_on_device:
            return self._verdict(step), read(answers)
        step.draft.lengths = [item.num_draft for item in drawn.items]
        decided = verifier.verify_on_device(step.draft, step.logits, step.noise, step.draws, drawn.greedy)
        return read_verdict(decided, step.draft, step.there, drawn, answers)

    def _commit(self, step: Step) -> None:
        """Append what was emitted, keep the rows of what was accepted, end what is over."""
        self._score_prompts(step)
        self._target.arena.keep(
            (item.request.segment, item.start + 1, item.accepted) for item in step.items if item.parents is not None
        )
        self._prefix.keep_rows(step.items, step.out)
        at = 0
        for item in step.items:
            request, committed = item.request, item.committed
            if self.speculation is not None:
                if request.taken and self.speculation.runner.wants_rows:
                    first = item.start - request.taken
                    states = self._prefix.rows_of(request, first, request.taken)
                    self.speculation.runner.commit(request, first, request.taken, *states)
                self.speculation.commit(item, committed, step.out, at)
            request.run_len, request.taken = item.start + len(committed), 0
            if not item.wants:
                self._prefix.publish(request)
            at += len(item.ids)
        logits = step.logits if self._logprobs.processed else step.out.logits
        for item in step.drawn.items:
            self._append(item)
        if logits is not None:
            drawn = step.drawn.items
            emitted = [(item.request, item.emitted[: item.kept], item.logits_rows[: item.kept]) for item in drawn]
            self._logprobs.add(emitted, logits)

    def _append(self, item: ScheduledRows) -> None:
        """Give a request the ids that its stop rules leave, count them, and end it where a rule fires."""
        request = item.request
        if request.error is not None:
            logger.error("%s", request.error)
            self.end(request, "error")
            return
        item.kept, reason, stop_reason = self._rules.cut(request, item.emitted)
        emitted = item.emitted[: item.kept]
        request.append(emitted)
        self._prefix.publish(request)
        self._sampler.commit(request, emitted)
        if not item.prompt:
            request.metrics.add_row(
                item.proposed, item.num_draft, len(item.accepted), item.kept, item.draft_depth, asked=item.asked
            )
            if item.part is not None:
                request.metrics.add_parts(item.part.tolist(), item.accepted.tolist())
        if reason is not None:
            self.end(request, reason, stop_reason)

    def _score_prompts(self, step: Step) -> None:
        """Add the log-probabilities of the prompt ids that this step's prompt chunks predict."""
        if step.out.scored is None:
            return
        scored = [item for item in step.items if item.scored]
        hidden = torch.split(step.out.scored, [len(item.scored) for item in scored])
        for item, states in zip(scored, hidden, strict=True):
            for part in torch.split(states, HEAD_ROWS):
                self._logprobs.add_prompt(item.request, self._target.compute_logits(part))

    def _end_scored(self, items: Sequence[ScheduledRows]) -> list[Request]:
        """End the requests that asked for nothing but the log-probabilities of their prompts, and have them now."""
        scored = [item.request for item in items if item.request.only_scored]
        ended = [request for request in scored if request.run_len == request.prompt_len]
        for request in ended:
            self.end(request, "length")
        return ended

    def end(self, request: Request, reason: StopKind, stop_reason: int | str | None = None) -> None:
        """End a request and free what it holds."""
        request.finish_reason, request.stop_reason = reason, stop_reason
        self._scheduler.remove(request)
        self._sampler.finish(request)
        if self.speculation is not None:
            self.speculation.finish(request, "aborted" if reason in ("abort", "error") else "done")
