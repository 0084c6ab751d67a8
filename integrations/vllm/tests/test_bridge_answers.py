"""Methods that read what the target answers: in vLLM its rows are a fresh forward's, and elsewhere they are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import engine, metrics, tokens
from test_routes import in_vllm, llama, route_of, wrapped  # noqa: F401 - llama is a fixture
from vllm_answers import Recording
from vllm_heads import over_the_bridge

from specdec_core.errors import ConfigError
from specdec_vllm import routes
from specdec_vllm.proposer import Proposer

pytestmark = pytest.mark.fast

CHAINS = {"method": "token_recycling", "num_speculative_tokens": 3, "tree": "chain"}
PROMPTS = [[(7 * i + 5 * j * j + i * j) % 94 + 2 for j in range(n)] for i, n in enumerate((1, 40, 17, 3))]


def params():
    # No seeds: vLLM cannot put back a CPU generator after a piece of a prompt.
    from vllm import SamplingParams

    return [
        SamplingParams(temperature=0.9 * (i % 2), max_tokens=12 + i, ignore_eos=True, top_k=20 * (i % 2))
        for i in range(len(PROMPTS))
    ]


def test_answers_are_those_of_a_fresh_forward_also_at_rejected_drafts(llama, monkeypatch):  # noqa: F811
    import transformers

    monkeypatch.setattr(routes, "FROM_STATES", "vllm_answers.Recording")
    with engine(llama, **over_the_bridge(CHAINS), max_num_batched_tokens=24, max_num_seqs=3) as llm:
        tokens(llm, PROMPTS, params())
        counted = metrics(llm)
    assert counted["spec_decode_num_draft_tokens"] > 20
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    seen, rejected = 0, 0
    for call in Recording.last.recorder.calls_seen:
        rows = call.verified
        for i, known in enumerate(call.tokens):
            own = np.flatnonzero(rows.request == i)
            if not len(own):
                continue
            count = int(rows.accepted[own].sum())
            before = len(known) - 1 - count
            assert rows.tokens[own][:count].tolist() == known[before:-1]
            text = [*known[:before], *rows.tokens[own].tolist()]
            with torch.inference_mode():
                fresh = torch.log_softmax(model(torch.tensor([text])).logits[0, before:], -1)
            given = torch.tensor(rows.top_logprobs[own])
            torch.testing.assert_close(given, fresh.topk(given.shape[1]).values, rtol=0, atol=2e-4)
            torch.testing.assert_close(
                given, fresh.gather(1, torch.tensor(rows.top_ids[own]).long()), rtol=0, atol=2e-4
            )
            seen, rejected = seen + len(own), rejected + len(own) - count
    assert seen > 50 and rejected > 10


def test_greedy_text_is_vllms_own(llama):  # noqa: F811
    from vllm import SamplingParams

    greedy = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    with engine(llama) as llm:
        plain = tokens(llm, PROMPTS, greedy)
    with engine(llama, **over_the_bridge(CHAINS)) as llm:
        assert tokens(llm, PROMPTS, greedy) == plain
        assert metrics(llm)["spec_decode_num_accepted_tokens"] > 0


def test_it_takes_the_bridge_and_nothing_else(llama):  # noqa: F811
    found = route_of(llama, CHAINS)
    assert (found.name, found.keys["model"]) == ("bridge", routes.FROM_STATES) and "answers" in found.reason
    config = in_vllm(llama, None, additional_config={"specdec": CHAINS})
    config.speculative_config = in_vllm(llama, wrapped(CHAINS)).speculative_config
    with pytest.raises(ConfigError, match="token_recycling reads the target's answers at verified rows"):
        Proposer(config)


@pytest.mark.parametrize("method", ["token_recycling", "lookahead"])
def test_trees_are_refused_by_name(llama, method):  # noqa: F811
    with pytest.raises(ConfigError, match=f"{method} is set up to draft trees, and vLLM verifies chains only"):
        route_of(llama, {"method": method})


@pytest.mark.parametrize(
    "config",
    [{"method": "early_exit"}, {"method": "combine", "methods": [{"method": "early_exit"}, {"method": "suffix"}]}],
)
def test_methods_that_run_a_part_of_the_target_are_refused_by_name(llama, config):  # noqa: F811
    what = f"{config['method']} runs the target's first 1 layers by themselves, and vLLM runs a target as a whole"
    with pytest.raises(ConfigError, match=what):
        route_of(llama, config)
