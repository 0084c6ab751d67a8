"""Whether speculation changes the text: comparison with plain decoding, and the checks that a plugin's tests subclass.

The engine is imported when a check runs, never with this module: the kit belongs to the core.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Final

import pytest
import torch
import transformers

from specdec_core.noise import GREEDY_BELOW
from specdec_testing.building import build
from specdec_testing.fakes import target_info
from specdec_testing.guard import Contract, foundation
from specdec_testing.subject import Subject, SubjectFixtures
from specdec_testing.targets import shared_target

Prompts = Sequence[Sequence[int]]
_PLAIN: Final[dict[tuple[Any, ...], tuple[Any, Sequence[Any]]]] = {}


def engine() -> ModuleType:
    """Return the reference engine's module; RuntimeError with what to install if it is not there."""
    try:
        return importlib.import_module("specdec_engine")
    except ModuleNotFoundError as error:
        if error.name != "specdec_engine":
            raise
        message = "identity checks run the reference engine, which is not installed; pip install specdec-engine"
        raise RuntimeError(message) from error


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: over a tiny target several mostly wait for each other, for minutes on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Divergence:
    """Where two outputs part.

    prompt, sample  indices of the output
    index           first differing position in the output ids; -1 if the ids agree and the finish reason does not
    message         both sides there, for people to read
    """

    prompt: int
    sample: int
    index: int
    message: str

    def __str__(self) -> str:
        """Return the message with its place."""
        return f"prompt {self.prompt}, sample {self.sample}: {self.message}"


def divergence(plain: Sequence[Any], speculative: Sequence[Any]) -> Divergence | None:
    """Return the first difference of two results of `generate` in ids, finish or stop reason, or None."""
    if len(plain) != len(speculative):
        return Divergence(-1, -1, -1, f"{len(plain)} plain outputs and {len(speculative)} speculative ones")
    for p, (a, b) in enumerate(zip(plain, speculative, strict=True)):
        if len(a.outputs) != len(b.outputs):
            return Divergence(p, -1, -1, f"{len(a.outputs)} plain samples and {len(b.outputs)} speculative ones")
        for s, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=True)):
            found = _first_difference(list(x.token_ids), list(y.token_ids))
            if found is not None:
                return Divergence(p, s, *found)
            ends = [(o.finish_reason, getattr(o, "stop_reason", None)) for o in (x, y)]
            if ends[0] != ends[1]:
                return Divergence(p, s, -1, f"same ids, but plain ends with {ends[0]} and speculative with {ends[1]}")
    return None


def _first_difference(plain: list[int], other: list[int]) -> tuple[int, str] | None:
    """Return the first differing index and a message, or None for equal lists."""
    if plain == other:
        return None
    pairs = zip(plain, other, strict=False)
    index = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain), len(other)))
    window = slice(max(0, index - 3), index + 4)
    sides = [f"{ids[index]}" if index < len(ids) else f"the end after {len(ids)}" for ids in (plain, other)]
    return index, (
        f"first difference at output index {index}: plain has {sides[0]}, speculative has {sides[1]} "
        f"(plain ...{plain[window]}, speculative ...{other[window]})"
    )


def assert_same_output(plain: Sequence[Any], speculative: Sequence[Any], context: str = "") -> None:
    """Raise AssertionError, saying where, unless both results have the same ids and ends."""
    found = divergence(plain, speculative)
    if found is not None:
        message = f"speculation changed the output{f' ({context})' if context else ''}: {found}"
        raise AssertionError(message)


def drafted(results: Sequence[Any]) -> int:
    """Return how many drafts were verified in a run."""
    return sum(result.metrics.drafted for result in results)


