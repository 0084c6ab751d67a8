"""What the table of keys promises: every key of vLLM has one fate, is checked in it, and the documentation says so."""

from pathlib import Path

import pytest

from specdec_core.config.key_docs import rewrite
from specdec_core.config.key_table import KEYS
from specdec_core.config.keys import FLAG, TEXT, Common, NoEffect, Old, Option, Refused
from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import COMMON_KEYS
from specdec_core.errors import ConfigWarning, DeprecatedNameWarning

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
TODAY = """
method model num_speculative_tokens enforce_eager draft_tensor_parallel_size tensor_parallel_size quantization
moe_backend attention_backend kv_cache_dtype max_model_len revision code_revision draft_load_config
disable_padded_drafter_batch disable_eagle_block_drop use_local_argmax_reduction use_heterogeneous_vocab
parallel_drafting draft_sample_method rejection_sample_method synthetic_acceptance_rates synthetic_acceptance_length
enable_adaptive_verification dspark_draft_topk index_share_for_mtp_iteration prompt_lookup_max prompt_lookup_min
suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor
suffix_decoding_min_token_prob num_speculative_tokens_per_batch_size target_model_config target_parallel_config
draft_model_config draft_parallel_config
"""
BEFORE = """
disable_by_batch_size disable_mqa_scorer disable_logprobs acceptance_method posterior_threshold posterior_alpha
typical_acceptance_sampler_posterior_threshold typical_acceptance_sampler_posterior_alpha speculative_token_tree
enable_chunked_prefill disable_log_stats num_lookahead_slots ngram_prompt_lookup_max ngram_prompt_lookup_min
speculative_model speculative_disable_by_batch_size spec_decoding_acceptance_method
disable_logprobs_during_spec_decoding speculative_max_model_len speculative_draft_tensor_parallel_size
speculative_disable_mqa_scorer spec_method spec_model spec_tokens
"""

SAMPLES = {  # of keys with an old name: what is given under it, and what that is under today's
    "method": ("alpha", "alpha"),
    "model": ("alpha", "alpha"),
    "disable_mqa_scorer": (True, True),
    "disable_logprobs": (False, False),
    "draft_tensor_parallel_size": (1, 1),
    "rejection_sample_method": ("rejection_sampler", "standard"),
}


def of(kind):
    return {key: known for key, known in KEYS.items() if isinstance(known, kind)}


def reasons(resolved):
    return {decision.key: decision.reason for decision in resolved.decisions}


@pytest.fixture
def given(site, resolve_config, method):
    """Resolve a method of no keys with these keys."""
    site.proposer("alpha", method().replace("return Options", "return None"))
    return lambda **keys: resolve_config({"method": "alpha", "num_speculative_tokens": 3, **keys})


@pytest.fixture
def refused(given, problems_of):
    """Resolve with keys that must be refused; return the problems."""
    return lambda **keys: problems_of({"method": "alpha", "num_speculative_tokens": 3, **keys})


def test_every_key_of_vllm_has_a_fate_and_the_common_ones_are_the_fields_of_the_configuration():
    missing = [key for key in (TODAY + BEFORE).split() if key not in KEYS]
    assert missing == []
    assert tuple(of(Common)) == COMMON_KEYS
    assert all(known.new in KEYS and not isinstance(KEYS[known.new], Old) for known in of(Old).values())


@pytest.mark.parametrize("key", of(NoEffect))
def test_a_key_without_effect_is_accepted_with_the_reason_and_refused_only_for_its_type(given, refused, key):
    known = KEYS[key]
    for value in {FLAG: (True, False), TEXT: ("a",)}.get(known.values, (0, 3)):
        assert reasons(given(**{key: value}))[key] == f"no effect: {known.reason}"
    for value in ({FLAG: 1, TEXT: ""}.get(known.values, -1), [1]):
        problem = refused(**{key: value})[key]
        assert known.values.words.replace("`", "") in problem
        assert repr(value) in problem


@pytest.mark.parametrize("key", of(Refused))
def test_a_refused_key_says_why_and_what_to_do_unless_it_asks_for_what_happens_anyway(given, refused, key):
    known = KEYS[key]
    assert refused(**{key: "anything"}) == {key: f"{key}: {known.reason} ({known.step})"}
    for value in known.harmless:
        assert reasons(given(**{key: value}))[key] == "already the default"
        if value is True:
            assert set(refused(**{key: 1})) == {key}


@pytest.mark.parametrize("key", of(Option))
def test_an_option_that_nothing_selected_has_is_ignored_with_a_warning_that_says_whose_it_is(given, key):
    known = KEYS[key]
    selected = "the verifier coupled" if known.kind == "verifier" else "alpha"
    with pytest.warns(ConfigWarning) as caught:
        resolved = given(**{key: "anything"})
    assert [str(each.message) for each in caught] == [
        f"{key} is an option of {known.of}, not of {selected}: it is ignored"
    ]
    assert reasons(resolved)[key] == f"ignored: an option of {known.of}"
    for value in known.harmless:
        assert reasons(given(**{key: value}))[key] == "already the default"


@pytest.mark.parametrize("key", {**of(NoEffect), **of(Refused), **of(Option), **of(Old)})
def test_null_counts_as_left_out(given, key):
    resolved = given(**{key: None})
    assert reasons(resolved)[key] == "null: treated as unset"
    assert resolved.config.other_keys == {key: None}


def test_null_counts_as_left_out_for_common_keys_too(given):
    plain = given()
    keys = {key: None for key in COMMON_KEYS if key not in ("method", "num_speculative_tokens")}
    assert given(**keys).as_json() == plain.as_json()


