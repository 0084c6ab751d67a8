"""What detection promises: evidence comes from the checkpoint, never from its path, and doubt is an error."""

import json

import pytest

from specdec_core.config.resolve import resolve, swap_target
from specdec_core.errors import ConfigError, PluginWarning
from specdec_core.sources import DraftSource

DETECTS = """
from specdec_core import hookimpl
from specdec_core.sources import Detection, TargetSwap
from specdec_core.traits import MethodTraits

@hookimpl
def specdec_detect_method(draft):
    config = draft.hf_config
    if config.get("architectures") == ["{architecture}"]:
        return Detection(method="{name}", strength="{strength}", evidence=("architectures {architecture}",))
    return None

@hookimpl
def specdec_method_traits(ctx):
    return MethodTraits(weights="own")

@hookimpl
def specdec_make_proposer(ctx): ...
"""


def detects(name, architecture, strength="certain"):
    return DETECTS.format(name=name, architecture=architecture, strength=strength)


@pytest.fixture
def resolve_config(site, target):
    site.verifiers("coupled")

    def run(config, registry=None):
        return resolve({"num_speculative_tokens": 2, **config}, target, registry or site.registry())

    return run


@pytest.fixture
def checkpoint(tmp_path):
    def make(path, **config):
        folder = tmp_path / path
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    return make


def test_a_checkpoint_under_a_neutral_path_is_known_by_its_config(site, resolve_config, checkpoint):
    site.proposer("alpha", detects("alpha", "AlphaDraft"))
    site.proposer("beta", detects("beta", "BetaDraft"))
    registry = site.registry()
    resolved = resolve_config({"model": checkpoint("run3/checkpoint-500", architectures=["BetaDraft"])}, registry)
    assert resolved.method == "beta"
    assert "architectures BetaDraft" in resolved.decisions[0].reason
    assert {each.name for each in registry.loaded} == {"beta", "coupled"}


def test_a_path_is_never_evidence(site, resolve_config, checkpoint):
    site.proposer("alpha", detects("alpha", "AlphaDraft"))
    site.proposer("beta", detects("beta", "BetaDraft"))
    folder = checkpoint("alpha-run/alpha", architectures=["BetaDraft"])
    assert resolve_config({"model": folder}).method == "beta"
    unknown = checkpoint("alpha-run/other", architectures=["Unknown"])
    with pytest.raises(ConfigError, match=r"no installed method recognises .*\['Unknown'\].*alpha, beta.*\"method\""):
        resolve_config({"model": unknown})


def test_an_explicit_method_wins_over_all_evidence(site, resolve_config, checkpoint):
    site.proposer("alpha", detects("alpha", "AlphaDraft"))
    site.proposer("beta", detects("beta", "BetaDraft"))
    folder = checkpoint("beta-run/beta", architectures=["BetaDraft"], model_type="beta")
    assert resolve_config({"method": "alpha", "model": folder}).method == "alpha"


def test_the_strongest_claim_wins_and_weaker_ones_are_told(site, resolve_config, checkpoint):
    site.proposer("alpha", detects("alpha", "Both", "likely"))
    site.proposer("beta", detects("beta", "Both", "certain"))
    resolved = resolve_config({"model": checkpoint("c", architectures=["Both"])})
    assert resolved.method == "beta"
    assert "weaker: alpha (likely)" in resolved.decisions[0].reason


def test_equal_claims_are_an_error_with_all_the_evidence(site, resolve_config, checkpoint):
    site.proposer("alpha", detects("alpha", "Both"))
    site.proposer("beta", detects("beta", "Both"))
    with pytest.raises(
        ConfigError, match=r"alpha: certain: architectures Both; beta: certain.*name one with"
    ) as caught:
        resolve_config({"model": checkpoint("c", architectures=["Both"])})
    assert "claim" in str(caught.value)


