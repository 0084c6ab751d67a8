"""What resolving promises: an option is honoured or refused by name, and every decision has a reason."""

import json

import pytest

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import SpeculativeConfig
from specdec_core.errors import (
    CheckStageError,
    ConfigError,
    DeprecatedNameWarning,
    ImportStageError,
    UnknownNameError,
)


def reasons(resolved):
    return {decision.key: decision.reason for decision in resolved.decisions}


def test_an_explicit_method_is_loaded_alone(site, resolve_config, method):
    site.proposer("alpha", method())
    site.proposer("beta", "raise AssertionError('not asked')")
    registry = site.registry()
    resolved = resolve_config({"method": "alpha", "num_speculative_tokens": 3, "lookup_max": 2}, registry)
    assert (resolved.method, resolved.num_speculative_tokens, resolved.options.lookup_max) == ("alpha", 3, 2)
    assert {each.name for each in registry.loaded} == {"alpha", "coupled"}
    assert resolved.draft is None
    assert json.loads(json.dumps(resolved.as_json()))["verifier"]["name"] == "coupled"
    assert all(decision.reason for decision in resolved.decisions)


@pytest.mark.parametrize("model", ["alpha", "[alpha]"])
def test_a_model_may_be_the_name_of_a_method(site, resolve_config, model, method):
    site.proposer("alpha", method())
    site.proposer("beta", "raise AssertionError('not asked')")
    resolved = resolve_config({"model": model, "num_speculative_tokens": 3})
    assert (resolved.method, resolved.draft) == ("alpha", None)
    assert "name of a method" in reasons(resolved)["method"]


def test_a_name_in_brackets_must_be_installed(site, resolve_config, method):
    site.proposer("alpha", method())
    with pytest.raises(UnknownNameError, match="did you mean 'alpha'"):
        resolve_config({"model": "[alpah]", "num_speculative_tokens": 3})


def test_an_old_name_leads_to_the_method_with_a_warning(site, resolve_config, method):
    site.proposer("alpha", method())
    site.dist("aliases", {"specdec.aliases.v1": {"alpha_old": "specdec_plugin_alpha.plugin:alpha"}})
    with pytest.warns(DeprecatedNameWarning):
        resolved = resolve_config({"method": "alpha_old", "num_speculative_tokens": 3})
    assert resolved.method == "alpha"
    assert "'alpha_old'" in reasons(resolved)["method"]


def test_an_old_name_of_a_verifier_leads_to_it_too(site, resolve_config, method):
    site.proposer("alpha", method())
    site.dist("aliases", {"specdec.aliases.v1": {"strict": "fake_verifiers:standard"}})
    with pytest.warns(DeprecatedNameWarning, match="verifier name 'strict' is deprecated; use 'standard'"):
        resolved = resolve_config({"method": "alpha", "num_speculative_tokens": 3, "rejection_sample_method": "strict"})
    assert resolved.verifier == "standard"
    assert reasons(resolved)["rejection_sample_method"].startswith("given, as 'strict'; ")


def test_neither_method_nor_model_lists_what_is_installed(site, resolve_config, method):
    site.proposer("alpha", method())
    with pytest.raises(ConfigError, match="installed: alpha"):
        resolve_config({"num_speculative_tokens": 3})


def test_a_failed_plugin_is_an_error_for_those_who_ask_for_it_with_the_cause_and_for_no_one_else(
    site, resolve_config, method
):
    site.proposer("bad", "raise RuntimeError('no licence')")
    site.proposer("alpha", method())
    with pytest.raises(ImportStageError, match="no licence") as caught:
        resolve_config({"method": "bad", "num_speculative_tokens": 3})
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert resolve_config({"method": "alpha", "num_speculative_tokens": 3}).method == "alpha"


def test_k_comes_from_the_user_or_from_the_method_with_its_reason_or_is_required(
    site, resolve_config, problems_of, method
):
    site.proposer("alpha", method(defaults="Default(key='num_speculative_tokens', value=3, reason='three heads')"))
    site.proposer("beta", method())
    resolved = resolve_config({"method": "alpha"})
    assert (resolved.num_speculative_tokens, resolved.config.num_speculative_tokens) == (3, 3)
    assert reasons(resolved)["num_speculative_tokens"] == "three heads"
    assert resolve_config({"method": "alpha", "num_speculative_tokens": 2}).num_speculative_tokens == 2
    assert "is required" in problems_of({"method": "beta"})["num_speculative_tokens"]


@pytest.mark.parametrize("key", ["zoo", "method", "model", "revision", "other_keys"])
def test_a_default_of_a_key_that_has_none_is_the_plugins_fault(site, resolve_config, method, key):
    site.proposer("alpha", method(defaults=f"Default(key='{key}', value='x', reason='r')"))
    with pytest.raises(CheckStageError, match=key):
        resolve_config({"method": "alpha", "num_speculative_tokens": 2})


