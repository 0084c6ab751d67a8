"""A host without a target: leads a proposer through the lives of scripted requests, by the host half of the core.

Each request's text, hidden states, draft limits and accepted counts depend on its script and its own step number only,
so that a proposer whose rows are independent drafts the same for a request alone and in company. Batch rows are
shuffled at every step, requests join and leave, prompts come in chunks, rows may get gaps and steps without
speculation. When the proposer is called, and with what, is `specdec_core.host.runner.ProposerRunner`'s to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from specdec_core.config.speculative import SpeculativeConfig
from specdec_core.draft import BatchView, Draft, FinishReason, RequestView
from specdec_core.host.budget import DraftBudget
from specdec_core.host.containment import Containment
from specdec_core.host.requests import Slot
from specdec_core.host.runner import ProposerRunner
from specdec_core.host.verified import Answers
from specdec_core.noise import request_key
from specdec_core.protocols import Proposer
from specdec_core.sources import TargetHandle
from specdec_core.stats import StepStats
from specdec_core.traits import MethodTraits
from specdec_testing.checking import draft_problems, host_rows
from specdec_testing.fakes import FakeRequest

METHOD: Final = "the method under test"
CROWD: Final = 1_000_000  # a batch size at which the driver's configuration switches speculation off
SPECULATIVE: Final = SpeculativeConfig(disable_by_batch_size=CROWD - 1)


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


@dataclass(eq=False)
class _Life:
    """One request while it runs: its script, its view, how far the pretended target and the deliveries have come.

    It is the `HostRequest` of this host.
    """

    script: Script
    fake: FakeRequest
    hidden: Tensor
    aux: Tensor
    rng: np.random.Generator
    arrival: int
    run_len: int = 0
    step: int = 0
    committed: int = 0
    last: list[int] = field(default_factory=list)
    tree: tuple[list[int], list[int] | None] = field(default_factory=lambda: ([], None))
    drafts: list[list[int]] = field(default_factory=list)
    max_draft: int | None = None

    @property
    def id(self) -> str:
        return self.script.name

    @property
    def view(self) -> RequestView:
        return self.fake.view

    @property
    def seq_index(self) -> int:
        return self.script.seq_index

    @property
    def tokens(self) -> Any:
        return self.fake.tokens

    @property
    def key(self) -> int:
        seed = self.script.seed if self.script.noise_seed is None else self.script.noise_seed
        return request_key(seed, 0, 0)

    def __len__(self) -> int:
        return len(self.fake.tokens)

    @property
    def newest_known(self) -> bool:
        return self.run_len == len(self) - 1 >= self.fake.prompt_len


@dataclass(frozen=True)
class _Configured:
    """What a draft budget reads of a configuration (`specdec_core.host.budget.Limits`)."""

    traits: MethodTraits
    num_speculative_tokens: int
    max_model_len: int
    method: str = METHOD
    config: SpeculativeConfig = SPECULATIVE


class _Scripted:
    """The controller of this host: what the scripts allow."""

    def __init__(self, lives: dict[str, _Life]) -> None:
        self._lives: Final = lives

    def limit(self, requests: Sequence[RequestView], k: Sequence[int]) -> Sequence[int]:
        lives = [self._lives[request.id] for request in requests]
        return [min(most, _nth(life.script.limits, life.step)) for life, most in zip(lives, k, strict=True)]

    def observe(self, stats: StepStats) -> None:
        """There are no figures here."""


class _Watched:
    """The proposer as the runner sees it: shows batches and drafts to the driver, which keeps back what is invalid."""

    def __init__(self, driver: Driver) -> None:
        self._driver: Final = driver
        self.start, self.finish, self.close = driver.proposer.start, driver.proposer.finish, driver.proposer.close

    def propose(self, batch: BatchView) -> Draft:
        return self._driver.asked(batch)


class Driver:
    """Drives one proposer; `problems` gathers every draft out of contract, `longest` is the longest draft seen."""

    def __init__(
        self, proposer: Proposer, traits: MethodTraits, target: TargetHandle, *, shuffle_seed: int = 0
    ) -> None:
        """Take the proposer, and of the target what it may know."""
        self.proposer = proposer
        self.traits = traits
        self.target = target
        self.problems: list[str] = []
        self.longest = 0
        self.look: Callable[[BatchView], None] | None = None
        self.see: Callable[[BatchView, Draft], None] | None = None
        self._shuffle = np.random.default_rng(shuffle_seed)
        self._lives: dict[str, _Life] = {}
        self._arrivals = 0

    def run(self, scripts: Sequence[Script]) -> dict[str, list[list[int]]]:
        """Live all scripts in one batch; return each request's drafts, one list a call in which it took part."""
        runner = self._runner(max(max(script.limits) for script in scripts))
        waiting, living = list(scripts), list[_Life]()
        drafts: dict[str, list[list[int]]] = {}
        for now in range(10_000):
            living += [self._begin(script) for script in waiting if script.join <= now]
            waiting = [script for script in waiting if script.join > now]
            if not living and not waiting:
                return drafts
            for life in living:
                self._advance(life, runner)
                drafts[life.id] = life.drafts
            living = [life for life in living if not self._ended(life, runner)]
            self._step(living, runner)
        message = "scripts did not come to an end in 10000 steps"
        raise RuntimeError(message)

    def asked(self, batch: BatchView) -> Draft:
        """Ask the proposer, note what is out of contract, and return the drafts; none if something is."""
        if self.look is not None:
            self.look(batch)
        draft: Draft = self.proposer.propose(batch)
        if self.see is not None:
            self.see(batch, draft)
        found = draft_problems(draft, batch, self.traits, self.target.info.vocab_size)
        self.problems += found
        rows = [[] for _ in batch.requests] if found else host_rows(draft)
        for request, row in zip(batch.requests, rows, strict=True):
            self._lives[request.id].drafts.append(row)
            self.longest = max(self.longest, len(row))
        return Draft.empty(len(batch)) if found else draft

    def check(self) -> None:
        """Raise AssertionError with the first few drafts out of contract, if there were any."""
        if self.problems:
            raise AssertionError("; ".join(list(dict.fromkeys(self.problems))[:3]))

    def _runner(self, k: int) -> ProposerRunner:
        info = self.target.info
        budget = DraftBudget(_Configured(self.traits, max(1, k), info.max_model_len), _Scripted(self._lives))
        containment = Containment(METHOD, strict=True)
        return ProposerRunner(_Watched(self), self.traits, budget, info.vocab_size, containment)

    def _begin(self, script: Script) -> _Life:
        """Make the view and the states of a request."""
        rng = np.random.default_rng([script.seed, len(script.prompt)])
        generator = torch.Generator().manual_seed(script.seed)
        size = (self.target.info.max_model_len, 1 + len(self.traits.aux_layers), self.target.info.hidden_size)
        states = torch.randn(size, generator=generator).to(self.target.device, self.target.dtype)
        fake = FakeRequest(
            script.name, script.prompt, seq_index=script.seq_index, temperature=script.temperature, seed=script.seed
        )
        self._arrivals += 1
        life = _Life(script, fake, states[:, 0], states[:, 1:], rng, self._arrivals, committed=script.skip)
        self._lives[script.name] = life
        return life

    def _advance(self, life: _Life, runner: ProposerRunner) -> None:
        """Run a prompt chunk, or verify the last drafts: accept some and emit one id more."""
        known = len(life)
        if life.run_len < known - (known > life.fake.prompt_len):
            end = known if known == life.fake.prompt_len else known - 1
            life.run_len = min(life.run_len + life.script.chunk, end)
            if life.run_len == life.fake.prompt_len == known:
                newest = int(life.tokens[-1])
                life.fake.extend([self._next_id(life)])
                self._answer(life, runner, newest, 0)
        else:
            accepted = min(_nth(life.script.accept, life.step), len(life.last))
            newest = int(life.tokens[-1])
            life.fake.extend(life.last[:accepted])
            life.fake.extend([self._next_id(life)])
            self._answer(life, runner, newest, accepted)
            life.run_len = len(life) - 1
            life.step += 1
        self._commit(life, runner)

    def _commit(self, life: _Life, runner: ProposerRunner) -> None:
        """Give the runner the rows that the pretended target has run."""
        rows = slice(life.committed, life.run_len)
        if rows.start < rows.stop:
            hidden = life.hidden[rows] if self.traits.hidden else None
            aux = life.aux[rows] if self.traits.aux_layers else None
            runner.commit(life, rows.start, rows.stop - rows.start, hidden, aux)
            life.committed = life.run_len

    def _answer(self, life: _Life, runner: ProposerRunner, newest: int, accepted: int) -> None:
        """Give the runner what the pretended target answered at the newest id and the last drafts.

        At rows of the text the most likely id is the one that came next; the others are drawn, without repeats, from
        the script's seed and step.
        """
        if not runner.verified_top_k:
            return
        ids, parents = life.tree
        n, rng = self.traits.verified_top_k, np.random.default_rng([life.script.seed, life.step, len(ids)])
        top = np.stack([rng.permutation(self.target.info.vocab_size)[:n] for _ in range(1 + len(ids))])
        for row, token in enumerate(life.tokens[len(life) - 1 - accepted :].tolist()):
            top[row] = [token, *[other for other in top[row].tolist() if other != token]][:n]
        logprobs = np.sort(np.log(rng.dirichlet(np.ones(n + 1), 1 + len(ids)))[:, :n], axis=1)[:, ::-1]
        path = np.arange(accepted, dtype=np.int32)
        own = None if parents is None else np.array(parents, np.int32)
        tokens = np.array([newest, *ids], np.int32)
        runner.answer(life, Answers.of(tokens, own, path, top.astype(np.int32), logprobs.astype(np.float32)))

    def _next_id(self, life: _Life) -> int:
        """Return the next id of the text: half the time what followed the newest id earlier, so that lookups find it.

        For methods that learn from answers, it is one of the output, since nothing is answered inside a prompt.
        """
        if life.rng.random() < 0.5:
            known = life.tokens[life.fake.prompt_len - 1 :] if self.traits.verified_top_k else life.tokens
            after = 1 + np.flatnonzero(known[:-1] == known[-1])
            return int(known[int(life.rng.choice(after if len(after) else len(known)))])
        return int(life.rng.integers(3, self.target.info.vocab_size))

    def _ended(self, life: _Life, runner: ProposerRunner) -> bool:
        """Finish a request whose script is over; preempt it where the script says so."""
        script = life.script
        if life.step >= script.steps or self.target.info.max_model_len - len(life) < 2:
            runner.finish(life, script.reason)
            del self._lives[life.id]
            return True
        if script.preempt is not None and life.step == script.preempt and life.run_len == len(life) - 1:
            runner.finish(life, "preempted")
            life.run_len, life.committed, life.last, life.tree = 0, script.skip, [], ([], None)
            life.script = replace(script, preempt=None)
            self._advance(life, runner)
        return False

    def _step(self, lives: list[_Life], runner: ProposerRunner) -> None:
        """Ask for drafts of all requests, in shuffled order; for those that are off in this step in a call of its own.

        That call has the batch size at which speculation is off, which for a host is so for all requests at once.
        """
        if not lives:
            return
        lives = [lives[i] for i in self._shuffle.permutation(len(lives))]
        off = [life for life in lives if life.newest_known and life.step in life.script.off]
        on = [life for life in lives if life not in off]
        for batch, size in ((off, CROWD), (on, len(on))):
            slots = [Slot(life, life.run_len, life.newest_known, self._room(life)) for life in batch]
            draft = runner.propose(slots, size)
            start = 0
            for life, row in zip(batch, host_rows(draft), strict=True):
                parents = None if draft.parents is None else draft.parents[start : start + len(row)].tolist()
                life.tree = row, parents
                life.last = row if self.traits.shape == "chain" else []  # of trees no draft is accepted
                start += len(row)

    def _room(self, life: _Life) -> int:
        return self.target.info.max_model_len - len(life) - 1


def _nth(values: Sequence[int], i: int) -> int:
    return values[i % len(values)]
