"""What a method that reads states cannot have in vLLM, and what it costs when it goes wrong: its drafts, no more."""

from __future__ import annotations

import logging

import pytest
import torch
from conftest import engine, metrics, tokens
from vllm_bridge_recording import RecordingStates
from vllm_heads import HEADS, eagle, eagle3, medusa, over_the_bridge
from vllm_models import random_llama

from specdec_vllm import patching, routes
from specdec_vllm.bridge import call as bridge

PROMPTS = [[5, 7, 5, 7, 9], [3, 4], list(range(2, 40))]


@pytest.fixture(autouse=True)
def recording(monkeypatch):
    monkeypatch.setattr(routes, "FROM_STATES", "vllm_bridge_recording.RecordingStates")
    monkeypatch.setattr(RecordingStates, "texts", ())


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return random_llama(tmp_path_factory.mktemp("deep") / "llama", layers=4)


@pytest.fixture(scope="module")
def expected(llama):
    with engine(llama) as llm:
        return tokens(llm, PROMPTS, greedy())


def greedy(n=30):
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True)


def warned(logged):
    return [record.getMessage() for record in logged if record.levelno >= logging.WARNING]


def test_a_drafter_that_raises_costs_its_drafts_and_begins_anew_with_a_gap(llama, expected, tmp_path, logged):
    with engine(llama, **over_the_bridge(eagle(tmp_path / "head"))) as llm:
        recorder = RecordingStates.last.recorder
        inner, calls = recorder.inner.proposer, []
        original = inner.propose

        def every_third(batch):
            calls.append(len(batch))
            if len(calls) % 3 == 0:
                raise RuntimeError("no drafts today")
            return original(batch)

        inner.propose = every_third
        assert tokens(llm, PROMPTS, greedy()) == expected
        assert metrics(llm)["spec_decode_num_draft_tokens"] > 100
    assert len(calls) > 20
    assert recorder.layout_problems() == []
    assert any(call.rows.gap.any() for call in recorder.calls_seen)
    assert [event[3] for event in recorder.events if event[0] == "finish"].count("failed") > 10
    (said,) = warned(logged)
    assert said.startswith("method 'eagle' failed in propose: RuntimeError: no drafts today")


def test_a_drafter_that_always_raises_is_switched_off_and_decoding_goes_on(llama, expected, tmp_path, logged):
    with engine(llama, **over_the_bridge(eagle(tmp_path / "head"))) as llm:
        RecordingStates.last.recorder.inner.proposer.propose = lambda batch: 1 / 0
        assert tokens(llm, PROMPTS, greedy()) == expected
        assert tokens(llm, PROMPTS, greedy()) == expected
        assert metrics(llm)["spec_decode_num_draft_tokens"] == 0
    assert RecordingStates.last.containment.failures == 8
    assert "is switched off until the engine restarts" in warned(logged)[-1]


def test_a_head_that_cannot_draft_stops_the_start_and_not_a_request(llama, tmp_path, monkeypatch):
    from specdec_nn.drafters.hidden_state import HiddenStateDrafter

    monkeypatch.setattr(HiddenStateDrafter, "propose", lambda self, batch: 1 / 0)
    with pytest.raises(ZeroDivisionError), engine(llama, **over_the_bridge(eagle(tmp_path / "head"))):
        pass


def test_a_full_cache_costs_the_youngest_requests_their_drafts_and_is_said_once(llama, expected, tmp_path, logged):
    arguments = over_the_bridge(eagle(tmp_path / "head"), drafter_kv_tokens=1)
    with engine(llama, max_model_len=80, **arguments) as llm:  # one request of full length finds room
        assert tokens(llm, PROMPTS, greedy()) == expected
        recorder = RecordingStates.last.recorder
        assert recorder.inner.proposer.memory_bytes() > 0
        held = {call.request_ids[i]: n for call in recorder.calls_seen for i, n in enumerate(call.run_len)}
        assert sum(1 for n in held.values() if n >= len(PROMPTS[0]) + 28) >= 1
        assert metrics(llm)["spec_decode_num_draft_tokens"] > 50
        assert tokens(llm, PROMPTS[:1], greedy()) == expected[:1]
    for call in recorder.calls_seen:
        assert sum(call.run_len) <= 80
    (said,) = warned(logged)
    assert said.startswith("the drafter's cache of 80 positions is full") and "drafter_kv_tokens" in said


@pytest.mark.parametrize("method", HEADS)
def test_near_the_longest_context_drafts_end_there(method, llama, tmp_path, monkeypatch):
    """One request runs into it, and the other has drafts all the same."""
    with engine(llama, max_model_len=64) as llm:
        wanted = tokens(llm, PROMPTS, [greedy(200), greedy(50), greedy(200)])
    with engine(llama, max_model_len=64, **over_the_bridge(HEADS[method](tmp_path / "head"))) as llm:
        assert tokens(llm, PROMPTS, [greedy(200), greedy(50), greedy(200)]) == wanted
    recorder = RecordingStates.last.recorder
    assert recorder.layout_problems() == []
    last = [call for call in recorder.calls_seen if max(call.run_len) > 59]
    assert last and any(max(call.max_draft) == 0 or len(call.max_draft) > 1 for call in last)
    for call in recorder.calls_seen:
        assert all(run + 1 + k < 64 for run, k in zip(call.run_len, call.max_draft, strict=True) if k)


