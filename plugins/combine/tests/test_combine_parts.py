"""What a part may do wrong and what it is told: faults, rows, options of requests, configurations that do not fit."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError, RequestError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_core.traits import MethodTraits
from specdec_engine import LLM, SamplingParams
from specdec_testing.breakers import OutOfVocabulary, Raises
from specdec_testing.identity import assert_same_output
from specdec_testing.stubs import Stub, stub_plugin
from specdec_testing.targets import tiny_target

NGRAM = {"method": "ngram", "prompt_lookup_max": 1, "num_speculative_tokens": 3}
PROMPTS = [[5, 9, 5], [7] * 12, [3, 4, 5, 3, 4]]
INFO = TargetInfo(model=None, hf_config={}, vocab_size=128, hidden_size=32, num_layers=2, max_model_len=256)


def generate(config=None, plugins=None, extra=None, max_tokens=20, **llm):
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, extra_args=extra)
    with LLM(
        hf_model=tiny_target("llama"), speculative_config=config, plugins=plugins, max_model_len=192, **llm
    ) as host:
        return host.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params)


def combined(*methods, rule="first", **keys):
    return {"method": "combine", "rule": rule, "methods": list(methods), "num_speculative_tokens": 3, **keys}


@pytest.mark.parametrize("rule", ["first", "longest", "merge", "learned"])
@pytest.mark.parametrize("bad", ["raises", "out of contract"])
def test_a_part_that_misbehaves_is_dropped_alone_and_logged_once(rule, bad, caplog):
    plain = generate()
    alone = generate(NGRAM)
    broken = Raises("propose") if bad == "raises" else OutOfVocabulary(128)
    with caplog.at_level(logging.WARNING):
        results = generate(combined({"method": "broken"}, NGRAM, rule=rule), {"broken": stub_plugin(broken)})
    assert_same_output(plain, results)
    drafted = sum(result.metrics.drafted for result in results)
    assert 0 < drafted <= sum(result.metrics.drafted for result in alone)
    if rule != "learned":  # which tries the broken part as well
        assert drafted == sum(result.metrics.drafted for result in alone)
    assert sum("combine: broken" in record.getMessage() for record in caplog.records) == 1


def test_the_error_of_a_part_is_raised_by_a_strict_host():
    with pytest.raises(Exception, match="propose"):
        generate(combined({"method": "broken"}, NGRAM), {"broken": stub_plugin(Raises("propose"))}, strict=True)


class ReadsRows(Stub):
    """Notes what rows it is given, and drafts nothing."""

    def __init__(self, traits):
        super().__init__()
        self.traits = traits
        self.seen = []

    def row(self, batch, i):
        if batch.rows is not None and i == 0:
            rows = batch.rows
            hidden = None if rows.hidden is None else rows.hidden.clone()
            aux = None if rows.aux is None else rows.aux.clone()
            names = [batch.request(int(r)).id for r in rows.request]
            self.seen += [
                (
                    name,
                    int(rows.positions[j]),
                    int(rows.tokens[j]),
                    None if hidden is None else hidden[j].tolist(),
                    None if aux is None else aux[j].tolist(),
                    bool(rows.gap[int(rows.request[j])]),
                )
                for j, name in enumerate(names)
            ]
        return []


@pytest.mark.parametrize(
    "traits",
    [
        MethodTraits(rows="all", hidden=True),
        MethodTraits(rows="all", aux_layers=(1,)),
        MethodTraits(rows="last", hidden=True),
    ],
    ids=["all", "aux", "last"],
)
@pytest.mark.parametrize("beside", ["nothing that reads rows", "one that reads more"])
def test_a_part_gets_the_rows_that_it_would_get_alone_whichever_part_drafts(traits, beside):
    def seen_by(config, reader, *others):
        plugins = {"reader": stub_plugin(reader)}
        plugins.update({f"other{i}": stub_plugin(other) for i, other in enumerate(others)})
        generate(config, plugins, strict=True)
        return sorted(reader.seen, key=lambda row: row[:2])

    alone, within = ReadsRows(traits), ReadsRows(traits)
    more = ReadsRows(MethodTraits(rows="all", hidden=True, aux_layers=(1, 2)))
    others = [] if beside.startswith("nothing") else [more]
    names = [{"method": f"other{i}"} for i in range(len(others))]
    with_perfect = combined({"method": "reader"}, *names, NGRAM)
    expected = seen_by({"method": "reader", "num_speculative_tokens": 3}, alone)
    found = seen_by(with_perfect, within, *others)
    known = {row[:3]: row for row in expected}
    assert found
    for row in found:
        assert not row[5]
        for mine, theirs in zip(row[3:5], known[row[:3]][3:5], strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                np.testing.assert_allclose(mine, theirs, atol=1e-5)
    if traits.rows == "all":  # none is missing but those of the last step, of several ids here
        for name in {row[0] for row in expected}:
            ours, alone_here = ([row[1] for row in rows if row[0] == name] for rows in (found, expected))
            assert ours == alone_here[: len(ours)]
            assert len(ours) >= len(alone_here) - 3


def test_options_of_a_request_go_to_the_part_that_reads_them():
    plain = generate()
    config = combined({"method": "predicted"}, NGRAM)
    first = plain[0].outputs[0].token_ids
    results = generate(config, extra={"specdec": {"prediction": first}}, strict=True)
    assert_same_output(plain, results)
    assert results[0].metrics.accepted == results[0].metrics.drafted > 0
    with pytest.raises(RequestError, match=r"predicton.*there are: prediction"):
        generate(config, extra={"specdec": {"predicton": first}})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (combined(NGRAM), "methods"),
        (combined(NGRAM, {"method": "nothing_like_it"}), r"methods\[1\].*nothing_like_it"),
        (combined(NGRAM, {"method": "suffix", "controller": "x"}), r"methods\[1\]\.controller: is a key of the whole"),
        (combined(NGRAM, NGRAM), r"methods\[1\]: is the same as methods\[0\]"),
        (combined(NGRAM, combined(NGRAM, {"method": "suffix"})), r"methods\[1\]: combine is made of parts itself"),
        (combined(NGRAM, {"method": "suffix", "tree_drafts": True}, rule="extend"), "'extend' continues a chain"),
        (combined(NGRAM, {"method": "suffix"}, rule="best"), "rule"),
        (
            combined(NGRAM, {"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 2}),
            r"methods\[1\].*leave one",
        ),
    ],
)
def test_a_combination_that_cannot_be_is_refused_with_the_place(config, message):
    with pytest.raises(ConfigError, match=message):
        resolve(config, INFO, Registry(Catalog.discover()))


def test_traits_and_k_come_from_the_parts_and_explain_shows_their_decisions():
    config = {"method": "combine", "methods": [NGRAM, {"method": "suffix", "num_speculative_tokens": 7}]}
    resolved = resolve(config, INFO, Registry(Catalog.discover()))
    assert resolved.num_speculative_tokens == 7
    assert (resolved.traits.rows, resolved.traits.shape, resolved.traits.remembers) == ("none", "chain", True)
    assert "methods[1].method" in [decision.key for decision in resolved.decisions]
    tree = resolve({**config, "rule": "merge"}, INFO, Registry(Catalog.discover()))
    assert tree.traits.shape == "tree"
    assert tree.compute_hash() != resolved.compute_hash()


def test_figures_of_parts_add_up_to_those_of_the_method():
    right = generate()[0].outputs[0].token_ids
    for rule in ("first", "merge"):
        results = generate(
            combined({"method": "predicted"}, NGRAM, rule=rule), extra={"specdec": {"prediction": right}}
        )
        told, *others = (result.metrics for result in results)
        assert told.accepted_per_part[0] > 0 and any(other.accepted_per_part[1] for other in others)
        for metrics in (told, *others):
            assert sum(metrics.drafted_per_part) == metrics.drafted
            assert sum(metrics.accepted_per_part) == metrics.accepted
