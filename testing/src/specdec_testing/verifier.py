"""What every verifier plugin promises, as a test class: subclass it, name the verifier, run pytest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.draft import Verdict
from specdec_core.errors import ConfigError
from specdec_core.host.factory import make_verifier
from specdec_core.protocols import Verifier
from specdec_core.registry.groups import Kind
from specdec_core.sources import TargetInfo
from specdec_core.traits import MethodTraits
from specdec_testing.building import registry_of
from specdec_testing.comparing import difference
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.guard import foundation
from specdec_testing.packaging import PackagingContract
from specdec_testing.stubs import Null, stub_plugin
from specdec_testing.verifying import Case, case_of, random_drafts, transitions, verdict_problems

SHAPES = {
    "chains": MethodTraits(),
    "drawn chains": MethodTraits(draft_distribution="soft"),
    "trees": MethodTraits(shape="tree"),
    "drawn trees": MethodTraits(shape="tree", draft_distribution="soft"),
}
VOCAB, ROWS = 6, 12_000
INFO = TargetInfo(model=None, hf_config={}, vocab_size=VOCAB, hidden_size=8, num_layers=1, max_model_len=64)
LOSSY = "the verifier declares that it changes the target's distribution"


class VerifierContract(PackagingContract, promises=True):
    """The promises of a verifier, for every shape of drafts that its configuration allows.

    A subclass gives the fixture `verifier`, its name, and may give `options`, keys of the speculative configuration,
    and `plugins`, an unpackaged one. `k` is the number of drafts.
    """

    page: ClassVar[str] = "docs/losslessness.md"
    plugin_kind: ClassVar[Kind] = "verifier"
    stage: ClassVar[int] = 2
    k: ClassVar[int] = 7  # the nodes of the trees

    @pytest.fixture
    def verifier(self) -> str:
        """Return the verifier's name."""
        message = f"{type(self).__name__} must define a fixture `verifier` that returns the name of the verifier"
        raise NotImplementedError(message)

    @pytest.fixture
    def method(self, verifier: str) -> str:
        """Return the same name, under which the promises of packages know it."""
        return verifier

    @pytest.fixture
    def resolved(
        self, verifier: str, options: Mapping[str, Any], plugins: Mapping[str, Any] | None
    ) -> dict[str, tuple[ResolvedConfig, Verifier]]:
        """Return, for each shape of drafts that the verifier takes, its configuration and a new verifier."""
        found = {}
        for shape, traits in SHAPES.items():
            registry = registry_of({**(plugins or {}), "kit": stub_plugin(Null(), traits=traits)})
            keys = {"method": "kit", "num_speculative_tokens": self.k, "rejection_sample_method": verifier}
            try:
                resolved = resolve({**keys, **options}, INFO, registry)
            except ConfigError as error:
                if any(problem.key != "rejection_sample_method" for problem in error.problems):
                    raise
                continue
            found[shape] = resolved, make_verifier(resolved, registry)
        return found

    @foundation
    def test_some_drafts_are_taken(self, resolved: Mapping[str, Any]) -> None:
        """At least one of chains and trees, drawn or not, is verified; all others are refused by name."""
        assert resolved, f"specdec_verifier_check refuses {', '.join(SHAPES)}, so there is nothing to verify"

    @foundation
    def test_logits_and_drafts_are_left_alone(self, resolved: Mapping[str, Any]) -> None:
        """A verifier writes into nothing that it is given."""
        for shape, (_, verifier) in resolved.items():
            case, untouched = self._case(shape, 40), self._case(shape, 40)
            case.verify(verifier)
            found = difference(case.given(), untouched.given())
            assert found is None, f"{shape}: the verifier wrote into its arguments: {found}"

    @foundation
    def test_verdicts_are_in_contract(self, resolved: Mapping[str, Any]) -> None:
        """Each row emits the ids of a path of its drafts and one more, and says which rows of logits they are of."""
        for shape, (_, verifier) in resolved.items():
            case = self._case(shape, 300, greedy=0.3)
            problems = verdict_problems(case.verify(verifier), case.draft, VOCAB)
            assert not problems, f"{shape}: {'; '.join(problems[:5])}"

    @foundation
    def test_the_same_noise_gives_the_same_verdict(self, resolved: Mapping[str, Any]) -> None:
        """What is decided depends on drafts, logits, noise and the host's draws, and on nothing else."""
        for shape, (_, verifier) in resolved.items():
            first, again = (self._case(shape, 300).verify(verifier) for _ in range(2))
            found = difference(again, first, place="the second verdict")
            assert found is None, f"{shape}: {found}"

    def test_a_batch_is_verified_as_its_rows_alone(self, resolved: Mapping[str, Any]) -> None:
        """The verdict of a row does not depend on its company."""
        for shape, (_, verifier) in resolved.items():
            case = self._case(shape, 24, greedy=0.3)
            together = rows_of(case.verify(verifier))
            for row in range(24):
                alone = rows_of(case.alone(row).verify(verifier))[0]
                assert alone == together[row], f"{shape}: row {row} alone gets {alone}, in a batch {together[row]}"

    @foundation
    def test_greedy_requests_get_the_likeliest_ids(self, resolved: Mapping[str, Any]) -> None:
        """Every id of a greedy request is the likeliest at its place, and drafts that are so are accepted."""
        for shape, (config, verifier) in resolved.items():
            self._skip_if_lossy(config)
            case = self._case(shape, 300, greedy=1.0)
            emitted = rows_of(case.verify(verifier))
            best = case.table.argmax(axis=1)
            for row, (accepted, ids) in enumerate(emitted):
                expected = case.greedy_path(row)
                assert list(ids) == [int(best[t]) for t in (case.newest[row], *ids[:-1])], f"{shape}: row {row}: {ids}"
                assert accepted == expected, f"{shape}: row {row} accepts {accepted} of {expected} right drafts"

    def test_emitted_ids_have_the_targets_distribution(self, resolved: Mapping[str, Any]) -> None:
        """Counted over many rows, each emitted id follows the one before it as the target has it."""
        for shape, (config, verifier) in resolved.items():
            self._skip_if_lossy(config)
            case = self._case(shape, ROWS)
            for place, counts in enumerate(transitions(case.verify(verifier), case.newest, VOCAB, 2)):
                try:
                    assert_follows(counts, case.table, significance=1e-5)
                except AssertionError as error:
                    message = f"{shape}, place {place} of the emitted ids: {error}"
                    raise AssertionError(message) from None

    def _case(self, shape: str, rows: int, greedy: float = 0.0) -> Case:
        traits = SHAPES[shape]
        draft, newest = random_drafts(
            rows, VOCAB, trees=traits.shape == "tree", drawn=traits.draft_distribution == "soft"
        )
        return case_of(draft, newest, VOCAB, np.arange(rows) % 10 < 10 * greedy)

    @staticmethod
    def _skip_if_lossy(config: ResolvedConfig) -> None:
        if not config.lossless:
            pytest.skip(LOSSY)


def rows_of(verdict: Verdict) -> list[tuple[int, tuple[int, ...]]]:
    """Return how many drafts each row accepts, and the ids that it emits."""
    ends = np.cumsum(verdict.accepted + 1)
    parts = np.split(verdict.emitted, ends[:-1])
    return [(int(n), tuple(ids.tolist())) for n, ids in zip(verdict.accepted, parts, strict=True)]
