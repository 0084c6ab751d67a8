"""`specdec verify` finds what breaks the promise of a configuration, and nothing where nothing is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from words import model_folder

from specdec_engine.verify.cells import fit
from specdec_engine.verify.default_prompts import DEFAULT_PROMPTS
from specdec_testing.commands import run_specdec

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
# It accepts drafts by a rule of its own, and takes what the host drew for the rest.
VERIFIER = """
import numpy as np

from specdec_core import hookimpl
from specdec_core.draft import Verdict


class Broken:
    def verify(self, draft, logits, noise, target_draws, greedy):
        draws = target_draws.cpu().numpy()
        accepted, emitted, path, rows, at, row = [], [], [], [], 0, 0
        for number, length in enumerate(draft.lengths):
            good = 0
            while good < length and (RULE or draft.tokens[at + good] == draws[row + good]):
                good += 1
            accepted.append(good)
            emitted += [*draft.tokens[at : at + good], draws[row + good]]
            path += range(good)
            rows += range(row, row + good + 1)
            at, row = at + length, row + length + 1
        return Verdict(*(np.array(values, np.int32) for values in (accepted, path, emitted, rows)))


@hookimpl
def specdec_make_verifier():
    return Broken()


@hookimpl
def specdec_verifier_emits_host_draws():
    return HOST_DRAWS
"""
RAISES = """
from specdec_core import hookimpl


class Proposer:
    def start(self, request): pass
    def propose(self, batch): raise RuntimeError("the table is empty")
    def finish(self, request, reason): pass
    def close(self): pass


@hookimpl
def specdec_make_proposer():
    return Proposer()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("verify") / "model")


def verify(folder: Path, model: Path, config: dict[str, Any], *arguments: Any) -> tuple[Any, dict[str, Any]]:
    """Run the command on two of its own prompts; return what came and the JSON."""
    out = folder / "out.json"
    given = ("-sc", json.dumps(config), "--max-tokens", 24, "--limit", 2, "--json", out)
    done = run_specdec("verify", model, *given, *arguments, SPECDEC_KERNELS="reference")
    return done, json.loads(out.read_text()) if out.exists() else {}


def broken(folder: Path, rule: str, host_draws: bool) -> tuple[dict[str, Any], tuple[str, str]]:
    """Return a configuration with a broken verifier, and the arguments that bring it."""
    file = folder / "broken.py"
    file.write_text(VERIFIER.replace("RULE", rule).replace("HOST_DRAWS", str(host_draws)))
    return {**NGRAM, "rejection_sample_method": "broken"}, ("--plugin", f"broken={file}")


def test_greedy_and_seeded_answers_of_a_right_configuration_are_identical(model: Path, tmp_path: Path) -> None:
    done, found = verify(tmp_path, model, NGRAM)
    assert done.returncode == 0, done.stderr
    assert found["verdict"] == "ok" and found["promise"] == "tokens"
    assert found["greedy"]["identical"] == found["seeded"]["identical"] == 2
    assert found["greedy"]["drafted"] > 0
    assert [prompt["prompt"] for prompt in found["prompts"]] == list(DEFAULT_PROMPTS[:2])
    assert done.stdout.splitlines()[-1] == "verdict: ok"


def test_the_first_difference_of_a_verifier_that_accepts_everything_is_a_fault(model: Path, tmp_path: Path) -> None:
    config, plugin = broken(tmp_path, "True", True)
    done, found = verify(tmp_path, model, config, *plugin)
    assert done.returncode == 1 and found["verdict"] == "fault"
    difference = found["greedy"]["differences"][0]
    assert difference["verdict"] == "fault" and difference["margin"] > difference["noise"]
    assert "fault" in done.stdout


@pytest.mark.parametrize("method", ["standard", "block"])
def test_the_distribution_of_a_right_verifier_is_confirmed(model: Path, tmp_path: Path, method: str) -> None:
    done, found = verify(tmp_path, model, {**NGRAM, "rejection_sample_method": method}, "--draws", 200)
    assert done.returncode == 0, done.stdout
    assert found["promise"] == "distribution" and "seeded" not in found
    assert [part["verdict"] for part in found["distribution"]] == ["ok", "ok"]
    assert all(part["degrees_of_freedom"] > 3 and part["drafts"] > 20 for part in found["distribution"])


def test_a_verifier_that_accepts_too_much_of_sampled_rows_only_is_found_by_counting(
    model: Path, tmp_path: Path
) -> None:
    config, plugin = broken(tmp_path, "not greedy[number]", False)
    done, found = verify(tmp_path, model, config, *plugin, "--draws", 200)
    assert found["greedy"]["verdict"] == "ok" and found["greedy"]["identical"] == 2
    assert "fault" in [part["verdict"] for part in found["distribution"]]
    assert done.returncode == 1 and found["verdict"] == "fault"


def test_a_lossy_verifier_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    done, found = verify(tmp_path, model, {**NGRAM, "rejection_sample_method": "typical"})
    assert done.returncode == 2 and not found
    assert "'typical' changes the target's distribution by design" in done.stderr


def test_without_any_draft_nothing_counts_as_verified(model: Path, tmp_path: Path) -> None:
    done, found = verify(tmp_path, model, {**NGRAM, "prompt_lookup_min": 20, "prompt_lookup_max": 20})
    assert done.returncode == 3 and found["verdict"] == "untested"
    assert "give prompts that the method has drafts for" in done.stdout


def test_a_proposer_that_fails_is_a_fault_though_the_text_is_right(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "raises.py"
    file.write_text(RAISES)
    config = {"method": "raises", "num_speculative_tokens": 2}
    done, found = verify(tmp_path, model, config, "--plugin", f"raises={file}")
    assert done.returncode == 1 and found["failures"] > 0
    assert found["greedy"]["identical"] == 2


def test_right_counts_are_seldom_called_wrong_and_wrong_ones_are_found() -> None:
    generator = np.random.default_rng(5)
    distribution = np.array([0.5, 0.3, 0.15, 0.04, 0.01])
    other = np.array([0.7, 0.1, 0.15, 0.04, 0.01])
    right = [
        fit([generator.multinomial(400, distribution).astype(float)], [distribution], 0.0).p_value for _ in range(400)
    ]
    assert np.mean(np.array(right) < 0.05) < 0.09
    assert 0.3 < np.median(right) < 0.7
    wrong = generator.multinomial(400, other).astype(float)
    assert fit([wrong], [distribution], 0.0).p_value < 1e-4
    assert fit([wrong], [distribution], 0.9).p_value > 1e-2  # as far off as rounding of that size may be
    assert fit([np.array([1.0, 0.0])], [np.array([0.0, 1.0])], 0.0).p_value == 0.0
