"""Comparing outputs says where they part; the identity checks pass honest hosts and fail a spoilt text."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from specdec_testing import identity
from specdec_testing.identity import (
    IdentityChecks,
    IdentityContract,
    assert_same_output,
    divergence,
    drafted,
    engine,
    sample_prompts,
)
from specdec_testing.stubs import Garbage, stub_plugin
from specdec_testing.subject import Subject


def result(*samples, drafted=0):
    outputs = [SimpleNamespace(token_ids=list(ids), finish_reason=reason, stop_reason=None) for ids, reason in samples]
    return SimpleNamespace(outputs=outputs, metrics=SimpleNamespace(drafted=drafted))


def test_equal_results_do_not_diverge():
    results = [result(([1, 2], "length")), result(([3], "stop"), ([], "stop"))]
    assert divergence(results, results) is None
    assert_same_output(results, results)


@pytest.mark.parametrize(
    ("other", "index", "words"),
    [
        (([1, 9, 3], "length"), 1, "plain has 2, speculative has 9"),
        (([1, 2], "length"), 2, "the end after 2"),
        (([1, 2, 3, 4], "length"), 3, "the end after 3"),
        (([1, 2, 3], "stop"), -1, "same ids"),
    ],
)
def test_the_first_difference_is_found_and_named(other, index, words):
    plain = [result(([5], "length")), result(([7], "length"), ([1, 2, 3], "length"))]
    speculative = [plain[0], result(([7], "length"), other)]
    found = divergence(plain, speculative)
    assert (found.prompt, found.sample, found.index) == (1, 1, index)
    with pytest.raises(AssertionError, match="prompt 1, sample 1") as caught:
        assert_same_output(plain, speculative, "k=4")
    assert words in str(caught.value) and "k=4" in str(caught.value)


def test_missing_outputs_diverge():
    one = result(([1], "length"))
    assert divergence([one], [one, one]) is not None
    assert divergence([one], [result(([1], "length"), ([1], "length"))]) is not None


def test_drafts_are_counted_over_requests():
    assert drafted([result(drafted=2), result(drafted=5)]) == 7


def test_sample_prompts_are_pinned_and_of_many_lengths():
    prompts = sample_prompts(count=8)
    assert prompts == sample_prompts(count=8)
    assert min(map(len, prompts)) == 1 and max(map(len, prompts)) >= 60
    assert all(3 <= token < 128 for prompt in prompts for token in prompt)


def test_a_missing_engine_is_a_clear_error(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(identity.importlib, "import_module", missing)
    with pytest.raises(RuntimeError, match="pip install specdec-engine"):
        engine()


class GarbageIdentity(IdentityContract):
    families = ("llama",)

    @pytest.fixture
    def method(self):
        return "garbage"

    @pytest.fixture
    def plugins(self):
        return {"garbage": stub_plugin(lambda target: Garbage(target.info.vocab_size))}


class TestGarbageDoesNotChangeTheText(GarbageIdentity):
    pass


class Spoilt(GarbageIdentity):
    """A host that changes one id of one speculative output."""

    def run(self, model, params, config=None, plugins=None, **llm):
        results = super().run(model, params, config, plugins, **llm)
        if config is not None:
            results[-1].outputs[0].token_ids[-1] ^= 1
        return results


@pytest.mark.parametrize("name", list(IdentityChecks.promised))
def test_a_spoilt_text_fails_every_check(name):
    plugins = {"garbage": stub_plugin(lambda target: Garbage(target.info.vocab_size))}
    with pytest.raises(AssertionError, match="speculation changed the output"):
        getattr(Spoilt(), name)(Subject("garbage", {}, plugins))


@pytest.mark.slow
def test_the_kit_imports_no_engine():
    modules = "contract identity stubs breakers recording goodness_of_fit table targets".split()
    imports = "; ".join(f"import specdec_testing.{name}" for name in modules)
    code = f"import sys; {imports}; print('specdec_engine' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"
