"""Stub proposers that any host must survive with plain decoding's output, and the wrapper that makes them plugins.

A well-behaved host gives the same text with `Perfect`, `Garbage`, `Null`, `Fixed` and `Soft`. Stubs that break the
contract are in `specdec_testing.breakers`, the one that records what it is shown in `specdec_testing.recording`, and
those that draft trees in `specdec_testing.trees`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch

from specdec_core.draft import BatchView, Draft, FinishReason, RequestView
from specdec_core.markers import hookimpl
from specdec_core.noise import Noise, Purpose, philox
from specdec_core.traits import MethodTraits

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions
    from specdec_core.context import ProposerBuild
    from specdec_core.protocols import Proposer
    from specdec_core.sources import TargetHandle

ProposerFactory = Callable[["TargetHandle"], "Proposer"]
Ids = Sequence[int]


class Stub:
    """Base of the stubs: counts calls, knows which requests are alive, drafts row by row with `row`.

    started   ids of the requests, in order of their `start`, repeated after preemption
    live      requests started and not finished
    finished  (id, reason) in order
    calls     number of `propose` calls
    drafted   number of drafts returned
    closed    number of `close` calls
    """

    traits: MethodTraits = MethodTraits()

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.started: list[str] = []
        self.live: dict[str, RequestView] = {}
        self.finished: list[tuple[str, FinishReason]] = []
        self.calls = 0
        self.drafted = 0
        self.closed = 0

    def start(self, request: RequestView) -> None:
        """Note the request."""
        self.started.append(request.id)
        self.live[request.id] = request

    def propose(self, batch: BatchView) -> Draft:
        """Draft each row by itself, cut to what it may get."""
        self.calls += 1
        rows = [list(self.row(batch, i))[: int(batch.max_draft[i])] for i in range(len(batch))]
        self.drafted += sum(len(row) for row in rows)
        return Draft.of(rows)

    def row(self, batch: BatchView, i: int) -> Ids:
        """Return ids for batch row i; what is too long is cut by the caller."""
        return ()

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Forget the request, note the reason."""
        self.live.pop(request.id, None)
        self.finished.append((request.id, reason))

    def close(self) -> None:
        """Count the call."""
        self.closed += 1


class Null(Stub):
    """Never drafts anything."""


class Fixed(Stub):
    """Always drafts the same ids."""

    def __init__(self, ids: Ids) -> None:
        """Keep the ids."""
        super().__init__()
        self.ids = list(ids)

    def row(self, batch: BatchView, i: int) -> Ids:
        """Return the ids."""
        return self.ids


class Garbage(Stub):
    """Drafts the full number of ids of the vocabulary that have nothing to do with the target.

    The ids depend on seed and known text alone, so that two runs draft the same. One in `vocab_size` is right by
    accident.
    """

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        """Keep the size of the vocabulary and the seed."""
        super().__init__()
        self.vocab_size = vocab_size
        self.seed = seed

    def row(self, batch: BatchView, i: int) -> Ids:
        """Return ids made from a digest of the text."""
        rng = rng_of_text(batch.request(i), self.seed)
        return [int(token) for token in rng.integers(0, self.vocab_size, int(batch.max_draft[i]))]


def rng_of_text(request: RequestView, seed: int) -> np.random.Generator:
    """Return a generator that depends on a request's known text and a seed alone."""
    text = np.ascontiguousarray(request.tokens, np.int32).tobytes()
    digest = hashlib.blake2b(text, digest_size=8, salt=seed.to_bytes(8, "little")).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


class Perfect(Stub):
    """Drafts what the target is going to generate, as recorded from a plain run.

    `outputs` maps a prompt (tuple of ids) to its output ids, or to one list of ids a sample for n > 1; or it is a
    function from the request to the output ids. `strayed` counts rows whose text so far is not the recorded one;
    such a row gets no drafts. An unknown prompt raises KeyError.
    """

    def __init__(self, outputs: Mapping[tuple[int, ...], Any] | Callable[[RequestView], Ids]) -> None:
        """Keep the recorded outputs."""
        super().__init__()
        self.outputs = outputs
        self.strayed = 0

    @classmethod
    def of_run(cls, prompts: Sequence[Any], results: Sequence[Any]) -> Perfect:
        """Return one that repeats a run: prompts as given to `generate`, results as it returned them."""
        keys = [tuple(prompt["prompt_token_ids"] if isinstance(prompt, Mapping) else prompt) for prompt in prompts]
        samples = [[list(sample.token_ids) for sample in result.outputs] for result in results]
        return cls(dict(zip(keys, samples, strict=True)))

    def row(self, batch: BatchView, i: int) -> Ids:
        """Return the rest of the recorded output."""
        request = batch.request(i)
        if batch.max_draft[i] == 0:
            return ()
        expected = list(self._output(request))
        said = request.tokens[request.prompt_len :].tolist()
        if said != expected[: len(said)]:
            self.strayed += 1
            return ()
        return expected[len(said) :]

    def _output(self, request: RequestView) -> Ids:
        """Look the output up."""
        if callable(self.outputs):
            return self.outputs(request)
        output = self.outputs[tuple(request.tokens[: request.prompt_len].tolist())]
        return cast(Ids, output[request.seq_index] if len(output) and isinstance(output[0], Sequence) else output)


