"""How a drafter with logits picks its tokens: the most likely one, or a draw whose q is reported as it was used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import BatchView, Draft, IntArray
from specdec_core.noise import GREEDY_BELOW, Noise, Purpose
from specdec_nn.device_copies import all_to_device, to_device
from specdec_nn.drafters.device_drafts import flat_chains
from specdec_nn.ops.race.reference import exponential_reference

if TYPE_CHECKING:
    from specdec_core.context import ProposerBuild

Race = Callable[[Tensor, Noise, int], Tensor]
Indices = npt.NDArray[np.int64]
Mode = Literal["greedy", "probabilistic", "shared"]


class Wanting(Protocol):
    """The A rows of a batch that want drafts, in order."""

    index: Indices  # [A] their batch rows
    batch: BatchView


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return values and indices of the k largest of each row [n, m], [n, k], the lowest index first among equals.

    x is of a float dtype. The host does not wait for a device.
    """
    if x.device.type != "cpu":
        return largest_by_keys(x, k)
    values, ids = x.topk(k, dim=-1)
    # topk promises no order among equals, neither inside nor at its end.
    if bool(((x >= values[:, -1:]).sum(dim=-1) > k).any()):
        values, ids = torch.sort(x, dim=-1, descending=True, stable=True)
        return values[:, :k], ids[:, :k]
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def largest_by_keys(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return what `largest` does without a look at the values, so that there is nothing to wait for.

    A value of up to 32 bits and its index are one whole number, of which no two are equal; float64 is sorted.
    """
    if x.dtype is torch.float64:
        values, ids = torch.sort(x, dim=-1, descending=True, stable=True)
        return values[:, :k], ids[:, :k]
    bits = (x.float() + 0.0).contiguous().view(torch.int32)  # no negative zeros: equal values have equal bits
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    keys = order | (0xFFFFFFFF - torch.arange(x.shape[-1], device=x.device))
    ids = 0xFFFFFFFF - (keys.topk(k, dim=-1).values & 0xFFFFFFFF)
    return x.gather(-1, ids), ids


class DraftSampler:
    """Picks drafts for a round.

    mode "greedy" takes the largest logit, the lowest id on ties. "probabilistic" draws from softmax(logits / T) with
    the request's temperature T, and reports that very distribution; requests at temperature 0 get the largest logit.
    "shared" draws in the same way by the target's own noise: then a draft equals the host's draw as often as the
    distributions agree.
    """

    def __init__(self, mode: Mode, race: Race, vocab_size: int) -> None:
        """Take the mode, the `race` kernel and the number of target ids."""
        self.mode = mode
        self.race = race
        self.vocab_size = vocab_size

    @classmethod
    def of(cls, build: ProposerBuild) -> DraftSampler:
        """Return the sampler that the traits ask for, which follow `draft_sample_method`."""
        mode: Mode = "greedy"
        if build.traits.draft_distribution == "soft":
            mode = "shared" if build.traits.shares_noise else "probabilistic"
        return cls(mode, build.kernels.get("race", build.target.device), build.target.info.vocab_size)

    def begin(self, drafts: Wanting, d2t: Tensor | None) -> Picks:
        """Begin a round of chains."""
        return Picks(self, drafts, d2t)


class Picks:
    """The tokens picked for chains so far."""

    def __init__(self, sampler: DraftSampler, drafts: Wanting, d2t: Tensor | None) -> None:
        """Begin with none."""
        self._sampler = sampler
        self._drafts = drafts
        self._d2t = d2t
        self._columns: list[tuple[Indices, Tensor]] = []  # of each depth: the chains, and their target ids
        self._distributions: list[Tensor] = []
        self._distribution_rows: list[
            IntArray
        ] = []  # of each depth: the row of the distribution of each chain, -1 = a point mass
        temperatures = [float(drafts.batch.request(i).sampling_params.temperature) for i in drafts.index.tolist()]
        self._temperatures = np.array(temperatures, np.float32)

    def pick(self, logits: Tensor, active: Indices, depth: int) -> Tensor:
        """Return target ids [a] int64 for logits [a, V_d] of the chains `active`, which are at `depth`."""
        ids = logits.argmax(dim=-1)
        distribution_rows = np.full(len(active), -1, np.int32)
        drawn = np.flatnonzero(self._temperatures[active] >= GREEDY_BELOW)
        if self._sampler.mode != "greedy" and len(drawn):
            some, temperatures = all_to_device((drawn, self._temperatures[active[drawn]]), logits.device)
            distribution = torch.softmax(logits[some].float() / temperatures[:, None], dim=-1)
            ids[some] = self._race(distribution, active[drawn], depth)
            if self._sampler.mode == "probabilistic":
                distribution_rows[drawn] = self._add_distributions(distribution)
        tokens = ids if self._d2t is None else ids + self._d2t[ids]
        self._columns.append((active, tokens))
        self._distribution_rows.append(distribution_rows)
        return tokens

    def _race(self, distribution: Tensor, chains: Indices, depth: int) -> Tensor:
        """Return draft ids drawn from distributions [a, V_d]."""
        noise = self._noise(chains, depth)
        if self._sampler.mode == "probabilistic":
            return self._sampler.race(distribution, noise, Purpose.DRAFT)
        # The target's noise is keyed by target ids.
        if self._d2t is None:
            return self._sampler.race(distribution, noise, Purpose.TARGET)
        targets = torch.arange(distribution.shape[1], device=distribution.device) + self._d2t
        wide = distribution.new_zeros(distribution.shape[0], self._sampler.vocab_size)
        wide[:, targets] = distribution
        drawn = self._sampler.race(wide, noise, Purpose.TARGET)
        back = torch.empty(self._sampler.vocab_size, dtype=torch.int64, device=distribution.device)
        back[targets] = torch.arange(distribution.shape[1], device=distribution.device)
        return back[drawn]

    def children(self, logits: Tensor, nodes: int, width: int, depth: int) -> tuple[Tensor, Any]:
        """Pick `width` different tokens for each of `nodes` tree nodes of every request, all at one depth.

        logits [A * nodes, V_d], those of a request one after the other. Returns target ids and rows of distributions,
        each [A, nodes, width]; the rows are an array, or on another device than the CPU a tensor. Drawn children come
        first, in drawn order and without replacement, with the row of their node's distribution; the others by
        descending logit, with -1 as point masses.
        """
        requests = len(self._drafts.index)
        ids = largest(logits, width)[1]
        distribution_rows: Any = np.full((requests * nodes, width), -1, np.int32)
        if logits.device.type != "cpu":
            distribution_rows = torch.full((requests * nodes, width), -1, dtype=torch.int32, device=logits.device)
        drawn = np.flatnonzero(np.repeat(self._temperatures >= GREEDY_BELOW, nodes))
        if self._sampler.mode != "greedy" and len(drawn):
            some, temperatures = all_to_device((drawn, self._temperatures[drawn // nodes]), logits.device)
            distribution = torch.softmax(logits[some].float() / temperatures[:, None], dim=-1)
            ids[some] = self._without_replacement(distribution, logits[some], drawn // nodes, depth, width)
            possible = distribution.gather(1, ids[some]) > 0
            kept = self._add_distributions(distribution)[:, None]
            if logits.device.type == "cpu":
                distribution_rows[drawn] = np.where(possible.numpy(), kept, -1)
            else:
                distribution_rows[some] = torch.where(possible, to_device(kept, logits.device), -1)
        tokens = ids if self._d2t is None else ids + self._d2t[ids]
        return tokens.view(requests, nodes, width), distribution_rows.reshape(requests, nodes, width)

    def _without_replacement(
        self, distribution: Tensor, logits: Tensor, requests: Indices, depth: int, width: int
    ) -> Tensor:
        """Return draft ids [n, width] drawn one after the other from distributions [n, V_d], never one twice.

        The largest of p / e with exponential e are such draws, in order. Nodes of one request at one depth share their
        noise: of those only one can be reached, and which one depends on earlier places alone. Ids of probability 0
        (in float32, at low temperatures nearly all) cannot be drawn; where the others run out, the likeliest follow.
        """
        noise = self._noise(requests, depth)
        ids = torch.arange(distribution.shape[1], device=distribution.device)
        races = distribution.double() / exponential_reference(noise, Purpose.DRAFT, ids)
        never = logits.double() - logits.amax(dim=-1, keepdim=True) - 1.0  # below every race
        return largest(torch.where(distribution > 0, races, never), width)[1]

    def _noise(self, requests: Indices, depth: int) -> Noise:
        noise, rows = self._drafts.batch.noise, self._drafts.index[requests]
        return Noise(noise.keys[rows], noise.positions[rows] + np.int32(depth), noise.seq_index[rows])

    def _add_distributions(self, distribution: Tensor) -> IntArray:
        """Keep distributions [n, V_d], and return their rows in q."""
        before = sum(len(distributions) for distributions in self._distributions)
        self._distributions.append(distribution)
        return np.arange(before, before + len(distribution), dtype=np.int32)

    def draft(self) -> Draft:
        """Return the chains; on another device than the CPU their ids stay there (`Draft.on_device`)."""
        chains = len(self._drafts.index)
        if self._columns and self._columns[0][1].device.type != "cpu":
            tokens_there, lengths, distributions = flat_chains(chains, self._columns, self._distribution_rows)
            return self._with_distributions(lengths, tokens_there, None, distributions)
        tokens = np.full((chains, len(self._columns)), -1, np.int32)
        q_row = np.full_like(tokens, -1)
        for depth, ((active, ids), rows) in enumerate(zip(self._columns, self._distribution_rows, strict=True)):
            tokens[active, depth] = ids.numpy()
            q_row[active, depth] = rows
        taken = tokens >= 0
        return self._with_distributions(taken.sum(axis=1), tokens[taken], None, q_row[taken])

    def tree(self, lengths: IntArray, tokens: Tensor, parents: IntArray, q_row: Any) -> Draft:
        """Return trees of `lengths` [A] nodes.

        tokens, q_row  [A, n] ids and rows of q of as many nodes as the largest tree has, in order; the rows as
                       `children` returns them
        parents        [n] of these nodes
        """
        taken = np.arange(len(parents))[None, :] < lengths[:, None]
        above: IntArray = np.broadcast_to(parents.astype(np.int32), taken.shape)[taken]
        if tokens.device.type == "cpu":
            return self._with_distributions(lengths, tokens.numpy().astype(np.int32)[taken], above, q_row[taken])
        places = to_device(np.flatnonzero(taken), tokens.device)
        return self._with_distributions(lengths, tokens.flatten()[places].int(), above, q_row.flatten()[places])

    def _with_distributions(self, lengths: IntArray, tokens: Any, parents: IntArray | None, q_row: Any) -> Draft:
        q = torch.cat(self._distributions) if self._distributions else None
        return Draft(
            lengths=lengths.tolist(),
            tokens=tokens,
            parents=parents,
            q=q,
            q_row=None if q is None else q_row,
            d2t=None if q is None else self._d2t,
        )