def sample_prompts(vocab_size: int = 128, count: int = 6, seed: int = 0) -> list[list[int]]:
    """Return prompts of 1 to about 60 ids, every second one repeating itself so that lookup methods find something."""
    generator = torch.Generator().manual_seed(seed)
    prompts = []
    for i in range(count):
        length = (1, 12, 5, 40, 23, 60)[i % 6] + i // 6
        ids: list[int] = torch.randint(3, vocab_size, (length,), generator=generator).tolist()
        prompts.append(ids[: max(1, length // 4)] * 4 if i % 2 else ids)
    return prompts


class IdentityChecks(SubjectFixtures, Contract, promises=True):
    """Text with speculation equals plain text, through the reference engine on tiny targets.

    A subclass gives the fixtures of `SubjectFixtures`. `model_of` may be overridden for a method that needs a certain
    target, `families` and `ks` say what is tried.
    """

    page: ClassVar[str] = "docs/losslessness.md"
    stage: ClassVar[int] = 3
    families: ClassVar[Sequence[str]] = ("llama", "gemma3")
    ks: ClassVar[Sequence[int]] = (1, 4)
    max_tokens: ClassVar[int] = 16
    max_model_len: ClassVar[int] = 192

    def model_of(self, family: str, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
        """Return the target of a family."""
        return shared_target(family, dtype)

    def run(
        self,
        model: transformers.PreTrainedModel,
        params: Sequence[Any],
        config: Mapping[str, Any] | None = None,
        plugins: Mapping[str, Any] | None = None,
        **llm: Any,
    ) -> list[Any]:
        """Generate for the sample prompts, one sampling parameter each; without a configuration plainly."""
        prompts = sample_prompts(count=len(params))
        arguments = {"max_model_len": self.max_model_len, "strict": True, **llm}
        with (
            one_thread(),
            engine().LLM(None, hf_model=model, speculative_config=config, plugins=plugins, **arguments) as host,
        ):
            results: list[Any] = host.generate([{"prompt_token_ids": ids} for ids in prompts], list(params))
        return results

    def params(self, count: int = 6, **common: Any) -> list[Any]:
        """Return one sampling parameter a prompt: greedy unless told otherwise, each with a seed of its own."""
        make = engine().SamplingParams
        defaults = {"temperature": 0.0, "max_tokens": self.max_tokens, "ignore_eos": True}
        return [make(**{**defaults, "seed": 100 + i, **common}) for i in range(count)]

    def check(self, subject: Subject, params: Sequence[Any], dtype: torch.dtype = torch.float32, **llm: Any) -> None:
        """Compare plain and speculative runs for every family and k; at least one of them must have drafted.

        Where the verifier decides by noise of its own, sampled text has the same distribution and is another one: then
        greedy requests are compared alone, and the check is skipped if there are none.
        """
        total = 0
        for family in self.families:
            model = self.model_of(family, dtype)
            same = self._same(subject, model, params)
            plain = self._plain(model, params, llm)
            for k in self.ks:
                speculative = self.run(model, params, subject.speculative_config(k), subject.plugins, **llm)
                context = f"{subject.method}, {family}, k={k}"
                assert_same_output([plain[i] for i in same], [speculative[i] for i in same], context)
                total += drafted(speculative)
        assert total > 0, f"{subject.method} drafted nothing in any of these runs, so they show nothing"

    def _plain(
        self, model: transformers.PreTrainedModel, params: Sequence[Any], llm: Mapping[str, Any]
    ) -> Sequence[Any]:
        """Return what plain decoding answers, which is the same for every method: once for all test classes."""
        told = (type(self).run, engine().LLM, os.environ.get("SPECDEC_KERNELS"), self.max_model_len)
        key = (*told, id(model), repr(params), repr(sorted(llm.items())))
        if key not in _PLAIN:
            _PLAIN[key] = (model, self.run(model, params, **llm))  # the model is kept, so that its id stays its own
        return _PLAIN[key][1]

    def _same(self, subject: Subject, model: transformers.PreTrainedModel, params: Sequence[Any]) -> list[int]:
        """Return the places of the requests whose text is to be the plain one."""
        resolved = build(subject, target_info(model, self.max_model_len), self.ks[0]).resolved
        same = [i for i, one in enumerate(params) if resolved.emits_host_draws or one.temperature < GREEDY_BELOW]
        if not same:
            pytest.skip(f"{resolved.verifier} decides by noise of its own: it keeps the distribution, and not the text")
        return same

    @foundation
    def test_greedy_text_is_the_plain_text(self, subject: Subject) -> None:
        """Greedy decoding is unchanged, with prompts of many lengths in one batch."""
        self.check(subject, self.params())

    def test_seeded_samples_are_the_plain_samples(self, subject: Subject) -> None:
        """Sampling at temperature 0.8 with seeds is unchanged."""
        self.check(subject, self.params(temperature=0.8))

    def test_greedy_and_sampled_requests_share_a_batch(self, subject: Subject) -> None:
        """Rows of different temperature, length and number of samples do not disturb each other."""
        make = engine().SamplingParams
        shapes = [
            {"temperature": 0.8 * (i % 2), "n": 1 + (i == 3), "max_tokens": 6 + 5 * i, "ignore_eos": i % 3 > 0}
            for i in range(6)
        ]
        self.check(subject, [make(seed=i, **shape) for i, shape in enumerate(shapes)])

    def test_requests_one_at_a_time_say_the_same(self, subject: Subject) -> None:
        """With one request at a time the text is unchanged as well."""
        self.check(subject, self.params(4), max_num_seqs=1)

    def test_text_is_unchanged_with_chunked_prompts(self, subject: Subject) -> None:
        """Prompts that are run in chunks of seven positions give the plain text."""
        self.check(subject, self.params(), prefill_chunk_size=7)

    def test_text_is_bit_identical_in_bfloat16_at_a_fixed_decode_width(self, subject: Subject) -> None:
        """With `decode_width` the promise is bit identity in any dtype."""
        params = self.params(3) + self.params(3, temperature=0.8)
        self.check(subject, params, torch.bfloat16, decode_width=8)


class IdentityContract(IdentityChecks, promises=True):
    """The same checks as a class of their own; here the method that may be overridden is `target`."""

    def target(self, family: str, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
        """Return the target of a family."""
        return shared_target(family, dtype)

    def model_of(self, family: str, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
        """Return the target of a family."""
        return self.target(family, dtype)