@pytest.mark.parametrize("key", [key for key, known in of(Old).items() if not isinstance(KEYS[known.new], Option)])
def test_an_old_name_is_read_as_todays_with_a_warning(site, resolve_config, problems_of, method, key):
    site.proposer("alpha", method())
    new, config = KEYS[key].new, {"method": "alpha", "num_speculative_tokens": 3}
    given, value = SAMPLES.get(new, (2, 2))
    config.pop(new, None)
    if isinstance(KEYS[new], Refused):
        assert set(problems_of({**config, key: given})) == {new}
        return
    expected = resolve_config({**config, new: value})
    with pytest.warns(DeprecatedNameWarning, match=f"{key} is deprecated; use {new!r}"):
        resolved = resolve_config({**config, key: given})
    assert resolved.config == expected.config
    assert resolved.compute_hash() == expected.compute_hash()
    assert any((each.key, each.reason) == (new, f"given as {key}, its old name") for each in resolved.decisions)


def test_old_names_of_options_reach_the_plugin_that_has_them(site, resolve_config, method):
    field = "prompt_lookup_max: int = Field(default=1, description='p')"
    site.proposer("alpha", method(more_fields=field))
    with pytest.warns(DeprecatedNameWarning) as caught:
        resolved = resolve_config({"speculative_method": "alpha", "spec_tokens": 3, "ngram_prompt_lookup_max": 4})
    assert len(caught) == 3
    assert (resolved.num_speculative_tokens, resolved.options.prompt_lookup_max) == (3, 4)


def test_the_acceptance_methods_of_before_are_verifiers_of_today(site, resolve_config, problems_of, method):
    site.proposer("alpha", method())
    options = """
    from pydantic import Field
    from specdec_core import hookimpl
    from specdec_core.config.speculative import MethodOptions

    class Options(MethodOptions):
        posterior_alpha: float = Field(default=0.3, description="p")

    @hookimpl
    def specdec_verifier_options(method):
        return Options

    @hookimpl
    def specdec_make_verifier(method): ...
    """
    site.dist("lossy", {"specdec.verifiers.v1": {"typical": "lossy_verifiers"}}, {"lossy_verifiers.py": options})
    config = {"method": "alpha", "num_speculative_tokens": 2, "typical_acceptance_sampler_posterior_alpha": 0.25}
    with pytest.warns(DeprecatedNameWarning) as caught:
        resolved = resolve_config({**config, "acceptance_method": "typical_acceptance_sampler"})
    assert len(caught) == 2
    assert (resolved.verifier, resolved.verifier_options.posterior_alpha) == ("typical", 0.25)
    wrong = problems_of({**config, "spec_decoding_acceptance_method": "wild"})
    assert "expected 'rejection_sampler' or 'typical_acceptance_sampler', got 'wild'" in str(wrong)


def test_an_old_name_beside_todays_is_refused_and_a_wrong_value_is_told_under_both(site, problems_of, method):
    site.proposer("alpha", method())
    both = problems_of({"method": "alpha", "num_speculative_tokens": 3, "spec_tokens": 3})
    assert list(both) == ["spec_tokens"]
    assert "old name of num_speculative_tokens, which is given too" in both["spec_tokens"]
    two = problems_of({"method": "alpha", "spec_tokens": 3, "speculative_model": "alpha", "spec_model": "alpha"})
    assert list(two) == ["spec_model"]
    wrong = problems_of({"method": "alpha", "spec_tokens": 0})
    assert "got 0 (given as spec_tokens)" in wrong["num_speculative_tokens"]


def test_a_switch_for_greedy_drafts_excludes_drawn_ones_and_other_vocabularies(
    site, resolve_config, problems_of, method
):
    fields = "use_heterogeneous_vocab: bool = Field(default=False, description='u')"
    traits = "draft_distribution='soft' if config.draft_sample_method == 'probabilistic' else 'deterministic'"
    site.proposer("alpha", method(traits=traits, more_fields=fields))
    key, config = "use_local_argmax_reduction", {"method": "alpha", "num_speculative_tokens": 3}
    for other in ({"draft_sample_method": "probabilistic"}, {"use_heterogeneous_vocab": True}):
        (name,) = other
        assert f"cannot be combined with {name}" in problems_of({**config, **other, key: True})[key]
        assert "no effect" in reasons(resolve_config({**config, **other, key: False}))[key]
    assert "no effect" in reasons(resolve_config({**config, "draft_sample_method": "greedy", key: True}))[key]


def test_a_plugin_or_a_host_that_acts_on_a_key_gets_it(site, resolve_config, target, method):
    site.proposer("alpha", method(more_fields="quantization: str = Field(default='', description='q')"))
    config = {"method": "alpha", "num_speculative_tokens": 3, "quantization": "fp8", "enforce_eager": "yes"}
    resolved = resolve(config, target, site.registry(), host_keys=("enforce_eager", "moe_backend"))
    assert resolved.options.quantization == "fp8"
    assert dict(resolved.host_keys) == {"enforce_eager": "yes"}
    assert reasons(resolved)["enforce_eager"] == "given; the host acts on it"


def test_the_documentation_is_written_from_the_table():
    page = PAGE.read_text(encoding="utf-8")
    assert rewrite(page) == page, "run: python -m specdec_core.config.key_docs docs/configuration.md"
    for key in KEYS:
        assert f"\n| `{key}` |" in page
    spoilt = page.replace("| `enforce_eager` |", "| `enforce_lazy` |")
    assert rewrite(spoilt) == page
    with pytest.raises(ValueError, match="lacks a line"):
        rewrite(page.replace("<!-- end of other keys -->", ""))
