"""A pretended host: random target states, chunks, rejections, gaps and preemptions, and the oracle's rows beside them.

Knows the proposer contract, and keeps for each request the committed rows that were delivered, as the oracle wants
them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from oracle import Row, Tree
from torch import Tensor

from specdec_core.draft import BatchView, Draft, Rows
from specdec_core.noise import Noise, request_key
from specdec_core.protocols import Proposer
from specdec_core.traits import MethodTraits
from specdec_testing.fakes import FakeRequest, FakeTarget


@dataclass(frozen=True)
class Plan:
    """What happens to a request: its prompt's length and chunks, when it joins, its limits, and its accidents.

    gaps, preempted  rounds of decoding whose rows are dropped; the round after which it is run again from the start
    """

    name: str
    prompt: int
    chunk: int = 1000
    join: int = 0
    limits: tuple[int, ...] = (4,)
    gaps: frozenset[int] = frozenset()
    preempted: int | None = None
    temperature: float = 0.0


@dataclass
class Life:
    """A request while it runs: its view, the target's states, and the rows that the proposer has been given."""

    plan: Plan
    view: FakeRequest
    hidden: Tensor
    aux: Tensor
    rng: np.random.Generator
    run_len: int = 0
    delivered: int = 0
    round: int = 0
    rows: list[Row] = field(default_factory=list)
    drafts: list[tuple[list[int], list[int]]] = field(default_factory=list)  # tokens and parents, one a call

    @property
    def newest_known(self) -> bool:
        return self.run_len == len(self.view.tokens) - 1 >= self.view.prompt_len

    @property
    def limit(self) -> int:
        return self.plan.limits[self.round % len(self.plan.limits)] if self.newest_known else 0

    def state(self, position: int) -> Tensor:
        """Return what the oracle is fed with: the aux states side by side, or the final one."""
        return self.aux[position].flatten() if self.aux.shape[1] else self.hidden[position]


@dataclass
class Call:
    """One `propose`: who took part, and what came back."""

    lives: list[Life]
    batch: BatchView
    draft: Draft


PLANS = (
    Plan("first", prompt=21, chunk=8, limits=(4, 4, 0, 3), gaps=frozenset({2})),
    Plan("second", prompt=3, join=1, limits=(4, 1, 4), preempted=4),
    Plan("third", prompt=40, join=2, limits=(2, 4), gaps=frozenset({4})),
)


class Host:
    """Leads one proposer through the lives of some requests; `look` sees every call before the next step."""

    def __init__(
        self, proposer: Proposer, traits: MethodTraits, target: FakeTarget, plans: Sequence[Plan] = PLANS, seed: int = 0
    ) -> None:
        """Draw the texts and states of the requests."""
        self.proposer, self.traits, self.target = proposer, traits, target
        self._rng = np.random.default_rng(seed)
        self.waiting = [self._life(plan, seed + i) for i, plan in enumerate(plans)]
        self.lives: list[Life] = []
        self.now = 0

    def _life(self, plan: Plan, seed: int) -> Life:
        rng = np.random.default_rng([seed, plan.prompt])
        generator = torch.Generator().manual_seed(seed)
        size = (self.target.info.max_model_len, 1 + len(self.traits.aux_layers), self.target.info.hidden_size)
        states = torch.randn(size, generator=generator).to(self.target.dtype)
        prompt = rng.integers(3, self.target.info.vocab_size, plan.prompt).tolist()
        view = FakeRequest(plan.name, prompt, temperature=plan.temperature, seed=seed)
        return Life(plan, view, states[:, 0], states[:, 1:], rng)

    def step(self) -> Call | None:
        """Advance every request by a chunk or a verified draft, then ask for drafts."""
        for life in [life for life in self.waiting if life.plan.join <= self.now]:
            self.waiting.remove(life)
            self.lives.append(life)
            self.proposer.start(life.view)
        self.now += 1
        taking_part = [life for life in self.lives if self._advance(life)]
        if not taking_part:
            return None
        order = self._rng.permutation(len(taking_part))
        return self._propose([taking_part[i] for i in order])

    def _advance(self, life: Life) -> bool:
        """Run a chunk or commit some drafts and one id more; return whether the proposer sees the request now."""
        known = len(life.view.tokens)
        end = max(life.view.prompt_len, known - 1)
        if life.run_len < end:
            life.run_len = min(life.run_len + life.plan.chunk, end)
            if life.run_len == known:
                life.view.extend([self._next(life)])
            return True
        life.view.extend([*self._accepted(life), self._next(life)])
        life.run_len = len(life.view.tokens) - 1
        life.round += 1
        if life.round in life.plan.gaps:
            life.delivered = life.run_len
            life.drafts.append(([], []))
            return False
        if life.round == life.plan.preempted:
            self.proposer.finish(life.view, "preempted")
            self.proposer.start(life.view)
            life.run_len, life.delivered, life.rows = 0, 0, []
            return self._advance(life)
        return True

    def _next(self, life: Life) -> int:
        return int(life.rng.integers(3, self.target.info.vocab_size))

    def _accepted(self, life: Life) -> list[int]:
        """Return the ids on the way to a random node of the last draft, often none."""
        tokens, parents = life.drafts[-1] if life.drafts else ([], [])
        node = int(life.rng.integers(-1, len(tokens))) if life.rng.random() < 0.8 else -1
        path: list[int] = []
        while node >= 0:
            path.append(tokens[node])
            node = parents[node]
        return path[::-1]

    def _propose(self, lives: list[Life]) -> Call:
        """Call the proposer with every row that has not been delivered."""
        spans = [range(life.delivered, life.run_len) for life in lives]
        owner = [i for i, span in enumerate(spans) for _ in span]
        hidden, aux = self.traits.hidden, bool(self.traits.aux_layers)
        rows = Rows(
            request=np.array(owner, np.int32),
            positions=np.array([p for span in spans for p in span], np.int32),
            tokens=np.array(
                [life.view.tokens[p + 1] for life, span in zip(lives, spans, strict=True) for p in span], np.int32
            ),
            hidden=_states([life.hidden[list(span)] for life, span in zip(lives, spans, strict=True)], hidden),
            aux=_states([life.aux[list(span)] for life, span in zip(lives, spans, strict=True)], aux),
            gap=np.array([span.start > _next_position(life) for life, span in zip(lives, spans, strict=True)]),
        )
        for life, span in zip(lives, spans, strict=True):
            life.rows += [Row(int(life.view.tokens[p + 1]), life.state(p), p) for p in span]
            life.delivered = life.run_len
        batch = BatchView(
            requests=[life.view for life in lives],
            run_len=np.array([life.run_len for life in lives], np.int32),
            newest_known=np.array([life.newest_known for life in lives]),
            max_draft=np.array([life.limit for life in lives], np.int32),
            noise=self._noise(lives),
            rows=rows,
        )
        draft = self.proposer.propose(batch)
        draft.check(batch.max_draft, self.target.info.vocab_size, self.traits)
        for life, (tokens, parents) in zip(lives, split(draft), strict=True):
            life.drafts.append((tokens, parents))
        return Call(lives, batch, draft)

    def _noise(self, lives: list[Life]) -> Noise:
        """Return noise that is fresh in every step, as a host gives it to soft drafters."""
        keys = [request_key(None, request_key(i, 0, 0), len(life.view.tokens)) for i, life in enumerate(lives)]
        lengths = [len(life.view.tokens) for life in lives]
        return Noise(np.array(keys, np.uint64), np.array(lengths, np.int32), np.zeros(len(lives), np.int32))