@pytest.mark.parametrize(
    ("traits", "verifier"),
    [
        ("draft_distribution='deterministic'", "coupled"),
        ("draft_distribution='soft', shares_noise=True", "coupled"),
        ("draft_distribution='soft'", "standard"),
    ],
)
def test_the_default_verifier_follows_from_the_distribution_of_the_drafts(
    site, resolve_config, traits, verifier, method
):
    site.proposer("alpha", method(traits=traits))
    assert resolve_config({"method": "alpha", "num_speculative_tokens": 2}).verifier == verifier


def test_coupled_refuses_drafts_drawn_with_noise_of_their_own(site, resolve_config, problems_of, method):
    site.proposer("alpha", method(traits="draft_distribution='soft'"))
    config = {"method": "alpha", "num_speculative_tokens": 2, "rejection_sample_method": "coupled"}
    found = problems_of(config)
    assert "use 'standard', or draft_sample_method 'greedy'" in found["rejection_sample_method"]


def test_the_way_of_drafting_must_be_the_methods(site, resolve_config, problems_of, method):
    site.proposer("alpha", method())
    traits = "draft_distribution='soft' if config.draft_sample_method == 'probabilistic' else 'deterministic'"
    site.proposer("beta", method(traits=traits))
    config = {"num_speculative_tokens": 2, "draft_sample_method": "probabilistic"}
    assert set(problems_of({"method": "alpha", **config})) == {"draft_sample_method"}
    assert resolve_config({"method": "beta", **config}).verifier == "standard"
    assert resolve_config({"method": "beta", **config, "draft_sample_method": "greedy"}).verifier == "coupled"


def test_a_verifier_is_asked_what_is_wrong_with_its_options_and_the_drafts(site, resolve_config, problems_of, method):
    source = """
    from specdec_core import hookimpl
    from specdec_core.sources import Problem

    @hookimpl
    def specdec_make_verifier(method): ...

    @hookimpl
    def specdec_verifier_check(method, config, options, traits):
        said = f"{method} with {config.num_speculative_tokens} {traits.draft_distribution} drafts and {options}"
        return [Problem(key="rejection_sample_method", message=said)] if traits.draft_distribution == "soft" else []
    """
    site.dist("more", {"specdec.verifiers.v1": {"strange": "more_v"}}, {"more_v.py": source})
    site.proposer("alpha", method(traits="draft_distribution='soft'"))
    site.proposer("beta", method())
    config = {"num_speculative_tokens": 2, "rejection_sample_method": "strange"}
    found = problems_of({"method": "alpha", "max_model_len": 1000, **config})
    assert set(found) == {"max_model_len", "rejection_sample_method"}, "with all other problems"
    assert "strange with 2 soft drafts and " in found["rejection_sample_method"]
    assert resolve_config({"method": "beta", **config}).verifier == "strange"


def test_a_lossy_verifier_is_said_to_be_lossy(site, resolve_config, method):
    source = """
    from specdec_core import hookimpl

    @hookimpl
    def specdec_make_verifier(method): ...

    @hookimpl
    def specdec_verifier_is_lossy(method):
        return method == "loose"
    """
    site.dist("more", {"specdec.verifiers.v1": {"loose": "more_v", "tight": "more_v"}}, {"more_v.py": source})
    site.proposer("alpha", method())
    config = {"method": "alpha", "num_speculative_tokens": 2}
    loose = resolve_config({**config, "rejection_sample_method": "more:loose"})
    assert (loose.verifier, loose.verifier_lossy, loose.lossless) == ("loose", True, False)
    assert "lossy" in reasons(loose)
    assert resolve_config({**config, "rejection_sample_method": "tight"}).lossless


def test_a_checkpoint_is_refused_or_required_by_what_the_method_has(
    site, resolve_config, tmp_path, problems_of, method
):
    site.proposer("alpha", method())
    site.proposer("beta", method(traits="weights='own'"))
    config = {"num_speculative_tokens": 2}
    assert "has no draft checkpoint" in problems_of({**config, "method": "alpha", "model": "/x"})["model"]
    assert "needs a draft checkpoint" in problems_of({**config, "method": "beta"})["model"]
    missing = problems_of({**config, "method": "beta", "model": str(tmp_path / "no")})
    assert "no folder or file" in missing["model"]
    (tmp_path / "config.json").write_text("{}")
    assert resolve_config({**config, "method": "beta", "model": str(tmp_path)}).draft.model == str(tmp_path)


def test_a_plugin_may_say_what_the_checkpoint_is_and_what_to_do(site, resolve_config, tmp_path, problems_of, method):
    problem = (
        "Problem(key='method', message=f'alpha got a checkpoint of model_type {draft.hf_config[\"model_type\"]!r}',"
        " next_step='say method beta, or give an alpha checkpoint')"
    )
    site.proposer("alpha", method(traits="weights='own'", problems=problem))
    (tmp_path / "config.json").write_text('{"model_type": "beta"}')
    found = problems_of({"method": "alpha", "num_speculative_tokens": 2, "model": str(tmp_path)})
    assert "'beta'" in found["method"]
    assert "say method beta, or give an alpha checkpoint" in found["method"]


