"""What every host promises, as a test class: subclass it, say how your host generates, run pytest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from specdec_testing.breakers import (
    BadDistribution,
    Breaker,
    NegativeIds,
    OutOfVocabulary,
    Raises,
    TooLong,
    WrongLengthsSum,
    WrongRowCount,
    WrongType,
)
from specdec_testing.guard import Contract
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Fixed, Garbage, Null, Perfect, Stub, stub_plugin

K = 4
LENGTH = 24


class HostContract(Contract, promises=True):
    """A host decodes as it does without drafts, whatever its proposer drafts, is shown, or breaks.

    A subclass sets `vocab_size` and `prompts`, and writes `generate`.
    """

    page: ClassVar[str] = "docs/hosting.md"

    vocab_size: int
    prompts: Sequence[Sequence[int]] = ([5, 9, 5, 9, 5], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])

    def generate(
        self, prompt: Sequence[int], max_tokens: int, config: Mapping[str, Any], plugins: Mapping[str, Any]
    ) -> list[int]:
        """Return the greedy continuation of a prompt, exactly `max_tokens` ids, with speculation as configured.

        config   the speculative configuration
        plugins  unpackaged plugins by name, for `Catalog.with_local`
        """
        raise NotImplementedError

    def run(self, stub: Stub) -> list[list[int]]:
        """Return the continuation of every prompt with a stub as the method."""
        config = {"method": "stub", "num_speculative_tokens": K}
        plugins = {"stub": stub_plugin(stub)}
        return [self.generate(prompt, LENGTH, config, plugins) for prompt in self.prompts]

    @pytest.fixture(scope="class")
    def plain(self) -> list[list[int]]:
        """The continuations with a proposer that drafts nothing."""
        texts = self.run(Null())
        assert [len(text) for text in texts] == [LENGTH] * len(self.prompts), "the host emits max_tokens ids"
        return texts

    def test_right_drafts_are_accepted_and_change_no_text(self, plain: list[list[int]]) -> None:
        """A perfect drafter saves most steps."""
        outputs = {tuple(prompt): text for prompt, text in zip(self.prompts, plain, strict=True)}
        stub = Perfect(outputs)
        assert self.run(stub) == plain
        steps = stub.calls / len(self.prompts)
        assert steps <= LENGTH / (K + 1) + 2, f"{steps} calls for {LENGTH} ids with perfect drafts of {K}"

    def test_wrong_drafts_change_no_text(self, plain: list[list[int]]) -> None:
        """Rejected drafts leave nothing behind."""
        assert self.run(Garbage(self.vocab_size)) == plain
        assert self.run(Fixed([1] * K)) == plain

    @pytest.mark.parametrize("rows", ["all", "last"])
    def test_rows_are_in_the_shifted_layout(self, rows: Any, plain: list[list[int]]) -> None:
        """Positions, ids and states of committed rows arrive as `specdec_core.draft.Rows` says."""
        outputs = {tuple(prompt): text[:7] for prompt, text in zip(self.prompts, plain, strict=True)}
        stub = RecordingProposer(rows, hidden=True, aux_layers=(1,), inner=Perfect(outputs))
        assert self.run(stub) == plain
        assert stub.calls_seen, "the proposer was never called"
        assert stub.layout_problems() == []

    @pytest.mark.parametrize("where", ["start", "propose", "finish"])
    def test_a_proposer_that_raises_costs_drafts_and_no_text(self, where: Any, plain: list[list[int]]) -> None:
        """Its errors are contained."""
        assert self.run(Raises(where, every=2, inner=Garbage(self.vocab_size))) == plain

    def test_drafts_out_of_contract_are_not_used(self, plain: list[list[int]]) -> None:
        """Each way of breaking the contract is seen before the target is."""
        vocab = self.vocab_size
        breakers: list[Breaker] = [
            OutOfVocabulary(vocab),
            NegativeIds(),
            TooLong(),
            WrongRowCount(),
            WrongLengthsSum(),
            BadDistribution(vocab),
            WrongType(),
        ]
        for breaker in breakers:
            assert self.run(breaker) == plain, type(breaker).__name__
            assert breaker.broken, f"{type(breaker).__name__} was never asked"
