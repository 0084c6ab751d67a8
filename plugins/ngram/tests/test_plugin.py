"""The plugin object: it keeps the promises of every proposer, refuses what cannot work, and costs nothing to import."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError, DeprecatedNameWarning
from specdec_core.host.factory import make_proposer
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_plugin_ngram.device_proposer import NgramGpuProposer
from specdec_plugin_ngram.proposer import NgramProposer
from specdec_testing.contract import ProposerContract
from specdec_testing.fakes import FakeTarget
from specdec_testing.targets import tiny_target

METHODS = {"ngram": NgramProposer, "ngram_gpu": NgramGpuProposer}
INFO = TargetInfo(model=None, hf_config={}, vocab_size=128, hidden_size=32, num_layers=2, max_model_len=256)


def resolved_by(registry, method, options, info=INFO):
    return resolve({"method": method, "num_speculative_tokens": 4, **options}, info, registry)


def registry_of():
    return Registry(Catalog.discover(), strict=True)


@pytest.fixture(params=[{"prompt_lookup_min": 1, "prompt_lookup_max": 4}, {"prompt_lookup_max": 1, "match": "latest"}])
def either_match(request):
    return request.param


class TestNgram(ProposerContract):
    @pytest.fixture
    def method(self):
        return "ngram"

    @pytest.fixture
    def options(self, either_match):
        return either_match


class TestNgramGpu(TestNgram):
    @pytest.fixture
    def method(self):
        return "ngram_gpu"


@pytest.mark.parametrize("method", METHODS)
def test_each_name_builds_its_own_proposer_with_these_traits(method):
    registry = registry_of()
    resolved = resolved_by(registry, method, {"prompt_lookup_max": 3})
    traits = resolved.traits
    assert (traits.shape, traits.rows, traits.draft_distribution, traits.weights) == (
        "chain",
        "none",
        "deterministic",
        "none",
    )
    assert (traits.when_off, traits.max_tokens, traits.vocabulary) == ("catch_up", None, "target")
    proposer = make_proposer(resolved, FakeTarget(tiny_target("llama")), registry)
    assert type(proposer) is METHODS[method]


@pytest.mark.parametrize("method", METHODS)
def test_a_suffix_that_no_context_can_repeat_is_refused(method):
    with pytest.raises(ConfigError, match=r"prompt_lookup_min.*256") as caught:
        resolved_by(registry_of(), method, {"prompt_lookup_min": 256})
    assert [problem.key for problem in caught.value.problems] == ["prompt_lookup_min"]
    resolved_by(registry_of(), method, {"prompt_lookup_min": 256}, replace(INFO, max_model_len=257))


def test_wrong_bounds_and_misspelt_ones_reach_the_user_as_one_error():
    with pytest.raises(ConfigError, match="leave one out"):
        resolved_by(registry_of(), "ngram", {"prompt_lookup_min": 5, "prompt_lookup_max": 2})
    with pytest.raises(ConfigError, match=r"did you mean prompt_lookup_max\?"):
        resolved_by(registry_of(), "ngram", {"prompt_lokup_max": 10})


def test_the_old_spelling_of_a_bound_is_read_with_a_warning():
    with pytest.warns(DeprecatedNameWarning, match="ngram_prompt_lookup_max is deprecated; use 'prompt_lookup_max'"):
        resolved = resolved_by(registry_of(), "ngram", {"ngram_prompt_lookup_max": 10})
    assert (resolved.options.prompt_lookup_min, resolved.options.prompt_lookup_max) == (10, 10)


def test_a_draft_checkpoint_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="model"):
        resolved_by(registry_of(), "ngram", {"model": str(tmp_path)})


def test_importing_the_plugin_object_loads_neither_pydantic_nor_numpy():
    code = (
        "import sys, specdec_plugin_ngram.plugin;"
        "print([name for name in ('pydantic', 'numpy', 'numba', 'torch', 'triton') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
