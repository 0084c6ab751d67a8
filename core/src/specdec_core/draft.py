"""The objects that travel through a decoding step: views of requests, drafts, verdicts and step statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from specdec_core.draft_rules import (
    are_distributions,
    check_confidence,
    check_drawn,
    check_families,
    check_order,
    check_siblings,
    is_on_device,
    read,
    values_at,
)
from specdec_core.errors import ContractError
from specdec_core.host.handed import read_only

if TYPE_CHECKING:
    from torch import Tensor

    from specdec_core.noise import Noise
    from specdec_core.traits import MethodTraits

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
FinishReason = Literal["done", "aborted", "preempted", "failed"]
_FLAT_FIELDS = ("parents", "q_row", "confidence", "part")


def _shape_of(value: Any) -> str:
    """Describe an array for an error message."""
    return f"{getattr(value, 'dtype', type(value).__name__)} of shape {tuple(np.shape(value))}"


class SamplingView(Protocol):
    """What a proposer may read of a request's sampling parameters; hosts pass their own objects."""

    @property
    def temperature(self) -> float:
        """0, or below `specdec_core.noise.GREEDY_BELOW`: the most likely id is taken."""

    @property
    def max_tokens(self) -> int | None:
        """The most ids that the request may emit, None for no limit of its own."""


