"""A host in small: leads a proposer through the lives of scripted requests, by views alone, with no model run.

Each request's text, hidden states, draft limits and accepted counts depend on its script and its own step number only,
so that a proposer whose rows are independent drafts the same for a request alone and in company. Batch rows are
shuffled at every step, requests join and leave, prompts come in chunks, rows may get gaps and steps without
speculation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import BatchView, Draft, FinishReason, Rows
from specdec_core.noise import Noise, request_key
from specdec_core.protocols import Proposer
from specdec_core.sources import TargetHandle
from specdec_core.traits import MethodTraits
from specdec_testing.checking import draft_problems, host_rows
from specdec_testing.fakes import FakeRequest


@dataclass(frozen=True)
class Script:
    """What happens to one request.

    name, prompt, seed      who it is and what drives its text; the same seed means the same life
    steps                   decode steps, unless the context ends earlier
    join                    the host's step at which it arrives
    chunk                   prompt positions a step
    limits                  `max_draft` of its decode steps, repeated
    accept                  how many of its drafts the pretended target accepts, repeated, cut to what was drafted
    skip                    positions at its start whose rows are never delivered, as after a prefix-cache hit
    off                     its decode steps at which speculation is off for it
    preempt                 the decode step after which it is preempted and run again, or None
    reason                  how it ends
    temperature, seq_index  of its sampling
    noise_seed              of its noise alone, where that shall differ from one life to the next; None: `seed`
    """

    name: str
    prompt: tuple[int, ...]
    seed: int = 0
    steps: int = 6
    join: int = 0
    chunk: int = 1000
    limits: tuple[int, ...] = (4,)
    accept: tuple[int, ...] = (1, 0, 4)
    skip: int = 0
    off: frozenset[int] = frozenset()
    preempt: int | None = None
    reason: FinishReason = "done"
    temperature: float = 0.0
    seq_index: int = 0
    noise_seed: int | None = None


@dataclass
class _Life:
    """One request while it runs: its script, its view, how far the pretended target and the deliveries have come."""

    script: Script
    view: FakeRequest
    hidden: Tensor
    aux: Tensor
    rng: np.random.Generator
    run_len: int = 0
    step: int = 0
    first_row: int = 0
    delivered: int = 0
    started: bool = False
    retired: bool = False
    last: list[int] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)


class Driver:
    """Drives one proposer; `problems` gathers every draft out of contract, `longest` is the longest draft seen."""

    def __init__(
        self, proposer: Proposer, traits: MethodTraits, target: TargetHandle, *, shuffle_seed: int = 0
    ) -> None:
        """Keep the proposer and what it may know of the target."""
        self.proposer = proposer
        self.traits = traits
        self.target = target
        self.problems: list[str] = []
        self.longest = 0
        self.look: Callable[[BatchView], None] | None = None
        self.see: Callable[[BatchView, Draft], None] | None = None
        self._shuffle = np.random.default_rng(shuffle_seed)

    def run(self, scripts: Sequence[Script]) -> dict[str, list[list[int]]]:
        """Live all scripts in one batch; return each request's drafts, one list a call in which it took part."""
        waiting, living = list(scripts), list[_Life]()
        drafts: dict[str, list[list[int]]] = {}
        for now in range(10_000):
            living += [self._begin(script) for script in waiting if script.join <= now]
            waiting = [script for script in waiting if script.join > now]
            if not living and not waiting:
                return drafts
            for life in living:
                self._advance(life)
                drafts[life.script.name] = life.drafts
            living = [life for life in living if not self._ended(life)]
            self._propose([life for life in living if self._takes_part(life)])
        message = "scripts did not come to an end in 10000 steps"
        raise RuntimeError(message)

    def _begin(self, script: Script) -> _Life:
        """Make the view and the states of a request."""
        rng = np.random.default_rng([script.seed, len(script.prompt)])
        generator = torch.Generator().manual_seed(script.seed)
        size = (self.target.info.max_model_len, 1 + len(self.traits.aux_layers), self.target.info.hidden_size)
        states = torch.randn(size, generator=generator).to(self.target.device, self.target.dtype)
        view = FakeRequest(
            script.name, script.prompt, seq_index=script.seq_index, temperature=script.temperature, seed=script.seed
        )
        return _Life(script, view, states[:, 0], states[:, 1:], rng, delivered=0, first_row=script.skip)

    def _advance(self, life: _Life) -> None:
        """Run a prompt chunk, or verify the last drafts: accept some and emit one id more."""
        if not life.started and not life.retired:
            self.proposer.start(life.view.view)
            life.started = True
        known = len(life.view.tokens)
        if life.run_len < known - (known > life.view.prompt_len):
            end = known if known == life.view.prompt_len else known - 1
            life.run_len = min(life.run_len + life.script.chunk, end)
            if life.run_len == life.view.prompt_len == known:
                life.view.extend([self._next_id(life)])
            return
        accepted = min(_nth(life.script.accept, life.step), len(life.last))
        life.view.extend(life.last[:accepted])
        life.view.extend([self._next_id(life)])
        life.run_len = len(life.view.tokens) - 1
        life.step += 1

    def _next_id(self, life: _Life) -> int:
        """Return the next id of the text: half the time one that is in it already, so that lookups find something."""
        tokens = life.view.tokens
        if life.rng.random() < 0.5:
            return int(tokens[int(life.rng.integers(len(tokens)))])
        return int(life.rng.integers(3, self.target.info.vocab_size))

    def _ended(self, life: _Life) -> bool:
        """Finish a request whose script is over; preempt it where the script says so."""
        script = life.script
        room = self.target.info.max_model_len - len(life.view.tokens)
        if life.step >= script.steps or room < 2:
            if life.started:
                self.proposer.finish(life.view.view, script.reason)
            return True
        if script.preempt is not None and life.step == script.preempt and life.run_len == len(life.view.tokens) - 1:
            if life.started:
                self.proposer.finish(life.view.view, "preempted")
            life.started, life.run_len, life.first_row, life.delivered, life.last = False, 0, script.skip, 0, []
            life.script = Script(**{**script.__dict__, "preempt": None})
            self._advance(life)
        return False

    def _takes_part(self, life: _Life) -> bool:
        """Say whether a request is in this call; while speculation is off it is not, as its traits describe."""
        off = life.step in life.script.off and self._newest_known(life)
        if off:
            life.last = []
            if self.traits.when_off == "gap":
                life.first_row = life.run_len
            if self.traits.when_off == "retire" and life.started:
                life.retired, life.started = True, False
                self.proposer.finish(life.view.view, "aborted")
        return not off and not life.retired

    def _newest_known(self, life: _Life) -> bool:
        return life.run_len == len(life.view.tokens) - 1 >= life.view.prompt_len

    def _propose(self, lives: list[_Life]) -> None:
        """Make one call for the requests that take part, in shuffled order."""
        if not lives:
            return
        lives = [lives[i] for i in self._shuffle.permutation(len(lives))]
        batch = BatchView(
            requests=[life.view.view for life in lives],
            run_len=np.asarray([life.run_len for life in lives], np.int32),
            newest_known=np.asarray([self._newest_known(life) for life in lives], np.bool_),
            max_draft=np.asarray([self._limit(life) for life in lives], np.int32),
            noise=_noise(lives),
            rows=self._rows(lives),
        )
        if self.look is not None:
            self.look(batch)
        draft: Draft = self.proposer.propose(batch)
        if self.see is not None:
            self.see(batch, draft)
        found = draft_problems(draft, batch, self.traits, self.target.info.vocab_size)
        self.problems += found
        rows = [[] for _ in lives] if found else host_rows(draft)
        chains = self.traits.shape == "chain"
        for life, row in zip(lives, rows, strict=True):
            life.last = row if chains else []
            life.drafts.append(row)
            self.longest = max(self.longest, len(row))

    def _limit(self, life: _Life) -> int:
        """Return the most drafts a request may get now, with the limits that a host applies."""
        if not self._newest_known(life):
            return 0
        known = len(life.view.tokens)
        limits = [_nth(life.script.limits, life.step), self.target.info.max_model_len - known - 1]
        if self.traits.max_tokens is not None:
            limits.append(self.traits.max_tokens)
        if self.traits.max_position is not None:
            limits.append(self.traits.max_position - known)
        return max(0, min(limits))

    def _rows(self, lives: list[_Life]) -> Rows | None:
        """Return the rows that the traits ask for, and note them as delivered."""
        if self.traits.rows == "none":
            return None
        index, positions, gaps = [], [], []
        hidden, aux = [], []
        for i, life in enumerate(lives):
            first = max(life.first_row, life.run_len - 1 if self.traits.rows == "last" else 0)
            own = list(range(first, life.run_len))
            gaps.append(self.traits.rows == "all" and bool(own) and own[0] > life.delivered)
            if own:
                life.first_row = life.delivered = life.run_len
            index += [i] * len(own)
            positions += own
            hidden.append(life.hidden[own])
            aux.append(life.aux[own])
        tokens = [int(lives[i].view.tokens[p + 1]) for i, p in zip(index, positions, strict=True)]
        return Rows(
            request=np.asarray(index, np.int32),
            positions=np.asarray(positions, np.int32),
            tokens=np.asarray(tokens, np.int32),
            hidden=torch.cat(hidden) if self.traits.hidden else None,
            aux=torch.cat(aux) if self.traits.aux_layers else None,
            gap=np.asarray(gaps, np.bool_),
        )


def _nth(values: Sequence[int], i: int) -> int:
    return values[i % len(values)]


def _noise_seed(script: Script) -> int:
    return script.seed if script.noise_seed is None else script.noise_seed


def _noise(lives: list[_Life]) -> Noise:
    """Return the noise of the token after each request's newest one."""
    return Noise(
        keys=np.asarray([request_key(_noise_seed(life.script), 0, 0) for life in lives], np.uint64),
        positions=np.asarray([len(life.view.tokens) for life in lives], np.int32),
        seq_index=np.asarray([life.view.seq_index for life in lives], np.int32),
    )