def test_an_override_patches_a_copy_and_only_the_chosen_method_is_asked(site, resolve_config, tmp_path, method):
    override = """
@hookimpl
def specdec_override_hf_config(method, hf_config, target):
    hf_config["nested"]["deep"] = "spoilt"
    return {"vocab_size": target.vocab_size}
"""
    site.proposer("alpha", method(traits="weights='own'", more=override))
    site.proposer("beta", "raise AssertionError('not asked')")
    (tmp_path / "config.json").write_text('{"nested": {"deep": 1}}')
    resolved = resolve_config({"method": "alpha", "num_speculative_tokens": 2, "model": str(tmp_path)})
    assert dict(resolved.draft.hf_config) == {"nested": {"deep": 1}, "vocab_size": 32}
    assert "hf_config" in reasons(resolved)
    unchanged = override.replace('return {"vocab_size": target.vocab_size}', "return None")
    site.proposer("gamma", method(traits="weights='own'", more=unchanged))
    resolved = resolve_config({"method": "gamma", "num_speculative_tokens": 2, "model": str(tmp_path)})
    assert dict(resolved.draft.hf_config) == {"nested": {"deep": 1}}


CONTROLLER = """
from pydantic import Field
from specdec_core import hookimpl
from specdec_core.config.speculative import MethodOptions

class Options(MethodOptions):
    patience: int = Field(default=1, description="p")

class Controller:
    @hookimpl
    def specdec_method_options(self, method):
        return Options

    @hookimpl
    def specdec_make_controller(self, method): ...

class Watcher:
    @hookimpl
    def specdec_step_finished(self, step): ...

controller, watcher = Controller(), Watcher()
"""


def test_controllers_observers_and_kernels_are_loaded_only_if_they_are_named(site, resolve_config, problems_of, method):
    points = {
        "specdec.extensions.v1": {"slow": "more_e:controller", "watch": "more_e:watcher", "bad": "not_there"},
        "specdec.kernels.v1": {"op.reference": "not_there"},
    }
    site.dist("more-e", points, {"more_e.py": CONTROLLER})
    site.proposer("alpha", method())
    config = {"method": "alpha", "num_speculative_tokens": 2}
    registry = site.registry()
    plain = resolve_config(config, registry)
    assert (plain.controller, plain.observers, registry.kernels.ops) == (None, (), {})
    full = {**config, "controller": "slow", "patience": 3, "observers": ["watch"], "kernels": ["More.E"]}
    registry = site.registry()
    resolved = resolve_config(full, registry)
    assert (resolved.controller, resolved.controller_options.patience) == ("slow", 3)
    assert [each.name for each in resolved.observers] == ["watch"]
    assert list(registry.kernels.ops) == ["op"]
    wrong = problems_of({**config, "controller": "watch", "observers": ["slow"], "kernels": ["numpy"]})
    assert set(wrong) == {"controller", "observers", "kernels"}
    assert "more-e" in wrong["kernels"]


def test_an_instance_is_resolved_like_the_mapping_it_came_from(site, resolve_config, method):
    site.proposer("alpha", method())
    given = {"method": "alpha", "num_speculative_tokens": 2, "lookup_max": 3}
    assert (
        resolve_config(SpeculativeConfig.parse(given)).as_json()
        == resolve_config(json.dumps(given)).as_json()
        == resolve_config(given).as_json()
    )


def test_a_dummy_method_without_any_traits_resolves(site, resolve_config):
    site.proposer("dummy")
    assert resolve_config({"method": "dummy", "num_speculative_tokens": 2}).as_json()["traits"]["rows"] == "none"


def test_what_stands_against_the_plugins_drafter_alone_is_no_error_for_a_host_with_the_method(site, target, method):
    site.verifiers("coupled", "standard")
    ours = "Problem(key='method', message='no drafter here', drafter_only=True)"
    site.proposer("alpha", method(problems=ours))
    site.proposer("beta", method(problems=f"{ours}, Problem(key='model', message='not whole')"))
    given = {"method": "alpha", "num_speculative_tokens": 2}
    resolve_config = resolve(given, target, site.registry(), host_has_methods=True)
    assert [problem.message for problem in resolve_config.drafter_problems] == ["no drafter here"]
    with pytest.raises(ConfigError, match="no drafter here"):
        resolve(given, target, site.registry())
    with pytest.raises(ConfigError, match="not whole") as raised:
        resolve({**given, "method": "beta"}, target, site.registry(), host_has_methods=True)
    assert "no drafter here" not in str(raised.value)