class RequestView(Protocol):
    """One request as a proposer may see it; read-only, one object for the whole life of the request."""

    @property
    def id(self) -> str:
        """Name of the request, unique in a session (samples of one prompt have different ids)."""

    @property
    def seq_index(self) -> int:
        """Index of this sample among the n samples of its prompt."""

    @property
    def prompt_len(self) -> int:
        """Number of prompt ids."""

    @property
    def tokens(self) -> IntArray:
        """All known ids, [prompt + output] int32, read-only: the prompt not yet run and the newest id included."""

    @property
    def sampling_params(self) -> SamplingView:
        """The request's sampling parameters."""

    @property
    def extra(self) -> Any:
        """Validated request options of the method (`specdec_request_options`), or None."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Target rows newly committed since the last call, in the shifted layout of EAGLE and MTP.

    Row r belongs to batch row `request[r]`, has been run at `positions[r]`, and carries `tokens[r]` = the known id
    at position + 1 together with the hidden state at the position. Rejected drafts never appear. The arrays are copies
    that cannot be written into; the tensors are the proposer's own, which it may overwrite: no host reads them again.

    request    [m] int32, ascending
    positions  [m] int32, ascending within a request
    tokens     [m] int32
    hidden     [m, H] final hidden states, or None (`MethodTraits.hidden`)
    aux        [m, layers, H] residual-stream states, or None (`MethodTraits.aux_layers`)
    gap        [n] bool, one per batch row: its first position is above the last one delivered + 1
    """

    request: IntArray
    positions: IntArray
    tokens: IntArray
    hidden: Tensor | None
    aux: Tensor | None
    gap: BoolArray

    def __post_init__(self) -> None:
        """Copy the arrays."""
        for name in ("request", "positions", "tokens", "gap"):
            object.__setattr__(self, name, read_only(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class VerifiedRows:
    """What the target answered in the last step, at every row that it verified: rejected drafts are here, too.

    Of each request that was decoded in that step the first row is its newest id then, and the rows behind it are its
    drafts in their order. The answers are the model's own, before temperature, penalties and truncation. The arrays are
    copies that cannot be written into.

    request       [m] int32 batch row, ascending; a request that has not been decoded in the last step has none
    tokens        [m] int32 the id that was run at the row
    parents       [m] int32 the row before it on its path, counted within the rows of its request; -1 for the first
    accepted      [m] bool the row's id is part of the text
    top_ids       [m, n] int32 the most likely next ids, best first (n is `MethodTraits.verified_top_k`); -1 where fewer
                  have a finite logit
    top_logprobs  [m, n] float32 their log-probabilities; -inf where there is no id
    """

    request: IntArray
    tokens: IntArray
    parents: IntArray
    accepted: BoolArray
    top_ids: IntArray
    top_logprobs: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        """Copy the arrays."""
        for name in ("request", "tokens", "parents", "accepted", "top_ids", "top_logprobs"):
            object.__setattr__(self, name, read_only(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class BatchView:
    """The requests of one step, as `Proposer.propose` gets them; n batch rows.

    All arrays, those of `noise` and `rows` too, are copies that cannot be written into: writing raises ValueError. A
    host checks drafts against its own figures.

    requests      n views; `request(i)` is row i's
    run_len       [n] int32: positions the target has run and kept
    newest_known  [n] bool: the newest id is sampled and not yet run (False inside a prompt)
    max_draft     [n] int32: the most drafts that row may get; 0 = absorb the row and return an empty draft
    noise         counter-based noise of the rows; its position is that of the row's first draft
    rows          newly committed target rows, None where the traits ask for none
    verified      what the target answered at the rows of the last step, None where the traits ask for none
    """

    requests: Sequence[RequestView]
    run_len: IntArray
    newest_known: BoolArray
    max_draft: IntArray
    noise: Noise
    rows: Rows | None = None
    verified: VerifiedRows | None = None

    def __post_init__(self) -> None:
        """Copy what the host goes on to use."""
        object.__setattr__(self, "requests", tuple(self.requests))
        for name in ("run_len", "newest_known", "max_draft"):
            object.__setattr__(self, name, read_only(getattr(self, name)))
        noise = self.noise
        own = type(noise)(read_only(noise.keys), read_only(noise.positions), read_only(noise.seq_index))
        object.__setattr__(self, "noise", own)

    def __len__(self) -> int:
        """Return the number of batch rows."""
        return len(self.requests)

    def request(self, i: int) -> RequestView:
        """Return the request of batch row i."""
        return self.requests[i]


@dataclass(slots=True)
class Draft:
    """Drafts of n batch rows.

    Siblings in a tree stand in the order in which they were made, and no child depends on one after it. A sampled child
    was drawn from the distribution of its parent, either without the siblings before it or independently of them (then
    a repeated id counts once); a point mass may depend on the siblings before it.

    The ids may still be on a device, where the drafter has made them and the target will read them (`on_device`). So
    may `parents`, `q_row` and `confidence` then; lengths never. See `ProposerRunner` for who asks for such drafts.

    lengths     n host ints, or None for a device drafter's fixed-width form
    tokens      flat [sum(lengths)] int32 ids, an array or a tensor; or, with lengths None, [n, width] with -1 where
                there is no draft
    parents     flat [sum(lengths)] int32, the index of each node's parent within its own row, -1 = the newest id;
                None = chains. A parent stands before its children.
    q           [m, V or len(d2t)] float32, the distributions that soft drafts were really drawn from, or None
    q_row       flat int32 like tokens: row of q for each draft, -1 = a point mass; in trees the row of the parent's
                distribution
    d2t         [V_d] int64 offsets: draft id i means target id i + d2t[i] in q's columns; None = target ids
    confidence  flat float32 like tokens, the method's own estimate in 0..1 of the chance that the draft and all before
                it on its path are accepted, or None
    part        flat int32 like tokens, which part of a method that is made of others made each draft, by its place in
                `MethodContext.parts`; None for a method of one piece. For reports only: nothing is decided by it
    """

    lengths: Sequence[int] | None
    tokens: Any
    parents: IntArray | None = None
    q: Tensor | None = None
    q_row: IntArray | None = None
    d2t: Tensor | None = None
    confidence: npt.NDArray[np.float32] | None = None
    part: IntArray | None = None

    @classmethod
    def empty(cls, n: int) -> Draft:
        """Return n empty rows."""
        return cls(lengths=[0] * n, tokens=np.empty(0, np.int32))

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | IntArray]) -> Draft:
        """Return chains from one sequence of ids a row; sequences may be empty and differ in length."""
        arrays = [np.asarray(row, np.int32) for row in rows]
        flat = np.concatenate(arrays) if arrays else np.empty(0, np.int32)
        return cls(lengths=[len(row) for row in arrays], tokens=flat)

    @property
    def on_device(self) -> bool:
        """Whether lengths are known and ids are not: they are a tensor, which a step reads when it is through."""
        return self.lengths is not None and is_on_device(self.tokens)

    @property
    def is_grown(self) -> bool:
        """Whether `parents` are on a device as well: trees of known sizes whose form the host does not know."""
        return is_on_device(self.parents)

    def to_host(self) -> Draft:
        """Return the form with host lengths and ids; a device drafter's rows end at their first negative id.

        This is the one read of a device drafter's result. Raises ContractError for tokens of another shape.
        """
        if self.on_device:
            fields = [name for name in ("tokens", *_FLAT_FIELDS) if is_on_device(getattr(self, name))]
            found: dict[str, Any] = dict(zip(fields, read([getattr(self, name) for name in fields]), strict=True))
            return replace(self, **found)
        if self.lengths is not None:
            return self
        tokens = self.tokens.detach().cpu().numpy() if hasattr(self.tokens, "detach") else np.asarray(self.tokens)
        if tokens.ndim != 2:
            message = f"a draft without lengths must have tokens [rows, width], got shape {tokens.shape}"
            raise ContractError(message)
        valid = np.logical_and.accumulate(tokens >= 0, axis=1)
        flat = tokens[valid].astype(np.int32)
        return Draft([int(n) for n in valid.sum(axis=1)], flat, q=self.q, q_row=self.q_row, d2t=self.d2t)

    def select(self, rows: Sequence[int]) -> Draft:
        """Return the draft of some rows only, in the order given; distributions in `q` are shared, not copied."""
        lengths = list(self.lengths or ())
        if list(rows) == list(range(len(lengths))):
            return self
        ends = np.cumsum([0, *lengths])
        index = [np.arange(ends[i], ends[i + 1]) for i in rows]
        flat = np.concatenate(index) if index else np.empty(0, np.int64)
        part = {name: None if (a := getattr(self, name)) is None else values_at(a, flat) for name in _FLAT_FIELDS}
        return Draft([lengths[i] for i in rows], values_at(self.tokens, flat), q=self.q, d2t=self.d2t, **part)

    def keep(self, mask: BoolArray) -> Draft:
        """Return a host-form draft without the nodes at which `mask`, [sum(lengths)] bool, is False.

        No node may stay without its parent: of a chain a beginning stays, of a tree whole paths from the newest id.
        Parents are numbered anew; distributions in `q` are shared, not copied. Raises ContractError for another mask.
        """
        lengths = np.asarray(self.lengths, np.int64)
        if np.shape(mask) != (int(lengths.sum()),):
            message = f"a mask of {lengths.sum()} drafts has one entry for each, got {_shape_of(mask)}"
            raise ContractError(message)
        if bool(np.all(mask)):
            return self
        row = np.repeat(np.arange(len(lengths)), lengths)
        start = (np.cumsum(lengths) - lengths)[row]
        parents = np.arange(len(row)) - start - 1 if self.parents is None else self.parents
        orphans = mask & (parents >= 0) & ~mask[start + parents]
        if np.any(orphans):
            message = f"draft {int(np.argmax(orphans))} was to stay without its parent"
            raise ContractError(message)
        before: IntArray = np.cumsum(mask, dtype=np.int32) - mask  # how many nodes before this one stay
        kept = np.flatnonzero(mask)
        part = {name: None if (a := getattr(self, name)) is None else values_at(a, kept) for name in _FLAT_FIELDS}
        if self.parents is not None:
            part["parents"] = np.where(parents < 0, -1, before[start + parents] - before[start])[mask]
        left = np.bincount(row[mask], minlength=len(lengths)).tolist()
        return Draft(left, values_at(self.tokens, kept), q=self.q, d2t=self.d2t, **part)

    def check(self, max_draft: Sequence[int] | IntArray, vocab_size: int, traits: MethodTraits) -> None:
        """Raise ContractError unless a host-form draft keeps the contract and its method's traits.

        `max_draft` are the most tokens of each row. Each soft draft has a positive probability in the row of q that it
        names. Siblings differ, but for those drawn from q: a drawn one that repeats another is taken for an independent
        draw and counts once. What is on another device than the CPU is not looked into, since reading it would make the
        loop wait.
        """
        lengths = self.lengths
        if lengths is None or len(lengths) != len(max_draft):
            message = f"the draft has {'no' if lengths is None else len(lengths)} rows for a batch of {len(max_draft)}"
            raise ContractError(message)
        for row, (length, most) in enumerate(zip(lengths, max_draft, strict=True)):
            if not 0 <= length <= most:
                message = f"row {row} has {length} drafts where 0..{most} were allowed"
                raise ContractError(message)
        total = sum(lengths)
        tokens = self.tokens
        is_whole = self.on_device or (isinstance(tokens, np.ndarray) and tokens.dtype.kind == "i")
        if not is_whole or np.shape(tokens) != (total,):
            message = f"tokens must be a flat integer array of {total} ids, got {_shape_of(tokens)}"
            raise ContractError(message)
        if total and not self.on_device and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size):
            message = f"drafted ids {int(tokens.min())}..{int(tokens.max())} leave the vocabulary 0..{vocab_size - 1}"
            raise ContractError(message)
        for name in _FLAT_FIELDS:
            value = getattr(self, name)
            if value is not None and np.shape(value) != (total,):
                message = f"{name} must be flat like tokens ({total}), got {_shape_of(value)}"
                raise ContractError(message)
        if self.confidence is not None and not is_on_device(self.confidence):
            check_confidence(np.asarray(self.confidence))
        if self.is_grown and not self.on_device:
            message = f"parents are on a device, but tokens are {_shape_of(tokens)} of the host"
            raise ContractError(message)
        if self.parents is not None and traits.shape == "chain":
            message = "a method whose traits declare 'chain' set parents"
            raise ContractError(message)
        if self.q is not None and traits.draft_distribution == "deterministic":
            message = "a method whose traits declare 'deterministic' reported q; its drafts are point masses"
            raise ContractError(message)
        self._check_distributions(vocab_size)
        self._check_parents()

    def _check_distributions(self, vocab_size: int) -> None:
        if (self.q is None) != (self.q_row is None):
            message = "q and q_row come together: one of them is missing"
            raise ContractError(message)
        if self.q is None or self.q_row is None:
            return
        width = vocab_size if self.d2t is None else len(self.d2t)
        if self.q.ndim != 2 or self.q.shape[1] != width:
            message = f"q must be [m, {width}], got shape {tuple(self.q.shape)}"
            raise ContractError(message)
        if self.q.device.type != "cpu" and is_on_device(self.q_row):
            return
        if len(self.q_row) and not (-1 <= int(self.q_row.min()) and int(self.q_row.max()) < self.q.shape[0]):
            message = f"q_row points outside the {self.q.shape[0]} rows of q"
            raise ContractError(message)
        if self.q.device.type != "cpu":
            return
        if not are_distributions(self.q):
            message = "a row of q is no distribution: entries must be at least 0, and each row must add up to 1"
            raise ContractError(message)
        check_drawn(self.tokens, self.q, self.q_row, self.d2t, vocab_size)

    def _check_parents(self) -> None:
        if self.parents is None or self.lengths is None or self.is_grown:
            return
        family = check_order(self.parents, np.asarray(self.lengths, np.int64))
        if self.on_device:
            return
        check_siblings(self.tokens, family, self.q_row)
        if self.q_row is not None:
            check_families(family, self.q_row, len(self.tokens) + len(self.lengths))


def likeliest(estimates: npt.NDArray[np.floating], count: int) -> BoolArray:
    """Return [nodes] bool: the `count` drafts of one row with the highest estimates, of equal ones the first.

    Where no estimate is above that of the node's parent, as `DraftBudget.trim` makes them, these are whole paths.
    """
    mask: BoolArray = np.zeros(len(estimates), np.bool_)
    mask[np.argsort(-np.asarray(estimates), kind="stable")[:count]] = True
    return mask


@dataclass(slots=True)
class Verdict:
    """What a verifier decided for n batch rows.

    accepted      [n] int32: number of accepted drafts
    path          flat [sum(accepted)] int32: accepted nodes, as indices within their own row of the draft
    emitted       flat [sum(accepted + 1)] int32: the ids each row emits, accepted drafts first
    logits_row    flat like emitted: the row of `logits` that each id came from
    """

    accepted: IntArray
    path: IntArray
    emitted: IntArray
    logits_row: IntArray
