"""What a method is shown in vLLM is what it is shown in the reference engine, and so are its drafts."""

from __future__ import annotations

import sys

import pytest
import torch
from conftest import engine, metrics, tokens
from vllm_bridge_recording import RecordingStates, recorder_of, rows_by_text
from vllm_heads import AUX, HEADS, MTP, ROOT, VARIANTS, draft_model, mtp_target, over_the_bridge
from vllm_models import random_llama

from specdec_vllm import routes

# Chunks of 24 ids, eight requests of very different length; they join and leave as there is room for them.
CHUNKED = {"max_num_batched_tokens": 24, "max_num_seqs": 3}
LENGTHS = (1, 60, 17, 3, 40, 25, 24, 48)
ANSWERS = (30, 9, 44, 21, 33, 2, 50, 16)
PROMPTS = [[(7 * i + 5 * j * j + i * j) % 94 + 2 for j in range(n)] for i, n in enumerate(LENGTHS)]


@pytest.fixture(autouse=True)
def recording(monkeypatch):
    monkeypatch.setattr(routes, "FROM_STATES", "vllm_bridge_recording.RecordingStates")
    monkeypatch.setattr(RecordingStates, "texts", ())


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return random_llama(tmp_path_factory.mktemp("deep") / "llama", layers=4)


def params():
    from vllm import SamplingParams

    return [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in ANSWERS]


@pytest.fixture(scope="module")
def texts(llama):
    """The finished texts, by vLLM without speculation."""
    with engine(llama) as llm:
        return [p + ids for p, (ids,) in zip(PROMPTS, tokens(llm, PROMPTS, params()), strict=True)]


def in_vllm(llama, config, texts, monkeypatch, **arguments):
    """Return the recorder of a run whose text is right."""
    monkeypatch.setattr(RecordingStates, "texts", texts)
    with engine(llama, **over_the_bridge(config), **arguments) as llm:
        found = tokens(llm, PROMPTS, params())
        counted = metrics(llm)
    assert [p + ids for p, (ids,) in zip(PROMPTS, found, strict=True)] == texts
    return RecordingStates.last.recorder, counted


def in_the_reference_engine(llama, config, texts):
    sys.path.append(str(ROOT / "engine" / "src"))
    from specdec_engine import LLM, SamplingParams

    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in ANSWERS]
    with LLM(str(llama), config, strict=True, dtype="float32", prefill_chunk_size=24, max_num_seqs=3) as llm:
        recorder = recorder_of(llm._engine.runner._proposer, llm.resolved_config.traits, texts)
        llm._engine.runner._proposer = recorder
        found = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params)
    assert [p + result.outputs[0].token_ids for p, result in zip(PROMPTS, found, strict=True)] == texts
    return recorder


def assert_that_rows_and_drafts_are_those_of_the_reference_engine(target, config, texts, monkeypatch):
    ours, counted = in_vllm(target, config, texts, monkeypatch, **CHUNKED)
    theirs = in_the_reference_engine(target, config, texts)
    assert ours.layout_problems() == [] or ours.traits.rows == "none"
    rows, drafts = rows_by_text(ours, texts)
    wanted_rows, wanted_drafts = rows_by_text(theirs, texts)
    per_position = counted["spec_decode_num_accepted_tokens_per_pos"]
    assert min(per_position) > 2 and counted["spec_decode_num_drafts"] > per_position[0] + 2
    if ours.traits.rows == "all":  # the last id of an answer is never run, nor is what a rejected draft ran
        assert {(t, p) for t, ids in enumerate(texts) for p in range(len(PROMPTS[t]))} <= rows.keys()
    both = rows.keys() & wanted_rows.keys()
    # Where chunks end is each host's own affair, and of those the last row alone may be seen.
    assert len(both) >= 0.7 * max(len(rows), len(wanted_rows))
    for place in both:
        token, hidden, aux = rows[place]
        assert token == wanted_rows[place][0] == texts[place[0]][place[1] + 1]
        for mine, other in ((hidden, wanted_rows[place][1]), (aux, wanted_rows[place][2])):
            assert (mine is None) == (other is None)
            if mine is not None:
                torch.testing.assert_close(mine, other, atol=2e-5, rtol=2e-4)
    same = drafts.keys() & wanted_drafts.keys()
    assert len(same) > 0.9 * max(len(drafts), len(wanted_drafts)) > 45
    assert {place: drafts[place] for place in same} == {place: wanted_drafts[place] for place in same}


