"""What the keys of a configuration promise: each is honoured, ignored with a warning, or refused by name."""

import pytest

from specdec_core.config.request_options import request_options
from specdec_core.errors import (
    CheckStageError,
    ConfigWarning,
    OptionsStageError,
    PluginWarning,
    RequestError,
    TraitsStageError,
)


def reasons(resolved):
    return {decision.key: decision.reason for decision in resolved.decisions}


def test_a_misspelt_key_is_refused_with_the_nearest(site, resolve_config, problems_of, method):
    site.proposer("alpha", method())
    found = problems_of({"method": "alpha", "num_speculative_tokens": 3, "alpha_lookup_max": 10})
    assert list(found) == ["alpha_lookup_max"]
    assert "did you mean lookup_max?" in found["alpha_lookup_max"]
    found = problems_of({"method": "alpha", "num_speculative_token": 3})
    assert "did you mean num_speculative_tokens?" in found["num_speculative_token"]


def test_a_key_of_another_method_is_ignored_with_a_warning_that_names_both(site, resolve_config, method):
    site.proposer("alpha", method())
    site.proposer("beta", method(more_fields="depth: int = Field(default=1, description='d')"))
    with pytest.warns(ConfigWarning, match="depth is an option of the method beta, not of alpha"):
        resolved = resolve_config({"method": "alpha", "num_speculative_tokens": 3, "depth": 4})
    assert "ignored" in reasons(resolved)["depth"]


def test_a_key_of_another_verifier_is_ignored_with_a_warning_that_names_both_verifiers(site, resolve_config, method):
    options = "Options" + method().partition("class Options")[2].partition("class ForRequests")[0]
    source = f"""
from pydantic import Field
from specdec_core import hookimpl
from specdec_core.config.speculative import MethodOptions

class {options}

@hookimpl
def specdec_verifier_options(method):
    return Options

@hookimpl
def specdec_make_verifier(method): ...
"""
    site.proposer("alpha", method().replace("return Options", "return None"))
    site.dist("more", {"specdec.verifiers.v1": {"loose": "more_v"}}, {"more_v.py": source})
    said = "lookup_max is an option of the verifier loose, not of the verifier coupled: it is ignored"
    with pytest.warns(ConfigWarning, match=said):
        resolve_config({"method": "alpha", "num_speculative_tokens": 3, "lookup_max": 4})


def test_an_option_that_vllm_knows_is_named_after_the_installed_plugin_that_has_it(site, resolve_config, method):
    site.proposer("alpha", method())
    site.proposer("beta", method(more_fields="parallel_drafting: bool = Field(default=False, description='p')"))
    with pytest.warns(ConfigWarning, match="parallel_drafting is an option of the method beta, not of alpha"):
        resolve_config({"method": "alpha", "num_speculative_tokens": 3, "parallel_drafting": True})
    given = {"method": "beta", "num_speculative_tokens": 3, "parallel_drafting": True}
    assert resolve_config(given).options.parallel_drafting is True


def test_looking_for_the_owner_of_a_key_survives_broken_plugins_and_leaves_none_loaded(site, resolve_config, method):
    site.proposer("alpha", method())
    site.proposer("bad", "1 / 0")
    site.proposer("beta", method(more_fields="depth: int = Field(default=1, description='d')"))
    registry = site.registry()
    with pytest.warns() as caught:
        resolve_config({"method": "alpha", "num_speculative_tokens": 3, "depth": 4}, registry)
    assert {each.category for each in caught} == {PluginWarning, ConfigWarning}
    assert {each.name for each in registry.loaded} == {"alpha", "coupled"}


def test_everything_that_is_wrong_is_told_at_once(site, resolve_config, problems_of, method):
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


def test_a_check_that_stumbles_over_a_wrong_configuration_hides_nothing(site, resolve_config, problems_of, method):
    site.proposer("alpha", method(problems="config.num_speculative_tokens + 1"))
    assert set(problems_of({"method": "alpha", "num_speculative_tokens": 0})) == {"num_speculative_tokens"}
    with pytest.raises(CheckStageError):
        resolve_config({"method": "alpha", "num_speculative_tokens": 1})


@pytest.mark.parametrize(
    ("parts", "old", "new", "error"),
    [
        ({"more_fields": "silent: int = 1"}, "", "", OptionsStageError),
        ({"more_fields": "spec_tokens: int = Field(default=1, description='s')"}, "", "", OptionsStageError),
        ({}, "return Options", "return dict", OptionsStageError),
        ({}, "class Options(MethodOptions):", "class Options(MethodOptions, extra='allow'):", OptionsStageError),
        ({}, "return Options", "raise KeyError('x')", OptionsStageError),
        ({}, "return MethodTraits()", "return {}", TraitsStageError),
        ({"problems": "'text'"}, "", "", CheckStageError),
    ],
)
def test_a_plugin_that_breaks_a_stage_is_an_error_of_that_stage(site, resolve_config, method, parts, old, new, error):
    site.proposer("alpha", method(**parts).replace(old, new))
    with pytest.raises(error) as caught:
        resolve_config({"method": "alpha", "num_speculative_tokens": 2})
    assert caught.value.record.distribution == "specdec-plugin-alpha"


def test_options_of_a_request_are_validated_by_the_method(site, resolve_config, method):
    site.proposer("alpha", method())
    site.proposer("beta", method().replace("return ForRequests", "return None"))
    registry = site.registry()
    resolved = resolve_config({"method": "alpha", "num_speculative_tokens": 2}, registry)
    assert request_options(resolved, registry, None) is None
    assert request_options(resolved, registry, {"namespace": "me"}).namespace == "me"
    for wrong, said in [
        ({"namespace": 1}, "namespace"),
        ({"namespac": "me"}, "the nearest is namespace"),
        ([1], "must be a mapping"),
    ]:
        with pytest.raises(RequestError, match=said):
            request_options(resolved, registry, wrong)
    resolved = resolve_config({"method": "beta", "num_speculative_tokens": 2}, registry)
    assert request_options(resolved, registry, {}) is None
    with pytest.raises(RequestError, match="'beta' takes no options"):
        request_options(resolved, registry, {"namespace": "me"})
