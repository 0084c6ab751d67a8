"""One call of a verifier: its drafts, distributions, logits and noise, and the walk that rules share; knows no rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import BoolArray, Draft, IntArray
from specdec_core.errors import ContractError
from specdec_core.noise import Noise, Purpose
from specdec_core.registry.kernels import Kernels
from specdec_nn.device_copies import to_device
from specdec_nn.ops.draw.reference import argmax
from specdec_plugin_verifiers.distributions import DistributionReader, Distributions, Remainder
from specdec_plugin_verifiers.tree import Families, Forest, Places

Floats = npt.NDArray[np.float64]
Chance = Callable[[Places, Places, Families], Floats]


def refuse_trees(draft: Draft, name: str) -> None:
    """Raise ContractError for a tree, given to the verifier `name`, which is for chains."""
    if draft.parents is not None:
        message = f"the verifier {name!r} is for chains, and the draft has parents; 'standard' verifies trees"
        raise ContractError(message)


def given(values: Any) -> Tensor | None:
    """Return the ids or rows of a draft if they are a tensor."""
    return values if isinstance(values, Tensor) else None


def outline(draft: Draft) -> Draft:
    """Return a draft with zeros for ids, and -1 for parents and rows of q, that are on a device."""
    count = sum(draft.lengths or ())
    if given(draft.parents) is not None:
        draft = replace(draft, parents=np.full(count, -1, np.int32))
    if given(draft.tokens) is not None:
        draft = replace(draft, tokens=np.zeros(count, np.int32))
    if given(draft.q_row) is not None:
        draft = replace(draft, q_row=np.full(count, -1, np.int32))
    return draft


@dataclass(slots=True)
class Children:
    """`Families` of all R logits rows as tensors: nodes, tokens and soft [R, C], q_row [R]."""

    nodes: Tensor
    tokens: Tensor
    soft: Tensor
    q_row: Tensor


class Judge:
    """What a verifier keeps between calls: the kernels, and the map of a draft vocabulary."""

    def __init__(self, kernels: Kernels) -> None:
        """Take the session's kernels; those of a CPU compile now, or load what was compiled, if steps will use them."""
        self.kernels: Final = kernels
        self.distributions: Final = DistributionReader()
        if not torch.cuda.is_available():
            self._warm_up()

    def _warm_up(self) -> None:
        """Call the ops on a draft of one id."""
        draft = Draft.of([[0]])
        draft.q, draft.q_row = torch.ones(1, 1), np.zeros(1, np.int32)
        noise = Noise(np.zeros(2, np.uint64), np.zeros(2, np.int32), np.zeros(2, np.int32))
        call = self.trial(draft, torch.zeros(2, 1), noise, None, np.zeros(1, np.bool_))
        rows = np.zeros(1, np.int64)
        families = call.forest.families(rows)
        call.uniforms(rows, families.tokens)
        given = (call.tensor(values) for values in (families.tokens, families.soft, families.q_row))
        p = call.distribution(rows)
        _, alpha, beta = call.op("accept")(p, *given, call.distributions)
        index = torch.from_numpy(rows)
        left = Remainder(index, alpha, beta, index, index[:, None])
        call.op("excess")(p, left, call.distributions)
        call.op("residual")(p, left, call.distributions, call.noise_at(rows), Purpose.RESIDUAL)

    def trial(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Trial:
        """Read the arguments of one call."""
        distributions = self.distributions.read(draft, logits.shape[1], logits.device)
        return Trial.of(self.kernels, distributions, draft, logits, noise, target_draws, greedy)


@dataclass
class Trial:
    """The arguments of one call of `Verifier.verify`, read; R logits rows, n batch rows.

    `on_host` says that results can be read without waiting, so that what is not needed need not be computed. `tokens`,
    `q_rows` and `parents` [N] are the nodes' ids, rows of q, and parents within their trees where these are on a
    device; `forest` has zeros and -1 for them. With `parents`, `noise` has the positions of the newest ids' rows, see
    `specdec_core.protocols.VerifiesOnDevice`.
    """

    kernels: Kernels
    forest: Forest
    distributions: Distributions
    logits: Tensor
    noise: Noise
    draws: Tensor | None
    greedy: BoolArray
    on_host: bool
    tokens: Tensor | None = None
    q_rows: Tensor | None = None
    parents: Tensor | None = None

    @classmethod
    def of(
        cls,
        kernels: Kernels,
        distributions: Distributions | None,
        draft: Draft,
        logits: Tensor,
        noise: Noise,
        *rest: Any,
    ) -> Trial:
        """Read the arguments of a call, `rest` being the draws and greedy; None: the rule has no use for q."""
        if distributions is None:
            none = torch.zeros(0, 1, device=logits.device)
            distributions = Distributions(none, none[:, 0].double())
        draws, greedy = rest
        forest = Forest.of(outline(draft))
        ids = (given(draft.tokens), given(draft.q_row), given(draft.parents))
        on_host = logits.device.type == "cpu"
        return cls(kernels, forest, distributions, logits, noise, draws, np.asarray(greedy, np.bool_), on_host, *ids)

    def read_form(self) -> Trial:
        """Return a call whose trees the host knows; where their form is on a device, it is read."""
        if self.parents is None:
            return self
        lengths = np.diff([*self.forest.starts, len(self.logits)]) - 1
        parents: IntArray = self.parents.cpu().numpy().astype(np.int32)
        q_row = self.forest.q_row.astype(np.int32)
        forest = Forest.of(Draft(lengths.tolist(), self.forest.tokens, parents, q_row=q_row))
        noise = replace(self.noise, positions=self.noise.positions + forest.depths)
        return replace(self, forest=forest, noise=noise, parents=None)

    def op(self, name: str) -> Callable[..., Any]:
        """Return the best kernel of an op where the logits are."""
        return self.kernels.get(name, self.logits.device)

    def tensor(self, values: npt.NDArray[Any]) -> Tensor:
        """Return an array where the logits are."""
        return to_device(values, self.logits.device)

    def children(self) -> Children:
        """Return the children of the nodes of all logits rows, where the logits are."""
        families = self.forest.families(np.arange(len(self.logits)))
        nodes, tokens, soft = map(self.tensor, (families.nodes, families.tokens, families.soft))
        there, at = nodes >= 0, nodes.clamp_min(0)
        q_row = self.tensor(families.q_row)
        if self.tokens is not None and len(self.tokens):
            tokens = torch.where(there, self.tokens.long()[at], -1)
        if self.q_rows is not None and len(self.q_rows):
            rows = torch.where(there, self.q_rows.long()[at], -1)
            soft, q_row = rows >= 0, rows.amax(1)
        return Children(nodes, tokens, soft, q_row)

    def noise_at(self, rows: Places) -> Noise:
        """Return the noise of some logits rows."""
        return Noise(self.noise.keys[rows], self.noise.positions[rows], self.noise.seq_index[rows])

    def distribution(self, rows: Places) -> Tensor:
        """Return the target's distribution p at some logits rows, [a, V] float32."""
        whole = len(rows) == len(self.logits) and bool((rows == np.arange(len(rows))).all())
        return torch.softmax((self.logits if whole else self.logits[self.tensor(rows)]).float(), dim=-1)

    @cached_property
    def answers(self) -> Tensor:
        """What greedy requests emit at each logits row, [R] int64; the host knows, if it draws."""
        return argmax(self.logits.float()) if self.draws is None else self.draws.to(self.logits.device)

    @cached_property
    def owners(self) -> Places:
        """The batch row of each logits row, [R]."""
        return np.repeat(np.arange(len(self.forest.starts)), np.diff([*self.forest.starts, len(self.logits)]))

    @cached_property
    def host_draws(self) -> Places | None:
        """The ids that the host drew, [R]."""
        return None if self.draws is None else self.draws.cpu().numpy()

    def best(self, rows: Places) -> Places:
        """Return the most likely id at some logits rows, the lowest of equal ones."""
        most: Places = argmax(self.logits[self.tensor(rows)].float()).cpu().numpy()
        return most

    def greedy_draws(self, rows: Places) -> Places:
        """Return what greedy decoding emits at some logits rows of greedy requests; the host knows, if it draws."""
        return self.best(rows) if self.host_draws is None else self.host_draws[rows]

    def follow_greedy(self, ratio: Floats, rows: Places, owners: Places, families: Families) -> Floats:
        """Return ratios in which, for greedy requests, the child that is the most likely id is certain, no other is."""
        at = np.flatnonzero(self.greedy[owners])
        if len(at):
            ratio[at] = np.where(families.tokens[at] == self.greedy_draws(rows[at])[:, None], np.inf, 0.0)
        return ratio

    def walk(self, chance: Chance) -> tuple[Places, Places]:
        """Walk from the newest ids to children that are accepted, level by level, until there are none.

        `chance(rows, owners, families)` gives the ratio [a, C] of each child of the nodes at `rows`, which belong to
        the batch rows `owners`: a child is accepted if it is the first with u < ratio. Uniforms are keyed by the
        child's id, so that siblings have different ones. It is asked for reached nodes only. Returns the paths
        [n, depth], -1 after the end, and the logits rows [n] where they stop.
        """
        stops, active = self.forest.starts.copy(), np.arange(len(self.forest.starts))
        levels: list[Places] = []
        while True:
            active = active[self.forest.first_child[stops[active]] >= 0]
            if not len(active):
                break
            rows = stops[active]
            families = self.forest.families(rows)
            accepted = self.uniforms(rows, families.tokens) < chance(rows, active, families)
            accepted &= families.nodes >= 0
            some, first = accepted.any(1), accepted.argmax(1)
            node = families.nodes[some, first[some]]
            active = active[some]
            stops[active] = self.forest.own_row[node]
            level = np.full(len(stops), -1, np.int64)
            level[active] = node
            levels.append(level)
        path = np.stack(levels, 1) if levels else np.empty((len(stops), 0), np.int64)
        return path, stops

    def uniforms(self, rows: Places, words: Places) -> Floats:
        """Return u [a, c] at some logits rows, keyed by words [a, c] besides."""
        uniform = self.kernels.get("uniform", "cpu")  # a few numbers that the host needs
        u: Floats = uniform(self.noise_at(rows), Purpose.ACCEPT, torch.from_numpy(words)).numpy()
        return u