def test_one_broken_plugin_is_one_warning_and_the_others_are_asked(site, resolve_config, checkpoint):
    site.proposer("bad", "raise ImportError('no wheel')")
    site.proposer("worse", detects("worse", "B").replace("config = draft.hf_config", "raise SystemExit(draft)"))
    site.proposer("wrong", detects("other", "BetaDraft"))
    site.proposer("beta", detects("beta", "BetaDraft"))
    with pytest.warns(PluginWarning) as caught:
        resolved = resolve_config({"model": checkpoint("c", architectures=["BetaDraft"])})
    assert resolved.method == "beta"
    said = [str(each.message) for each in caught]
    assert len(said) == 3
    assert any("specdec-plugin-bad 1.0" in text and "no wheel" in text for text in said)
    assert any("'wrong'" in text and "'other'" in text for text in said)


def test_failures_are_told_when_nothing_was_recognised(site, resolve_config, checkpoint):
    site.proposer("bad", "raise ImportError('no wheel')")
    with pytest.warns(PluginWarning), pytest.raises(ConfigError, match=r"not asked, as they failed: .*no wheel"):
        resolve_config({"model": checkpoint("c", architectures=["Alpha"])})


def test_configs_without_model_type_or_vocab_size_are_read_as_plain_json(site, resolve_config, checkpoint):
    site.proposer("alpha", detects("alpha", "AlphaDraft"))
    for number, config in enumerate([{}, {"model_type": "alpha"}, {"vocab_size": None}]):
        folder = checkpoint(f"c{number}", architectures=["AlphaDraft"], **config)
        assert resolve_config({"model": folder}).method == "alpha"


def test_a_model_that_cannot_be_read_is_one_error(site, resolve_config, tmp_path):
    site.proposer("alpha", detects("alpha", "AlphaDraft"))
    with pytest.raises(ConfigError, match="no folder or file"):
        resolve_config({"model": str(tmp_path / "nowhere")})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="line 1 column 2"):
        resolve_config({"model": str(tmp_path)})


def test_an_unpackaged_plugin_is_asked_too(site, resolve_config, checkpoint, tmp_path):
    site.proposer("alpha", detects("alpha", "AlphaDraft"))
    file = tmp_path / "mine.py"
    file.write_text(detects("mine", "Mine"))
    registry = site.registry(mine=str(file), no_proposer=object())
    assert resolve_config({"model": checkpoint("c", architectures=["Mine"])}, registry).method == "mine"


SWAPS = """
from specdec_core import hookimpl
from specdec_core.sources import TargetSwap

@hookimpl
def specdec_swap_target(source):
    if "pair" in source.hf_config:
        config = {{"method": "{name}", "model": source.model}}
        return TargetSwap(model=source.hf_config["pair"], speculative_config=config, reason="it says so")

@hookimpl
def specdec_make_proposer(ctx): ...
"""


def test_a_draft_given_as_the_model_stands_for_its_target(site, checkpoint):
    site.proposer("alpha", SWAPS.format(name="alpha"))
    site.proposer("beta")
    folder = checkpoint("c", pair="big/target")
    swap = swap_target(DraftSource(folder), site.registry())
    assert (swap.model, dict(swap.speculative_config)) == ("big/target", {"method": "alpha", "model": folder})
    assert swap_target(DraftSource(checkpoint("d")), site.registry()) is None


def test_two_different_answers_about_the_target_are_an_error(site, checkpoint):
    site.proposer("alpha", SWAPS.format(name="alpha"))
    site.proposer("beta", SWAPS.format(name="beta"))
    with pytest.raises(ConfigError, match="more than one pair"):
        swap_target(DraftSource(checkpoint("c", pair="big/target")), site.registry())


def test_what_cannot_be_read_is_said_once_and_by_no_plugin(site, tmp_path):
    site.proposer("alpha", SWAPS.format(name="alpha"))
    with pytest.raises(ConfigError, match=r"neither config\.json nor weights"):
        swap_target(DraftSource(tmp_path), site.registry())
