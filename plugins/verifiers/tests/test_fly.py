"""`fly` overrules rejections at undecided places before accepted drafts, as its definition says, and nothing else."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from specdec_core.config.resolve import resolve
from specdec_core.draft import Draft
from specdec_core.errors import ConfigError, ContractError
from specdec_core.noise import Noise, Purpose
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_core.traits import MethodTraits
from specdec_engine import LLM, SamplingParams
from specdec_plugin_verifiers.fly import Fly, entropies
from specdec_plugin_verifiers.standard import Standard
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.stubs import Fixed, stub_plugin
from specdec_testing.table import random_table, table_target

OPEN = (0.4, 0.35, 0.15, 0.1)  # 1.02 nats over the three largest
SURE = (0.97, 0.01, 0.01, 0.01)  # 0.12 nats
DRAWN = (0.1, 0.2, 0.3, 0.4)


def by_definition(native, possible, entropy, window, threshold):
    """Accepted drafts of one chain, by the words of the definition."""
    count = 0
    for i, stands in enumerate(native):
        after = native[i + 1 : i + 1 + window]
        overruled = possible[i] and entropy[i] >= threshold and len(after) == window and all(after)
        if not (stands or overruled):
            break
        count += 1
    return count


def noise_of_rows(rng, rows):
    keys = rng.integers(0, 2**63, rows).astype(np.uint64)
    return Noise(keys, np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32))


def three_largest(distribution):
    return -sum(p * math.log(p) for p in sorted(distribution)[-3:])


def test_entropies_are_sums_over_the_largest_and_not_normalised_again():
    p = torch.tensor([OPEN, SURE, (0.5, 0.5, 0.0, 0.0)])
    assert entropies(p, 3).tolist() == pytest.approx([three_largest(OPEN), three_largest(SURE), math.log(2)])
    assert entropies(p, 99)[0].item() == pytest.approx(-sum(x * math.log(x) for x in OPEN))
    assert entropies(p, 1)[2].item() == pytest.approx(0.5 * math.log(2))


@pytest.mark.parametrize("window", [1, 2, 3])
def test_greedy_chains_are_kept_as_the_definition_says(kernels, window):
    patterns = [p for m in range(6) for p in itertools.product((0, 1, 2, 3), repeat=m)]
    tokens = [[3 if kind == 3 else kind % 2 for kind in pattern] for pattern in patterns]
    # Kind 0: accepted; 1: rejected, undecided; 2 would be accepted and is undecided; 3: rejected and impossible.
    distributions = {0: SURE, 1: OPEN, 2: OPEN, 3: (0.4, 0.35, 0.25, 0.0)}
    logits = torch.tensor([distributions[kind] for pattern in patterns for kind in (*pattern, 0)]).log()
    rng = np.random.default_rng(0)
    verdict = Fly(kernels, window, 0.3, 3).verify(
        Draft.of(tokens), logits, noise_of_rows(rng, len(logits)), None, np.ones(len(patterns), np.bool_)
    )
    expected = [
        by_definition(
            [k in (0, 2) for k in p], [k != 3 for k in p], [three_largest(distributions[k]) for k in p], window, 0.3
        )
        for p in patterns
    ]
    assert verdict.accepted.tolist() == expected
    ends = np.cumsum(verdict.accepted + 1) - 1
    assert (verdict.emitted[ends] == 0).all(), "the target's most likely id follows"
    assert [t for row, n in zip(tokens, expected, strict=True) for t in row[:n]] == np.delete(
        verdict.emitted, ends
    ).tolist()


@pytest.mark.parametrize("kind", ["soft", "point"])
def test_accepted_lengths_and_what_follows_have_the_probabilities_of_the_definition(kernels, kind):
    rows, window, places = 60_000, 2, (OPEN, SURE, OPEN, OPEN, SURE)
    rng = np.random.default_rng(4)
    k = len(places) - 1
    tokens = rng.choice(4, (rows, k), p=DRAWN) if kind == "soft" else np.tile([1, 0, 1, 0], (rows, 1))
    draft = Draft([k] * rows, tokens.flatten().astype(np.int32))
    if kind == "soft":
        draft.q, draft.q_row = torch.tensor([DRAWN]), np.zeros(rows * k, np.int32)
    keys = np.repeat(rng.integers(0, 2**63, rows).astype(np.uint64), k + 1)
    noise = Noise(keys, np.tile(np.arange(k + 1, dtype=np.int32), rows), np.zeros(len(keys), np.int32))
    logits = torch.tensor(places).log().repeat(rows, 1)
    verdict = Fly(kernels, window, 0.3, 3).verify(draft, logits, noise, None, np.zeros(rows, np.bool_))
    chances = [
        sum(min(p, q) for p, q in zip(distribution, DRAWN, strict=True))
        if kind == "soft"
        else distribution[tokens[0, i]]
        for i, distribution in enumerate(places[:k])
    ]
    lengths, first = np.zeros(k + 1), np.zeros(4)
    for native in itertools.product((False, True), repeat=k):
        chance = math.prod(c if stands else 1 - c for c, stands in zip(chances, native, strict=True))
        lengths[by_definition(native, [True] * k, [three_largest(p) for p in places[:k]], window, 0.3)] += chance
    assert_follows(np.bincount(verdict.accepted, minlength=k + 1), lengths)
    left = np.maximum(np.array(OPEN) - np.array(DRAWN), 0) if kind == "soft" else np.array(OPEN) * (np.arange(4) != 1)
    ends = np.cumsum(verdict.accepted + 1) - 1
    first = np.bincount(verdict.emitted[ends[verdict.accepted == 0]], minlength=4)
    assert_follows(first, left / left.sum())


@pytest.mark.parametrize("numbers", [(1, math.inf, 3), (50, 0.0, 3)], ids=["never undecided", "never room"])
def test_where_nothing_is_overruled_it_is_standard_id_by_id(kernels, call_of, unpack, numbers):
    rng = np.random.default_rng(6)
    for _ in range(200):
        arguments = call_of(rng, trees=False)
        found = Fly(kernels, *numbers).verify(**arguments)
        assert unpack(found) == unpack(Standard(kernels).verify(**arguments))


def test_sampled_chains_are_kept_as_their_own_tries_say(kernels, call_of):
    rng, overruled = np.random.default_rng(7), 0
    for _ in range(300):
        arguments = {**call_of(rng, trees=False), "target_draws": None}
        draft, logits, greedy = arguments["draft"], arguments["logits"], arguments["greedy"]
        p = torch.softmax(logits, -1)
        entropy = entropies(p, 2).tolist()
        verdict = Fly(kernels, 1, 0.25, 2).verify(**arguments)
        node = row = 0
        for length, plain, count in zip(draft.lengths, greedy, verdict.accepted, strict=True):
            native, possible = [], []
            for i in range(length):
                token = int(draft.tokens[node + i])
                chance = float(p[row + i, token])
                possible.append(chance > 0)
                distribution = -1 if draft.q_row is None else int(draft.q_row[node + i])
                if distribution >= 0:
                    column = (
                        token if draft.d2t is None else (torch.arange(len(draft.d2t)) + draft.d2t).tolist().index(token)
                    )
                    q = draft.q[distribution].double()
                    chance = chance / float(q[column] / q.sum())
                noise = arguments["noise"]
                own = Noise(*(values[[row + i]] for values in (noise.keys, noise.positions, noise.seq_index)))
                u = float(kernels.get("uniform", "cpu")(own, Purpose.ACCEPT, torch.tensor([[token]]))[0, 0])
                native.append(token == int(logits[row + i].argmax()) if plain else u < chance)
            expected = by_definition(native, possible, entropy[row : row + length], 1, 0.25)
            assert count == expected
            overruled += not all(native[:expected])
            node, row = node + length, row + length + 1
    assert overruled > 20


def test_trees_are_refused(kernels, call_of):
    arguments = call_of(np.random.default_rng(1), trees=True)
    arguments["draft"].parents = np.full(len(arguments["draft"].tokens), -1, np.int32)
    with pytest.raises(ContractError, match="'fly' is for chains"):
        Fly(kernels, 1, 0.3, 3).verify(**arguments)


TARGET = TargetInfo(model="t", hf_config={}, vocab_size=6, hidden_size=8, num_layers=1, max_model_len=64)


def resolve_config(k, traits=None, **keys):
    stub = stub_plugin(Fixed([1]), traits=traits or MethodTraits())
    registry = Registry(Catalog.discover().with_local({"stub": stub}))
    config = {"method": "stub", "num_speculative_tokens": k, "rejection_sample_method": "fly", **keys}
    return resolve(config, TARGET, registry)


@pytest.mark.parametrize(("k", "window"), [(2, 1), (4, 3), (7, 6), (12, 6)])
def test_the_window_left_out_is_six_or_what_fits(k, window):
    resolved = resolve_config(k)
    options = resolved.verifier_options
    assert (options.window(k), options.fly_entropy_threshold, options.fly_entropy_top_k) == (window, 0.3, 3)
    assert not resolved.lossless


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ({"k": 1}, "num_speculative_tokens", "expected >= 2"),
        ({"k": 4, "fly_window_size": 4}, "fly_window_size", r"4, expected 1\.\.3"),
        ({"k": 4, "fly_window_size": 0}, "fly_window_size", "greater than or equal to 1"),
        ({"k": 4, "fly_entropy_threshold": -0.1}, "fly_entropy_threshold", "greater than or equal to 0"),
        ({"k": 4, "fly_entropy_top_k": 0}, "fly_entropy_top_k", "greater than or equal to 1"),
        ({"k": 4, "traits": MethodTraits(shape="tree")}, "rejection_sample_method", "verifies chains"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(keys, key, words):
    with pytest.raises(ConfigError, match=words) as caught:
        resolve_config(**keys)
    assert [problem.key for problem in caught.value.problems] == [key]


def test_through_the_engine_more_is_accepted_than_by_standard():
    table = random_table(6, seed=41)
    accepted = {}
    for verifier in ("standard", "fly"):
        config = {"method": "stub", "num_speculative_tokens": 4, "rejection_sample_method": verifier}
        config |= {"fly_window_size": 1} if verifier == "fly" else {}
        plugins = {"stub": stub_plugin(Fixed([1, 4, 2, 5]))}
        with LLM(hf_model=table_target(table), speculative_config=config, plugins=plugins, strict=True) as llm:
            llm.generate(
                [[i] for i in range(6)], [SamplingParams(temperature=1.0, seed=i, max_tokens=60) for i in range(6)]
            )
            accepted[verifier] = llm.get_metrics().accepted
    assert accepted["fly"] > accepted["standard"] > 0