def test_requests_without_speculation_are_not_shown_and_others_have_their_own_limit(llama, expected, tmp_path):
    from vllm import SamplingParams

    def asking(**what):
        return SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, extra_args={"specdec": what})

    params = [asking(off=True), asking(num_speculative_tokens=1), greedy()]
    with engine(llama, **over_the_bridge(eagle3(tmp_path / "head"))) as llm:
        assert tokens(llm, PROMPTS, params) == expected
    seen = {}
    for call in RecordingStates.last.recorder.calls_seen:
        for known, most in zip(call.tokens, call.max_draft, strict=True):
            seen.setdefault(len(known) and tuple(known[:2]), []).append(most)
    assert {prompt: max(most) for prompt, most in seen.items()} == {(3, 4): 1, (2, 3): 4}


def test_at_a_batch_size_without_speculation_rows_are_a_gap_later(llama, expected, tmp_path):
    arguments = over_the_bridge(eagle(tmp_path / "head"), disable_by_batch_size=2)
    lengths = [greedy(30), greedy(12), greedy(30)]
    with engine(llama, **arguments) as llm:
        found = tokens(llm, PROMPTS, lengths)
        assert found == [[ids[:n]] for (ids,), n in zip(expected, (30, 12, 30), strict=True)]
    recorder = RecordingStates.last.recorder
    assert recorder.layout_problems() == []
    assert max(len(call.request_ids) for call in recorder.calls_seen) == 2
    assert recorder.calls_seen[0].rows.gap.all()


def test_a_target_that_does_not_give_its_layers_is_refused_by_name(llama, tmp_path, monkeypatch):
    from vllm.model_executor.models import interfaces

    monkeypatch.setattr(interfaces, "supports_eagle3", lambda model: False)
    with pytest.raises(Exception, match="LlamaForCausalLM does not give the states of its layers"):
        with engine(llama, **over_the_bridge(eagle3(tmp_path / "head"))):
            pass


def test_where_vllm_is_another_one_the_configuration_is_refused_and_says_so(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(bridge, "is_installed", lambda: False)
    with pytest.raises(ValueError, match=r"medusa cannot run in vLLM .* this vLLM is not the one that specdec knows"):
        with engine(llama, **over_the_bridge(medusa(tmp_path / "head"))):
            pass


def test_a_runner_with_other_arguments_is_left_as_it_is(monkeypatch):
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    def other(self, scheduled, ids):
        """Another vLLM's."""

    monkeypatch.setattr(GPUModelRunner, "propose_draft_token_ids", other)
    with pytest.raises(patching.Mismatch, match="propose_draft_token_ids takes"):
        bridge.install()
    assert GPUModelRunner.propose_draft_token_ids is other
    assert not bridge.is_installed()


def test_states_that_vllm_does_not_count_as_we_do_are_a_failure_and_no_draft():
    from specdec_vllm.bridge.rows import Step, spans

    def step(**changes):
        usual = {
            "names": ["a"],
            "scheduled": {"a": 3},
            "drafted": {"a": [8, 9]},
            "computed": [5],
            "sampled": [[8, 4]],
            "lengths": [8],
            "table": None,
            "hidden": torch.zeros(3, 1),
            "aux": None,
        }
        return Step(**{**usual, **changes})

    (span,) = spans(step())
    assert (span.offset, span.start, span.count, span.end, span.sampled) == (0, 5, 2, 7, True)
    for changes in ({"lengths": [9]}, {"computed": [6]}, {"sampled": [[8, 9, 4, 4]]}):
        with pytest.raises(ValueError, match="request a: 3 ids run from"):
            spans(step(**changes))


def test_a_runner_without_a_drafter_and_drafters_of_vllm_are_called_as_before():
    """A process that is not the last of a pipeline has no drafter (docs/bug-reports.md, row 79)."""
    import types

    calls = []
    wrapped = bridge._with_states(lambda *args, **kwargs: calls.append((args, kwargs)) or "theirs")
    for runner in (
        types.SimpleNamespace(),
        types.SimpleNamespace(drafter=None),
        types.SimpleNamespace(drafter=object()),
    ):
        assert wrapped(runner, 1, 2, 3, 4, 5, 6, 7, common_attn_metadata=8, slot_mappings=9) == "theirs"
        assert calls[-1] == ((runner, 1, 2, 3, 4, 5, 6, 7), {"common_attn_metadata": 8, "slot_mappings": 9})


def test_a_prompt_of_embeddings_is_decoded_without_drafts_and_others_have_theirs(llama, expected, tmp_path):
    from safetensors.torch import load_file

    table = load_file(llama / "model.safetensors")["model.embed_tokens.weight"]
    asked = [{"prompt_embeds": table[PROMPTS[0]]}, {"prompt_token_ids": PROMPTS[1]}]
    arguments = over_the_bridge(eagle(tmp_path / "head"))
    with engine(llama, enable_prompt_embeds=True, **arguments) as llm:
        found = llm.generate(asked, greedy(), use_tqdm=False)
        assert metrics(llm)["spec_decode_num_draft_tokens"] > 50
    assert [[list(answer.outputs[0].token_ids)] for answer in found] == expected[:2]
    seen = RecordingStates.last.recorder.calls_seen
    assert {known[0] for call in seen for known in call.tokens} == {PROMPTS[1][0]}
