"""Reports of divergences look at rows as their parameters process them, and at the edges of truncation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from runs import prompts, target

from specdec_core.noise import Purpose, exponential
from specdec_engine import LLM, SamplingParams
from specdec_engine.compare import Divergence

PROMPT = prompts((40,))[0]
NEAR, FAR = 2e-6, 0.2  # distances of logits like the noise of float32, and far above it


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(hf_model=target("llama"), logprobs_mode="raw_logits") as engine:
        yield engine


@pytest.fixture(scope="module")
def logits(llm: LLM) -> Any:
    """The model's own logits after the prompt, [V]."""
    (entry,) = llm.generate([PROMPT], SamplingParams(max_tokens=1, temperature=0.0, logprobs=-1))[0].outputs[0].logprobs
    return np.array([entry[token].logprob for token in range(len(entry))])


def reported(llm: LLM, params: SamplingParams, other: int) -> Divergence:
    """What is said of a text that has `other` in place of its first id."""
    (plain,) = llm.generate([PROMPT], params)
    assert llm.compare(plain, plain, params) is None
    assert plain.outputs[0].token_ids[0] != other
    found = llm.compare(plain, replace(plain, outputs=[replace(plain.outputs[0], token_ids=[other])]), params)
    assert found is not None and (found.index, found.other) == (0, other)
    assert found.verdict == ("rounding" if found.margin <= found.noise else "fault")
    return found


def ranks(logits: Any, seed: int) -> Any:
    """Log race scores of the first place at temperature 1."""
    place = len(PROMPT["prompt_token_ids"])
    noise = [exponential(seed, place, 0, Purpose.TARGET, token) for token in range(len(logits))]
    return logits - np.log(noise)


def seed_for(logits: Any, alive: Any, rival: int) -> int:
    """A seed with which `rival` would win, were it alive, far before all others."""
    for seed in range(2000):
        scores = ranks(logits, seed)
        if scores[rival] > max(scores[token] for token in alive) + 1:
            return seed
    raise AssertionError


@pytest.mark.parametrize("distance", [NEAR, FAR])
def test_the_margin_is_that_of_the_processed_row(llm: LLM, logits: Any, distance: float) -> None:
    """By a bias the second best id comes near the best one, whose lead was large."""
    best, second = (int(token) for token in np.argsort(-logits)[:2])
    lead = float(logits[best] - logits[second])
    assert lead > 1e-3
    for values in ({"logit_bias": {second: lead - distance}}, {"logit_bias": {best: distance - lead}}):
        found = reported(llm, SamplingParams(temperature=0.0, max_tokens=1, **values), second)
        assert found.margin == pytest.approx(distance, abs=1e-5)
        assert found.verdict == "fault" or distance == NEAR


def test_an_id_that_a_parameter_forbids_is_a_fault(llm: LLM, logits: Any) -> None:
    best = int(np.argmax(logits))
    found = reported(llm, SamplingParams(temperature=0.0, max_tokens=1, bad_words=[[best]]), best)
    assert found.verdict == "fault" and math.isfinite(found.margin) and math.isfinite(found.noise)


@pytest.mark.parametrize("distance", [NEAR, FAR])
def test_an_id_just_behind_the_edge_of_top_k_has_a_small_margin(llm: LLM, logits: Any, distance: float) -> None:
    third, fourth = (int(token) for token in np.argsort(-logits)[2:4])
    bias = float(logits[third] - logits[fourth]) - distance
    shifted = logits.copy()
    shifted[fourth] += bias
    alive = np.argsort(-logits)[:3]
    params = SamplingParams(
        top_k=3, max_tokens=1, logit_bias={fourth: bias}, seed=seed_for(shifted, alive.tolist(), fourth)
    )
    found = reported(llm, params, fourth)
    assert found.margin == pytest.approx(distance, abs=1e-5)
    assert found.verdict == "fault" or distance == NEAR


@pytest.mark.parametrize("distance", [NEAR, FAR])
def test_an_id_just_behind_the_edge_of_min_p_has_a_small_margin(llm: LLM, logits: Any, distance: float) -> None:
    best, second = (int(token) for token in np.argsort(-logits)[:2])
    min_p = math.exp(logits[second] - logits[best] + distance)
    params = SamplingParams(min_p=min(min_p, 1.0), max_tokens=1, seed=seed_for(logits, [best], second))
    assert min_p < 1
    found = reported(llm, params, second)
    assert found.margin == pytest.approx(distance, abs=1e-5)
    assert found.verdict == "fault" or distance == NEAR


@pytest.mark.parametrize("distance", [NEAR, 0.02])
def test_an_id_just_behind_the_edge_of_top_p_has_a_small_margin(llm: LLM, logits: Any, distance: float) -> None:
    distribution = torch.softmax(torch.tensor(logits), 0).numpy()
    best, second = (int(token) for token in np.argsort(-logits)[:2])
    params = SamplingParams(
        top_p=float(distribution[best]) - distance, max_tokens=1, seed=seed_for(logits, [best], second)
    )
    found = reported(llm, params, second)
    assert found.margin == pytest.approx(distance, abs=1e-5)
    assert found.verdict == "fault" or distance == NEAR


def test_processors_and_forms_are_asked_behind_the_text_so_far(llm: LLM) -> None:
    """A wrong id at place 3 is judged by the row that penalties and a processor with a state make of it."""

    class Every:
        def __init__(self, said: int = 0) -> None:
            self.said = said

        def fork(self) -> Every:
            return Every(self.said)

        def accept(self, token: int) -> None:
            self.said += 1

        def rollback(self, count: int) -> None:
            self.said -= count

        def apply(self, prefix: Any, logits: Any) -> Any:
            if self.said == 3:
                logits[77] = logits[78] = logits.max() + 5
            return logits

    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logits_processors=[Every()])
    (plain,) = llm.generate([PROMPT], params)
    ids = plain.outputs[0].token_ids
    assert ids[3] == 77
    other = replace(plain, outputs=[replace(plain.outputs[0], token_ids=[*ids[:3], 78, *ids[4:]])])
    found = llm.compare(plain, other, params)
    assert found is not None and (found.index, found.margin, found.verdict) == (3, 0.0, "rounding")


def test_going_on_where_plain_decoding_could_not_is_a_fault(llm: LLM) -> None:
    dead_end = {"allowed_token_ids": [3, 4], "bad_words": [[3, 3], [3, 4]], "logit_bias": {3: 100.0}}
    params = SamplingParams(temperature=0.0, max_tokens=4, **dead_end)
    (plain,) = llm.generate([PROMPT], params)
    assert (plain.outputs[0].token_ids, plain.outputs[0].finish_reason) == ([3], "error")
    other = replace(plain, outputs=[replace(plain.outputs[0], token_ids=[3, 4])])
    found = llm.compare(plain, other, params)
    assert found is not None and (found.index, found.plain, found.verdict) == (1, None, "fault")
