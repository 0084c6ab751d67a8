"""Texts of drawn drafts have the target's distribution under every rule, also one that chooses by what was drawn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specdec_core.draft import Draft
from specdec_engine import LLM, SamplingParams
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.stubs import Fixed, Soft, stub_plugin
from specdec_testing.table import joint, random_table, table_target

VOCAB, LENGTH, SAMPLES = 4, 3, 3000
TARGET = random_table(VOCAB, seed=1, concentration=0.8)


class Stopping(Soft):
    """Ends its drawn chain after the first even id, so that the length of a draft says something of its ids."""

    def propose(self, batch):
        draft = super().propose(batch)
        keep, at = [], 0
        for length in draft.lengths:
            chain = draft.tokens[at : at + length]
            even = np.flatnonzero(chain % 2 == 0)
            end = int(even[0]) + 1 if len(even) else length
            keep += [i < end for i in range(length)]
            at += length
        return draft.keep(np.asarray(keep, np.bool_)) if len(keep) else Draft.empty(len(batch))


ONE, OTHER = (random_table(VOCAB, seed=seed, concentration=0.5) for seed in (2, 3))
KINDS = {
    "two that draw": lambda: {"a": Soft(ONE), "b": Soft(OTHER)},
    "lengths that tell": lambda: {"a": Stopping(ONE), "b": Fixed([1])},
    "drawn, then looked up": lambda: {"a": Stopping(ONE), "b": Fixed([1, 2, 3])},
    "looked up, then drawn": lambda: {"a": Fixed([2]), "b": Stopping(ONE)},
}


KIND = ["two that draw", "lengths that tell", "drawn, then looked up", "looked up, then drawn"]
RULE = ["first", "longest", "extend", "merge", "learned"]
VERIFIER = ["standard", "block"]
QUICK = ("two that draw", "merge", "standard")  # the others run in `make test`


@pytest.mark.parametrize(
    ("kind", "rule", "verifier"),
    [
        pytest.param(*case, marks=[] if case == QUICK else pytest.mark.slow)
        for case in itertools.product(KIND, RULE, VERIFIER)
    ],
)
def test_texts_have_the_targets_distribution(kind, rule, verifier):
    if rule == "merge" and verifier == "block":
        pytest.skip("block verification takes chains")
    parts = KINDS[kind]()
    config = {
        "method": "combine",
        "rule": rule,
        "methods": [{"method": name} for name in parts],
        "num_speculative_tokens": 3,
        "rejection_sample_method": verifier,
    }
    sampling = SamplingParams(temperature=1.0, seed=1, n=SAMPLES, max_tokens=LENGTH + 3, ignore_eos=True)
    plugins = {name: stub_plugin(part) for name, part in parts.items()}
    model = table_target(TARGET, num_layers=1, max_position_embeddings=64)
    with LLM(hf_model=model, speculative_config=config, plugins=plugins, max_num_seqs=SAMPLES, strict=True) as llm:
        (result,) = llm.generate([{"prompt_token_ids": [0]}], sampling, use_tqdm=False)
    assert result.metrics.accepted > SAMPLES / 4
    found = np.array([sample.token_ids[:LENGTH] for sample in result.outputs])
    codes = found @ (VOCAB ** np.arange(LENGTH)[::-1])
    assert_follows(np.bincount(codes, minlength=VOCAB**LENGTH), joint(TARGET, 0, LENGTH))