@pytest.mark.parametrize("head", [*HEADS, *VARIANTS, "draft_model"])
def test_rows_states_and_drafts_are_those_of_the_reference_engine(head, llama, texts, tmp_path, monkeypatch):
    config = {**HEADS, **VARIANTS, "draft_model": draft_model}[head](tmp_path / "draft")
    assert_that_rows_and_drafts_are_those_of_the_reference_engine(llama, config, texts, monkeypatch)


@pytest.mark.filterwarnings("ignore:num_speculative_tokens 4 is above the n_predict")
def test_modules_inside_of_the_target_are_shown_and_draft_what_they_do_in_the_reference_engine(tmp_path, monkeypatch):
    target = mtp_target(tmp_path / "target")
    with engine(target) as llm:
        texts = [p + ids for p, (ids,) in zip(PROMPTS, tokens(llm, PROMPTS, params()), strict=True)]
    assert_that_rows_and_drafts_are_those_of_the_reference_engine(target, MTP, texts, monkeypatch)


def test_the_layers_are_those_that_were_asked_for(llama, texts, tmp_path, monkeypatch):
    """By transformers' own forward: what enters the first and the third layer, and what leaves the last."""
    import transformers

    ours, _ = in_vllm(llama, HEADS["eagle3"](tmp_path / "draft"), texts, monkeypatch, **CHUNKED)
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    kept = []
    model.model.norm.register_forward_pre_hook(lambda module, args: kept.append(args[0][0]))
    with torch.inference_mode():
        states = model(torch.tensor([texts[1]]), output_hidden_states=True).hidden_states
    streams = [*(state[0] for state in states[:4]), kept[0]]
    rows, _ = rows_by_text(ours, texts)
    for position in range(len(PROMPTS[1])):
        wanted = torch.stack([streams[layer][position] for layer in AUX])
        torch.testing.assert_close(rows[1, position][2], wanted, atol=2e-5, rtol=2e-4)


def test_a_request_that_lost_its_cache_begins_anew_and_all_end(llama, texts, tmp_path, monkeypatch):
    crowded = {"max_num_batched_tokens": 32, "num_gpu_blocks_override": 6, "block_size": 32, "max_model_len": 128}
    ours, counted = in_vllm(llama, HEADS["eagle"](tmp_path / "draft"), texts, monkeypatch, **crowded)
    assert counted["num_preemptions"] > 0
    assert ours.layout_problems() == []
    assert all(not call.rows.gap.any() for call in ours.calls_seen)
    reasons = [event[3] for event in ours.events if event[0] == "finish"]
    assert reasons.count("preempted") == counted["num_preemptions"]
    alive = set()
    for event in ours.events:
        if event[0] == "start":
            assert event[1] not in alive
            alive.add(event[1])
        elif event[0] == "finish":
            alive.remove(event[1])
    # vLLM tells of ended requests with the next step, so the last ones are still open.
    assert len(alive) <= 3 and reasons.count("done") >= len(texts) - 3


def test_a_cached_prefix_is_a_gap_and_drafts_come_all_the_same(llama, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(RecordingStates, "texts", texts)
    cached = {"enable_prefix_caching": True, "block_size": 32}
    with engine(llama, **over_the_bridge(HEADS["eagle3"](tmp_path / "draft")), **cached) as llm:
        for _ in range(2):
            found = tokens(llm, PROMPTS, params())
            assert [p + ids for p, (ids,) in zip(PROMPTS, found, strict=True)] == texts
    ours = RecordingStates.last.recorder
    assert ours.layout_problems() == []
    gaps = [(call, i) for call in ours.calls_seen for i in call.rows.gap.nonzero()[0].tolist()]
    assert gaps
    for call, i in gaps:
        first = int(call.rows.positions[call.rows.request == i][0])
        assert first % 32 == 0 and first < call.prompt_len[i]
