"""What a method is shown of verified rows: the model's own most likely next ids, at rejected drafts as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runs import VOCAB, ids_of, params, prompts, run, target

from specdec_engine import LLM, SamplingParams
from specdec_testing.recording import Call, RecordingProposer
from specdec_testing.stubs import Garbage, Perfect, Stub, stub_plugin
from specdec_testing.trees import PerfectTree, RaggedTree

N = 5
LENGTHS = (1, 33, 7, 20)


def answered(model: Any, ids: list[int]) -> torch.Tensor:
    """Log-probabilities after some ids, from a forward over them alone."""
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].float(), -1)


def check(model: Any, call: Call) -> tuple[int, int]:
    """Compare the rows of one call with fresh forwards; return how many there were, and how many of rejected drafts."""
    rows = call.verified
    assert rows is not None and (np.diff(rows.request) >= 0).all()
    for i, known in enumerate(call.tokens):
        own = np.flatnonzero(rows.request == i)
        if not len(own):
            continue
        parents, accepted = rows.parents[own].tolist(), rows.accepted[own]
        path = np.flatnonzero(accepted)
        before = len(known) - 1 - len(path)  # the ids before the row of the id that was the newest then
        assert rows.tokens[own][path].tolist() == known[before:-1], "the accepted rows are the text"
        texts: list[list[int]] = []
        for token, parent in zip(rows.tokens[own].tolist(), parents, strict=True):
            texts.append([*(known[:before] if parent < 0 else texts[parent]), token])
        assert parents.count(-1) == 1
        for row, text in zip(own, texts, strict=True):
            fresh = answered(model, text)
            given, ids = torch.tensor(rows.top_logprobs[row]), torch.tensor(rows.top_ids[row]).long()
            assert len(set(ids.tolist())) == N  # ids of almost equal logits may change places
            torch.testing.assert_close(given, fresh.topk(N).values, rtol=0, atol=2e-4)
            torch.testing.assert_close(given, fresh[ids], rtol=0, atol=2e-4)
    return len(rows.tokens), int((~rows.accepted).sum())


def stubs(texts: Any, plain: Any) -> dict[str, Stub]:
    return {
        "perfect": Perfect.of_run(texts, plain),
        "garbage": Garbage(VOCAB),
        "tree": RaggedTree(VOCAB),
        "right-tree": PerfectTree.of_run(texts, plain, VOCAB),
    }


@pytest.mark.parametrize("name", ["perfect", "garbage", "tree", "right-tree"])
@pytest.mark.parametrize("width", [None, 6])
def test_the_best_ids_of_each_row_are_those_of_a_fresh_forward(name: str, width: int | None) -> None:
    model, texts = target("llama"), prompts(LENGTHS)
    sampling = [
        SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=18, ignore_eos=True, repetition_penalty=1.3)
        for i in range(len(texts))
    ]
    plain = run(model, texts, sampling, decode_width=width)
    recorder = RecordingProposer("none", hidden=False, verified_top_k=N, inner=stubs(texts, plain)[name])
    spec = run(model, texts, sampling, recorder, k=6, decode_width=width, prefill_chunk_size=8)
    assert ids_of(spec) == ids_of(plain)
    counts = [check(model, call) for call in recorder.calls_seen]
    assert sum(rows for rows, _ in counts) > 40
    assert (sum(rejected for _, rejected in counts) > 10) == (name != "perfect")


def test_after_preemption_no_answer_of_another_place_is_shown() -> None:
    model, texts = target("llama"), prompts((30, 41, 22))
    sampling = params(3, 0.0, 45)
    plain = run(model, texts, sampling)
    recorder = RecordingProposer("none", hidden=False, verified_top_k=N, inner=RaggedTree(VOCAB))
    spec = run(model, texts, sampling, recorder, k=6, kv_cache_tokens=128)
    assert ids_of(spec) == ids_of(plain)
    assert ("preempted" in [event[-1] for event in recorder.events if event[0] == "finish"]) is True
    assert sum(check(model, call)[0] for call in recorder.calls_seen) > 40


def test_a_method_that_asks_for_nothing_is_shown_nothing_and_nothing_is_looked_for() -> None:
    recorder = RecordingProposer("none", hidden=False, inner=Garbage(VOCAB))
    config = {"method": "stub", "num_speculative_tokens": 3}
    with LLM(None, config, hf_model=target("llama"), plugins={"stub": stub_plugin(recorder)}, strict=True) as llm:

        def never(*_: Any) -> Any:
            raise AssertionError

        llm._engine.stepper.speculation.top_ids = never
        llm.generate(prompts((5, 9)), params(2, 0.0, 8))
    assert recorder.calls_seen and all(call.verified is None for call in recorder.calls_seen)