def _next_position(life: Life) -> int:
    return life.rows[-1].position + 1 if life.rows else 0


def split(draft: Draft) -> list[tuple[list[int], list[int]]]:
    """Return tokens and parents of each row; in chains each draft's parent is the one before it."""
    ends = np.cumsum([0, *(draft.lengths or ())])
    parents = draft.parents
    if parents is None:
        parents = np.concatenate([np.arange(n) - 1 for n in draft.lengths or ()])
    spans = [slice(a, b) for a, b in itertools.pairwise(ends.tolist())]
    return [(draft.tokens[span].tolist(), parents[span].tolist()) for span in spans]


class Logits:
    """Keeps the logits of one `propose` of a drafter over features, in the order in which its head was asked."""

    def __init__(self, drafter: Any) -> None:
        self.kept: list[Tensor] = []
        self._original = drafter._head.logits
        drafter._head.logits = self._keep

    def _keep(self, states: Tensor) -> Tensor:
        logits: Tensor = self._original(states)
        self.kept.append(logits.clone())
        return logits


@dataclass
class Agreement:
    """How far drafts were compared.

    drafted  drafts of each request
    margin   the smallest gap that one of them rests on, by the oracle
    error    the largest difference of logits, in parts of the largest logit
    """

    drafted: dict[str, int] = field(default_factory=dict)
    margin: float = float("inf")
    error: float = 0.0


def agreement(
    host: Host, oracle: Callable[[Life, int], Tree], rounds: int = 10, logits: Logits | None = None
) -> Agreement:
    """Run some rounds, assert that each draft is the oracle's, and compare logits if they are kept (chains only).

    The oracle gets each request that may draft, and its limit.
    """
    found = Agreement()
    for _ in range(rounds):
        call = host.step()
        if call is None:
            continue
        trees: list[Tree] = []
        for life in call.lives:
            tokens, parents = life.drafts[-1]
            if life.limit == 0:
                assert tokens == [], "a row that may not draft is empty"
                continue
            tree = oracle(life, life.limit)
            assert (tokens, parents) == (tree.tokens, tree.parents), f"{life.plan.name} in round {life.round}"
            trees.append(tree)
            found.margin = min(found.margin, tree.margin)
            found.drafted[life.plan.name] = found.drafted.get(life.plan.name, 0) + len(tokens)
        if logits is not None:
            found.error = max(found.error, _error(logits.kept, trees))
            logits.kept.clear()
    return found


def _error(kept: Sequence[Tensor], trees: Sequence[Tree]) -> float:
    """Return the largest difference of the logits of chains, kept depth by depth, in parts of the largest logit."""
    worst = 0.0
    for depth, got in enumerate(kept):
        wanted = torch.stack([tree.nodes[depth].logits for tree in trees if len(tree.nodes) > depth])
        wanted = wanted[:, wanted[0].isfinite()]
        assert got.shape == wanted.shape
        worst = max(worst, float((got - wanted).abs().max() / wanted.abs().max()))
    return worst


def _states(parts: list[torch.Tensor], wanted: bool) -> torch.Tensor | None:
    return torch.cat(parts) if wanted else None
