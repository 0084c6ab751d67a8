"""What the keys of a configuration promise: each is honoured, ignored with a warning, or refused by name."""

import pytest

from specdec.errors import (
    CheckStageError,
    ConfigWarning,
    OptionsStageError,
    PluginWarning,
    RequestError,
    TraitsStageError,
)
from specdec.refused_keys import REFUSED_KEYS
from specdec.resolve import request_options


def reasons(resolved):
    return {decision.key: decision.reason for decision in resolved.decisions}


def test_a_misspelt_key_is_refused_with_the_nearest(site, settle, problems_of, method):
    site.proposer("alpha", method())
    found = problems_of({"method": "alpha", "num_speculative_tokens": 3, "alpha_lookup_max": 10})
    assert list(found) == ["alpha_lookup_max"]
    assert "did you mean lookup_max?" in found["alpha_lookup_max"]
    found = problems_of({"method": "alpha", "num_speculative_token": 3})
    assert "did you mean num_speculative_tokens?" in found["num_speculative_token"]


def test_a_key_of_another_method_is_ignored_with_a_warning_that_names_both(site, settle, method):
    site.proposer("alpha", method())
    site.proposer("beta", method(more_fields="depth: int = Field(default=1, description='d')"))
    with pytest.warns(ConfigWarning, match="depth is an option of the method beta, not of alpha"):
        resolved = settle({"method": "alpha", "num_speculative_tokens": 3, "depth": 4})
    assert "ignored" in reasons(resolved)["depth"]


def test_looking_for_the_owner_of_a_key_survives_broken_plugins_and_leaves_none_loaded(site, settle, method):
    site.proposer("alpha", method())
    site.proposer("bad", "1 / 0")
    site.proposer("beta", method(more_fields="depth: int = Field(default=1, description='d')"))
    registry = site.registry()
    with pytest.warns() as caught:
        settle({"method": "alpha", "num_speculative_tokens": 3, "depth": 4}, registry)
    assert {each.category for each in caught} == {PluginWarning, ConfigWarning}
    assert {each.name for each in registry.loaded} == {"alpha", "coupled"}


@pytest.mark.parametrize("key", sorted(REFUSED_KEYS))
def test_a_key_that_nothing_acts_on_is_refused_by_name_with_a_reason(site, settle, key, problems_of, method):
    site.proposer("alpha", method())
    found = problems_of({"method": "alpha", "num_speculative_tokens": 3, key: "anything"})
    assert found == {key: f"{key}: {REFUSED_KEYS[key].reason}"}


def test_a_value_that_asks_for_what_happens_anyway_is_noted(site, settle, problems_of, method):
    site.proposer("alpha", method())
    given = {"quantization": None, "draft_tensor_parallel_size": 1, "parallel_drafting": False}
    resolved = settle({"method": "alpha", "num_speculative_tokens": 3, **given})
    assert set(given) <= set(reasons(resolved))
    assert "enforce_eager" in problems_of({"method": "alpha", "num_speculative_tokens": 3, "enforce_eager": 1})


def test_a_method_that_honours_such_a_key_gets_it(site, settle, method):
    site.proposer("alpha", method(more_fields="quantization: str = Field(default='', description='q')"))
    resolved = settle({"method": "alpha", "num_speculative_tokens": 3, "quantization": "fp8"})
    assert resolved.options.quantization == "fp8"


def test_everything_that_is_wrong_is_told_at_once(site, settle, problems_of, method):
    problem = "Problem(key='pairing', message='does not fit')"
    site.proposer("alpha", method(traits="max_tokens=4", problems=problem))
    wrong = {
        "method": "alpha",
        "num_speculative_tokens": 5,
        "max_model_len": 65,
        "rejection_sample_method": "wild",
        "controller": "none",
        "kernels": ["no-such-dist"],
        "disable_by_batch_size": 1,
        "zoo": 1,
    }
    found = problems_of(wrong)
    assert set(found) == (set(wrong) - {"method"}) | {"pairing"}
    assert "at most 4" in found["num_speculative_tokens"]
    assert "the target's is 64" in found["max_model_len"]
    found = problems_of({"method": "alpha", "num_speculative_tokens": 0, "lookup_max": "x", "max_model_len": 65})
    assert set(found) == {"num_speculative_tokens", "lookup_max", "max_model_len"}


def test_a_check_that_stumbles_over_a_wrong_configuration_hides_nothing(site, settle, problems_of, method):
    site.proposer("alpha", method(problems="config.num_speculative_tokens + 1"))
    assert set(problems_of({"method": "alpha", "num_speculative_tokens": 0})) == {"num_speculative_tokens"}
    with pytest.raises(CheckStageError):
        settle({"method": "alpha", "num_speculative_tokens": 1})


@pytest.mark.parametrize(
    ("parts", "old", "new", "error"),
    [
        ({"more_fields": "silent: int = 1"}, "", "", OptionsStageError),
        ({}, "return Options", "return dict", OptionsStageError),
        ({}, "class Options(MethodOptions):", "class Options(MethodOptions, extra='allow'):", OptionsStageError),
        ({}, "return Options", "raise KeyError('x')", OptionsStageError),
        ({}, "return MethodTraits()", "return {}", TraitsStageError),
        ({"problems": "'text'"}, "", "", CheckStageError),
    ],
)
def test_a_plugin_that_breaks_a_stage_is_an_error_of_that_stage(site, settle, method, parts, old, new, error):
    site.proposer("alpha", method(**parts).replace(old, new))
    with pytest.raises(error) as caught:
        settle({"method": "alpha", "num_speculative_tokens": 2})
    assert caught.value.record.distribution == "specdec-plugin-alpha"


def test_options_of_a_request_are_validated_by_the_method(site, settle, method):
    site.proposer("alpha", method())
    site.proposer("beta", method().replace("return ForRequests", "return None"))
    registry = site.registry()
    resolved = settle({"method": "alpha", "num_speculative_tokens": 2}, registry)
    assert request_options(resolved, registry, None) is None
    assert request_options(resolved, registry, {"namespace": "me"}).namespace == "me"
    for wrong, said in [
        ({"namespace": 1}, "namespace"),
        ({"namespac": "me"}, "the nearest is namespace"),
        ([1], "must be a mapping"),
    ]:
        with pytest.raises(RequestError, match=said):
            request_options(resolved, registry, wrong)
    resolved = settle({"method": "beta", "num_speculative_tokens": 2}, registry)
    assert request_options(resolved, registry, {}) is None
    with pytest.raises(RequestError, match="'beta' takes no options"):
        request_options(resolved, registry, {"namespace": "me"})
