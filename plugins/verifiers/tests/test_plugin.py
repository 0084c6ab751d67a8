"""Which verifier a configuration gets and which it may not have, what is said of lossy ones, and all in an engine."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError, DeprecatedNameWarning
from specdec_core.host.factory import make_verifier
from specdec_core.protocols import Verifier
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_core.traits import MethodTraits
from specdec_engine import LLM, SamplingParams
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.stubs import Fixed, Perfect, Soft, stub_plugin
from specdec_testing.table import random_table, table_target

VOCAB, K = 6, 3
NAMES = ("block", "coupled", "fly", "standard", "synthetic", "typical")
TARGET = TargetInfo(model="t", hf_config={}, vocab_size=VOCAB, hidden_size=8, num_layers=1, max_model_len=64)
SOFT, TREE = MethodTraits(draft_distribution="soft"), MethodTraits(shape="tree")
SHARED = MethodTraits(draft_distribution="soft", shares_noise=True)
SOFT_TREE = MethodTraits(draft_distribution="soft", shape="tree")
RATES = {"synthetic_acceptance_rates": [0.5, 0.4, 0.3]}


def resolve_config(traits, verifier=None, **keys):
    """Resolve a configuration of a stub with these traits; return it with its registry."""
    stub = stub_plugin(Fixed([1]), traits=traits)
    registry = Registry(Catalog.discover().with_local({"stub": stub}))
    config = {"method": "stub", "num_speculative_tokens": K, **keys}
    if verifier is not None:
        config["rejection_sample_method"] = verifier
    return resolve(config, TARGET, registry), registry


def problems(*arguments, **keys):
    with pytest.raises(ConfigError) as caught:
        resolve_config(*arguments, **keys)
    return {problem.key: f"{problem}" for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("traits", "verifier"),
    [(MethodTraits(), "coupled"), (TREE, "coupled"), (SHARED, "coupled"), (SOFT, "standard"), (SOFT_TREE, "standard")],
)
def test_the_default_follows_from_the_distribution_of_the_drafts(traits, verifier):
    resolved, _ = resolve_config(traits)
    assert (resolved.verifier, resolved.lossless) == (verifier, True)


@pytest.mark.parametrize("name", NAMES)
def test_every_verifier_can_be_had_by_name(name):
    resolved, registry = resolve_config(MethodTraits(), name, **(RATES if name == "synthetic" else {}))
    assert isinstance(make_verifier(resolved, registry), Verifier)
    assert resolved.lossless is (name not in ("fly", "synthetic", "typical"))
    assert any(decision.key == "lossy" for decision in resolved.decisions) is not resolved.lossless


@pytest.mark.parametrize("old", ["strict", "probabilistic"])
def test_former_names_lead_to_standard_with_a_warning(old):
    with pytest.warns(DeprecatedNameWarning, match="'standard'"):
        resolved, _ = resolve_config(SOFT, old)
    assert resolved.verifier == "standard"


@pytest.mark.parametrize("name", ["block", "synthetic"])
@pytest.mark.parametrize(("traits", "fits"), [(TREE, "'coupled' or 'standard'"), (SOFT_TREE, "use 'standard'")])
def test_rules_for_chains_are_refused_for_trees_with_what_fits(name, traits, fits):
    found = problems(traits, name, **(RATES if name == "synthetic" else {}))
    assert set(found) == {"rejection_sample_method"}
    assert f"'{name}' verifies chains" in found["rejection_sample_method"]
    assert fits in found["rejection_sample_method"]


def test_block_is_refused_for_drafts_that_share_the_targets_noise():
    assert "drawn again" in problems(SHARED, "block")["rejection_sample_method"]
    assert resolve_config(SHARED, "standard")[0].verifier == "standard"


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ({}, "options", "exactly one of .* neither"),
        ({**RATES, "synthetic_acceptance_length": 2.0}, "options", "exactly one of .* both"),
        ({"synthetic_acceptance_rates": [0.5, 0.6, 0.1]}, "options", "must not increase"),
        ({"synthetic_acceptance_rates": [0.5, 0.4]}, "synthetic_acceptance_rates", "2 numbers, expected .* 3"),
        ({"synthetic_acceptance_rates": [1.5, 0.4, 0.1]}, "synthetic_acceptance_rates.0", "less than or equal to 1"),
        (
            {"synthetic_acceptance_rates": [0.5, 0.4, -0.1]},
            "synthetic_acceptance_rates.2",
            "greater than or equal to 0",
        ),
        ({"synthetic_acceptance_length": 0.5}, "synthetic_acceptance_length", "greater than or equal to 1"),
        ({"synthetic_acceptance_length": 4.5}, "synthetic_acceptance_length", "4.5, expected 1..4"),
        ({"synthetic_acceptance_length": "2"}, "synthetic_acceptance_length", "number"),
    ],
)
def test_wrong_rates_are_refused_by_name(keys, key, words):
    import re

    found = problems(MethodTraits(), "synthetic", **keys)
    assert set(found) == {key}
    assert re.search(words, found[key])


@pytest.mark.parametrize("key", ["posterior_threshold", "posterior_alpha"])
def test_wrong_thresholds_are_refused_by_name(key):
    assert "greater than or equal to 0" in problems(MethodTraits(), "typical", **{key: -0.1})[key]
    assert getattr(resolve_config(MethodTraits(), "typical", **{key: 0.7})[0].verifier_options, key) == 0.7


def test_a_length_fits_as_long_as_a_step_can_emit_so_many():
    for length in (1, 2.5, K + 1):
        resolved, _ = resolve_config(MethodTraits(), "synthetic", synthetic_acceptance_length=length)
        assert 1 + sum(resolved.verifier_options.rates(K)) == pytest.approx(length)


def test_the_hooks_import_nothing_heavy():
    code = "import sys, specdec_plugin_verifiers.plugin; print(sorted({'torch', 'numba', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


TABLE = random_table(VOCAB, seed=31)
DRAFTERS = {"soft": lambda: Soft(random_table(VOCAB, seed=32)), "one-hot": lambda: Fixed([1, 4, 2])}


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("verifier", "drafter"), [("standard", "soft"), ("standard", "one-hot"), ("block", "soft")])
def test_through_the_engine_each_id_follows_the_one_before_it_by_the_table(verifier, drafter, temperature):
    sampling = [SamplingParams(temperature=temperature, seed=50 + i, max_tokens=120) for i in range(24)]
    config = {"method": "stub", "num_speculative_tokens": K, "rejection_sample_method": verifier}
    plugins = {"stub": stub_plugin(DRAFTERS[drafter]())}
    with LLM(hf_model=table_target(TABLE), speculative_config=config, plugins=plugins, strict=True) as llm:
        results = llm.generate([[i % VOCAB] for i in range(24)], sampling)
        metrics = llm.get_metrics()
    counts = np.zeros((VOCAB, VOCAB), np.int64)
    for result in results:
        ids = result.prompt_token_ids + result.outputs[0].token_ids
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    assert 0 < metrics.accepted < metrics.drafted
    distribution = TABLE ** (1 / temperature)
    assert_follows(counts, distribution / distribution.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("verifier", ["standard", "block", "typical"])
def test_greedy_requests_beside_sampled_ones_say_what_plain_decoding_says(verifier):
    prompts = [[i % VOCAB] for i in range(6)]
    sampling = [SamplingParams(temperature=float(i % 2), seed=i, max_tokens=20) for i in range(6)]
    model = table_target(TABLE)
    with LLM(hf_model=model) as llm:
        plain = llm.generate(prompts, sampling)
    config = {"method": "stub", "num_speculative_tokens": K, "rejection_sample_method": verifier}
    perfect = stub_plugin(Perfect(lambda request: plain[int(request.tokens[0])].outputs[0].token_ids))
    soft = stub_plugin(Soft(random_table(VOCAB, seed=33)))
    for stub in (perfect, soft):
        with LLM(hf_model=model, speculative_config=config, plugins={"stub": stub}, strict=True) as llm:
            fast = llm.generate(prompts, sampling)
        for i in range(0, 6, 2):
            assert fast[i].outputs[0].token_ids == plain[i].outputs[0].token_ids