class Soft(Stub):
    """Draws drafts from a table q [V, V], row = the id before, and reports the very rows it drew from.

    Draft noise is keyed by the request, the absolute position and `Purpose.DRAFT`, or with `shared=True` by the
    target's own purpose, which makes drafts and target agree as often as their distributions allow. Columns of a table
    wider than the target's vocabulary are out of contract; narrower ones are not supported here.
    """

    def __init__(self, q: npt.ArrayLike, *, shared: bool = False) -> None:
        """Keep the table in float32, the precision in which it is reported."""
        super().__init__()
        self.q = np.asarray(q, np.float32)
        self.purpose = Purpose.TARGET if shared else Purpose.DRAFT
        self.traits = MethodTraits(draft_distribution="soft", shares_noise=shared)

    def propose(self, batch: BatchView) -> Draft:
        """Draw each row's chain and report q."""
        self.calls += 1
        chains, lengths = self._chains(batch), np.asarray(batch.max_draft, np.int64)
        there = np.arange(chains.shape[1] - 1) < lengths[:, None]
        draft = Draft(lengths.tolist(), chains[:, 1:][there].astype(np.int32))
        draft.q = torch.from_numpy(self.q[chains[:, :-1][there]])
        draft.q_row = np.arange(len(draft.tokens), dtype=np.int32)
        self.drafted += len(draft.tokens)
        return draft

    def _chains(self, batch: BatchView) -> npt.NDArray[np.int64]:
        """Return each row's newest id and the ids drawn after it [rows, 1 + the most drafts of a row]."""
        requests = [batch.request(i) for i in range(len(batch))]
        size = np.array([len(request.tokens) for request in requests], np.int32)
        samples = np.array([request.seq_index for request in requests], np.int32)
        chains = [np.array([request.tokens[-1] for request in requests], np.int64)]
        for step in range(max(batch.max_draft.tolist(), default=0)):
            e = noise_rows(Noise(batch.noise.keys, size + step, samples), self.purpose, self.q.shape[1])
            chains.append(np.argmax(self.q[chains[-1]] / e, axis=1))
        return np.stack(chains, axis=1)


def noise_rows(noise: Noise, purpose: Purpose, size: int) -> npt.NDArray[np.float64]:
    """Return e(v) [n, size] of `specdec_core.noise.exponential` for v < size, up to the last bit of the logarithm."""
    key, position, sample = (
        cast(int, np.asarray(part, np.uint64)[:, None]) for part in (noise.keys, noise.positions, noise.seq_index)
    )
    token = cast(int, np.arange(size, dtype=np.uint64))
    word = np.asarray(philox(key, (token, position, sample, int(purpose)))[0])
    e: npt.NDArray[np.float64] = -np.log((2.0 * word.astype(np.float64) + 1.0) * 2.0**-33)
    return e


class StubPlugin:
    """A plugin object with the three hooks that a proposer needs at least."""

    def __init__(
        self, source: Proposer | ProposerFactory, traits: MethodTraits, options: type[MethodOptions] | None
    ) -> None:
        """Keep what the hooks return."""
        self.source = source
        self.traits = traits
        self.options = options

    @hookimpl
    def specdec_method_options(self) -> type[MethodOptions] | None:
        """Return the options model."""
        return self.options

    @hookimpl
    def specdec_method_traits(self) -> MethodTraits:
        """Return the traits."""
        return self.traits

    @hookimpl
    def specdec_make_proposer(self, build: ProposerBuild) -> Proposer:
        """Return the proposer that was given, or a new one from the factory."""
        return self.source(build.target) if callable(self.source) else self.source


def stub_plugin(
    source: Proposer | ProposerFactory,
    *,
    traits: MethodTraits | None = None,
    options: type[MethodOptions] | None = None,
) -> StubPlugin:
    """Wrap a proposer, or a factory from the target handle to one, for `LLM(plugins={"name": ...})`.

    A proposer object is handed out as it is, so that a test can look at it afterwards. Traits default to the `traits`
    of the proposer, so only a factory needs them given.
    """
    known = traits if traits is not None else getattr(source, "traits", None)
    return StubPlugin(source, known if known is not None else MethodTraits(), options)
