"""What follows from traits alone is refused by the core, whatever the method's own check does."""

from __future__ import annotations

import pytest

CONFIG = {"method": "alpha", "num_speculative_tokens": 3}
SAMPLED = {**CONFIG, "draft_sample_method": "probabilistic"}
SHARED = {**SAMPLED, "rejection_sample_method": "coupled"}


@pytest.mark.parametrize(
    ("traits", "config", "key", "words"),
    [
        ("tree_nodes=5", CONFIG, "num_speculative_tokens", ("3 given", "tree of alpha has 5 nodes", "give 5")),
        ("tree_nodes=2", CONFIG, "num_speculative_tokens", ("3 given", "tree of alpha has 2 nodes", "give 2")),
        (
            "shape='tree', draft_distribution='soft', shares_noise=True",
            SHARED,
            "draft_sample_method",
            ("one draw a place", "alpha", "'standard'", "chains"),
        ),
        ("shape='tree'", SAMPLED, "draft_sample_method", ("'probabilistic'", "trees of alpha", "draft chains")),
        ("weights='own'", CONFIG, "model", ("alpha needs a draft checkpoint", "folder, weight file or hub id")),
    ],
)
def test_the_core_refuses_what_traits_rule_out(site, method, problems_of, traits, config, key, words):
    site.proposer("alpha", method(traits=traits))
    problem = problems_of(config)[key]
    assert [word for word in words if word not in problem] == []


def test_k_may_be_the_nodes_of_the_tree_and_sampled_chains_may_share_noise(site, method, resolve_config):
    site.proposer("alpha", method(traits="tree_nodes=3, shape='tree'"))
    assert resolve_config(CONFIG).num_speculative_tokens == 3
    site.proposer("beta", method(traits="draft_distribution='soft', shares_noise=True"))
    assert resolve_config({**SHARED, "method": "beta"}).verifier == "coupled"


def test_the_methods_own_check_is_not_asked_without_the_checkpoint_that_it_reads(site, method, problems_of):
    site.proposer("alpha", method(traits="weights='own'", problems="Problem(key='model', message=draft.model)"))
    assert list(problems_of(CONFIG)) == ["model"]
