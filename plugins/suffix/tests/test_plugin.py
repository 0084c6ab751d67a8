"""The plugin object: it keeps the promises of every proposer, settles defaults, refuses what cannot work, is light."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.kernels import Kernels
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_plugin_suffix import cache_file
from specdec_plugin_suffix.forest import DISTRIBUTION, OP
from specdec_plugin_suffix.kernels import reference
from specdec_plugin_suffix.options import SuffixOptions, SuffixRequestOptions
from specdec_plugin_suffix.traits import SHARES
from specdec_testing.contract import ProposerContract
from specdec_testing.identity import IdentityContract, assert_same_output, drafted

INFO = TargetInfo(model=None, hf_config={}, vocab_size=128, hidden_size=32, num_layers=2, max_model_len=256)


def resolved(**options):
    return resolve({"method": "suffix", **options}, INFO, Registry(Catalog.discover(), strict=True))


class TestAlone(ProposerContract):
    """Nothing is shared, so every promise holds."""

    @pytest.fixture
    def method(self):
        return "suffix"

    @pytest.fixture(params=[False, True], ids=["path", "tree"])
    def options(self, request):
        return {"suffix_decoding_max_cached_requests": 0, "tree_drafts": request.param}


class TestSharing(ProposerContract):
    @pytest.fixture
    def method(self):
        return "suffix"

    @pytest.fixture
    def options(self):
        return {"suffix_decoding_max_spec_factor": 2.0}

    @pytest.mark.xfail(reason=SHARES, strict=True)
    def test_a_batch_drafts_what_its_rows_draft_alone(self, built, traits, target, k):
        super().test_a_batch_drafts_what_its_rows_draft_alone(built, traits, target, k)


class TestIdentity(IdentityContract):
    families = ("llama",)
    ks = (4,)

    @pytest.fixture
    def method(self):
        return "suffix"

    @pytest.fixture
    def options(self):
        return {"suffix_decoding_max_spec_factor": 2.0}

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_trees_leave_the_text_as_it_is(self, temperature):
        model, params = self.target("llama"), self.params(temperature=temperature)
        config = {"method": "suffix", "num_speculative_tokens": 6, "tree_drafts": True}
        spec = self.run(model, params, {**config, "suffix_decoding_min_token_prob": 0.0})
        assert_same_output(self.run(model, params), spec)
        assert drafted(spec) > 20


def test_k_is_the_depth_of_the_tree_unless_it_is_given():
    assert resolved().num_speculative_tokens == 24
    assert resolved(suffix_decoding_max_tree_depth=7).num_speculative_tokens == 7
    assert resolved(num_speculative_tokens=3).num_speculative_tokens == 3


def test_the_defaults_are_vllms():
    options = resolved().options
    assert options == SuffixOptions(
        suffix_decoding_max_tree_depth=24,
        suffix_decoding_max_cached_requests=10000,
        suffix_decoding_max_spec_factor=1.0,
        suffix_decoding_min_token_prob=0.1,
    )
    assert not options.tree_drafts
    assert not options.match_whole_context


@pytest.mark.parametrize(("tree", "shape"), [(False, "chain"), (True, "tree")])
def test_traits_say_ids_suffice_and_drafts_are_point_masses(tree, shape):
    traits = resolved(tree_drafts=tree).traits
    assert (traits.shape, traits.rows, traits.draft_distribution, traits.weights) == (
        shape,
        "none",
        "deterministic",
        "none",
    )
    assert (traits.when_off, traits.max_tokens, traits.vocabulary) == ("catch_up", None, "target")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("suffix_decoding_max_tree_depth", 0),
        ("suffix_decoding_max_tree_depth", "24"),
        ("suffix_decoding_max_cached_requests", -1),
        ("suffix_decoding_max_spec_factor", -0.5),
        ("suffix_decoding_min_token_prob", 1.5),
        ("max_cached_tokens", 0),
        ("max_cached_bytes", 0),
        ("time_to_live", 0),
        ("tree_drafts", 1),
        ("suffix_decoding_depth", 3),
    ],
)
def test_a_bad_value_or_an_unknown_key_is_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=key):
        resolved(**{key: value})


def test_request_options_are_checked_too():
    with pytest.raises(ValueError, match="min_token_prob"):
        SuffixRequestOptions(min_token_prob=2)
    assert SuffixRequestOptions(namespace="a").max_spec_factor is None


def test_cache_files_that_cannot_work_are_refused_before_anything_is_loaded(tmp_path):
    cache_file.write(tmp_path / "good", 24, [("", np.asarray([1, 127], np.int32))])
    cache_file.write(tmp_path / "large", 24, [("", np.asarray([1, 128], np.int32))])
    (tmp_path / "cut").write_bytes((tmp_path / "good").read_bytes()[:-3])
    resolved(load_cache=str(tmp_path / "good"), save_cache=str(tmp_path / "new"))
    for options, message in (
        ({"load_cache": str(tmp_path / "cut")}, r"load_cache: .*checksum"),
        ({"load_cache": str(tmp_path / "none")}, r"load_cache: .*cannot be read"),
        ({"load_cache": str(tmp_path / "large")}, r"load_cache: .*the id 128.*0\.\.127.*same tokenizer"),
        ({"save_cache": str(tmp_path / "nowhere" / "file")}, r"save_cache: .*folder that does not exist"),
        ({"load_cache": str(tmp_path / "good"), "suffix_decoding_max_cached_requests": 0}, "load_cache: .*is 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolved(**options)


def test_a_draft_checkpoint_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="model"):
        resolved(model=str(tmp_path))


def test_kernels_are_found_and_the_reference_can_be_forced(monkeypatch):
    monkeypatch.delenv("SPECDEC_KERNELS", raising=False)
    kernels = Kernels(Catalog.discover(), [DISTRIBUTION])
    assert kernels.backend(OP) == "numba"
    monkeypatch.setenv("SPECDEC_KERNELS", "reference")
    assert kernels.get(OP) is reference.Forest


def test_importing_the_plugin_object_loads_neither_pydantic_nor_numpy():
    code = (
        "import sys, specdec_plugin_suffix.plugin;"
        "print([name for name in ('pydantic', 'numpy', 'numba', 'torch', 'triton') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_neither_the_plugin_nor_its_backends_need_torch():
    code = (
        "import sys, specdec_plugin_suffix.proposer, specdec_plugin_suffix.kernels.numba;"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
