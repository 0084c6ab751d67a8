"""Drawn drafts: their distributions reach vLLM's sampler as they were used, and sampled text follows the target."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import engine, metrics, tokens
from safetensors.torch import load_file
from test_vllm_sampling import DISTRIBUTION, LENGTH, REQUESTS, TEMPERATURES, worst
from vllm_heads import from_plugin, over_the_bridge, perfect_eagle
from vllm_models import table_llama

from specdec_core.draft import Draft
from specdec_vllm.bridge.probabilities import probabilities


def test_distributions_stand_where_their_drafts_stand_and_point_masses_beside_them():
    q = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])
    tokens, q_row = np.array([2, 0, 1, 3, 2], np.int32), np.array([0, 1, -1, -1, 1], np.int32)
    draft = Draft([2, 0, 1, 2], tokens, q=q, q_row=q_row, d2t=torch.tensor([0, 1, 2]))
    distributions, names = probabilities(draft, ["a", "b", "c", "d"], 5)
    assert names == ["a", "c", "d"]
    assert distributions.shape == (3, 2, 5) and distributions.dtype == torch.float32
    first, second = [0.1, 0.0, 0.2, 0.0, 0.7], [0.5, 0.0, 0.25, 0.0, 0.25]
    torch.testing.assert_close(distributions[0], torch.tensor([first, second]))
    assert distributions[1, 0].tolist() == [0, 1, 0, 0, 0]
    torch.testing.assert_close(distributions[2], torch.tensor([[0, 0, 0, 1.0, 0], second]))


def test_without_a_drawn_draft_there_are_no_distributions():
    assert probabilities(Draft.of([[1], []]), ["a", "b"], 4) is None
    point = Draft([1], np.array([1], np.int32), q=torch.ones(1, 4) / 4, q_row=np.array([-1], np.int32))
    assert probabilities(point, ["a"], 4) is None
    assert probabilities(Draft.empty(2), ["a", "b"], 4) is None


def sampled(folder: Path, mode: str) -> tuple[list[list[int]], float]:
    """Return what vLLM samples, half of the requests at each temperature, and which part of the drafts it accepts."""
    from vllm import SamplingParams

    config = {"method": "eagle", "model": str(folder / "head"), "num_speculative_tokens": 3}
    params = [
        SamplingParams(temperature=TEMPERATURES[i % len(TEMPERATURES)], max_tokens=LENGTH, ignore_eos=True)
        for i in range(REQUESTS)
    ]
    arguments = over_the_bridge(config, draft_sample_method=mode)
    with engine(folder / "target", max_num_seqs=REQUESTS, **arguments) as llm:
        found = tokens(llm, [[i % len(DISTRIBUTION)] for i in range(REQUESTS)], params)
        counted = metrics(llm)
    assert counted["spec_decode_num_draft_tokens"] > REQUESTS * LENGTH / 2
    rate = counted["spec_decode_num_accepted_tokens"] / counted["spec_decode_num_draft_tokens"]
    return [answer[0] for answer in found], rate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target with a distribution, and a head that nearly knows it."""
    folder = tmp_path_factory.mktemp("distributions")
    table_llama(folder / "target", DISTRIBUTION)
    perfect_eagle(folder / "head", len(DISTRIBUTION))
    tensors = load_file(folder / "head" / "model.safetensors")
    noise = torch.randn(tensors["fc.weight"].shape, generator=torch.Generator().manual_seed(3))
    tensors["fc.weight"] += 0.4 * noise * (torch.arange(128) < 6)
    made = from_plugin("eagle", "checkpoints")
    made.save(folder / "head", tensors, json.loads((folder / "head" / "config.json").read_text()))
    return folder


def test_of_drafts_that_are_drawn_from_the_targets_own_distribution_all_are_accepted(folder):
    """The target is its own draft model; each q is over by one position, and one of two requests is greedy."""
    from vllm import SamplingParams

    config = {"method": "draft_model", "model": str(folder / "target"), "num_speculative_tokens": 3}
    params = [SamplingParams(temperature=i % 2, max_tokens=61, ignore_eos=True) for i in range(8)]
    with engine(folder / "target", **over_the_bridge(config, draft_sample_method="probabilistic")) as llm:
        found = tokens(llm, [[i % len(DISTRIBUTION)] for i in range(8)], params)
        counted = metrics(llm)
    assert len({tuple(answer[0]) for answer in found[1::2]}) > 1
    assert counted["spec_decode_num_draft_tokens"] == counted["spec_decode_num_accepted_tokens"] > 8 * 40


def test_sampled_text_follows_the_target_and_drawn_drafts_are_accepted_more_often(folder):
    rates = {}
    for mode in ("probabilistic", "greedy"):
        answers, rates[mode] = sampled(folder, mode)
        assert worst(answers) > 1e-3, mode
    assert rates["probabilistic"] > 1.15 * rates["greedy"], rates
