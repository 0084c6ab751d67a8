"""What proposers are shown, and that one that misbehaves costs its drafts and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runs import ControllerPlugin, ids_of, params, prompts, run, target

from specdec_core.errors import ContractError
from specdec_core.traits import MethodTraits
from specdec_engine import LLM, SamplingParams
from specdec_testing import breakers
from specdec_testing.breakers import Raises, StubFailure
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Garbage, Perfect, Soft, Stub, stub_plugin
from specdec_testing.table import random_table


def soft() -> Soft:
    return Soft(random_table(128, seed=3), shared=True)


BREAKERS = {
    "raises in propose": lambda: Raises("propose", every=2, inner=Garbage(128)),
    "raises in start": lambda: Raises("start", every=2, inner=Garbage(128)),
    "raises in finish": lambda: Raises("finish", inner=Garbage(128)),
    "ids above the vocabulary": lambda: breakers.OutOfVocabulary(128, every=2, inner=Garbage(128)),
    "negative ids": lambda: breakers.NegativeIds(every=2, inner=Garbage(128)),
    "too long": lambda: breakers.TooLong(every=2, inner=Garbage(128)),
    "a row too many": lambda: breakers.WrongRowCount(1, every=2, inner=Garbage(128)),
    "a row too few": lambda: breakers.WrongRowCount(-1, every=2, inner=Garbage(128)),
    "lengths that do not add up": lambda: breakers.WrongLengthsSum(every=2, inner=Garbage(128)),
    "parents after their children": lambda: breakers.BadParents(every=2, inner=Garbage(128)),
    "distributions with a nan": lambda: breakers.BadDistribution(128, every=2, inner=soft()),
    "distributions that do not exist": lambda: breakers.BadDistribution(128, rows=True, every=2, inner=soft()),
    "no draft at all": lambda: breakers.WrongType(every=2, inner=Garbage(128)),
}


@pytest.mark.parametrize("fault", BREAKERS)
def test_a_misbehaving_proposer_changes_no_text_and_is_counted(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    model, texts, sampling = target("llama"), prompts((5, 40, 9)), params(3)
    plain = run(model, texts, sampling)
    stub = BREAKERS[fault]()
    with LLM(
        hf_model=model,
        speculative_config={"method": "stub", "num_speculative_tokens": 4},
        plugins={"stub": stub_plugin(stub)},
    ) as llm:
        assert ids_of(llm.generate(texts, sampling)) == ids_of(plain)
        metrics = llm.get_metrics()
    assert metrics.failures > 0
    if "finish" not in fault:
        assert metrics.drafted > 0, "after a failure it is asked again"
    assert [r.message for r in caplog.records if r.name == "specdec_engine"] != []
    assert sum("failed in" in r.message for r in caplog.records) == 1, "logged once"


@pytest.mark.parametrize("fault", BREAKERS)
def test_strict_raises_what_a_misbehaving_proposer_did(fault: str) -> None:
    model, texts, sampling = target("llama"), prompts((5, 40)), params(2)
    expected = StubFailure if fault.startswith("raises") else (ContractError, AttributeError, TypeError)
    with pytest.raises(expected):
        run(model, texts, sampling, BREAKERS[fault]())


def test_an_engine_serves_on_after_a_strict_error() -> None:
    model, texts, sampling = target("llama"), prompts((5, 40)), params(2)
    plain = run(model, texts, sampling)
    config = {"method": "stub", "num_speculative_tokens": 4}
    stub = Raises("propose", every=3, inner=Garbage(128))
    with LLM(hf_model=model, speculative_config=config, plugins={"stub": stub_plugin(stub)}, strict=True) as llm:
        with pytest.raises(StubFailure):
            llm.generate(texts, sampling)
        llm._engine.target.arena.check_integrity([])
        stub.every = 10**9
        assert ids_of(llm.generate(texts, sampling)) == ids_of(plain)


def recorder(**traits: Any) -> RecordingProposer:
    return RecordingProposer(inner=traits.pop("inner", Garbage(128)), **traits)


@pytest.mark.parametrize("rows", ["all", "last"])
@pytest.mark.parametrize("chunk", [7, 512])
def test_rows_follow_the_shifted_layout(rows: Any, chunk: int) -> None:
    model, texts, sampling = target("llama"), prompts((1, 30, 9)), params(3)
    plain = run(model, texts, sampling)
    for inner in (Garbage(128), Perfect.of_run(texts, plain)):
        stub = recorder(rows=rows, aux_layers=(0, 1, 2), inner=inner)
        assert ids_of(run(model, texts, sampling, stub, prefill_chunk_size=chunk)) == ids_of(plain)
        assert stub.layout_problems() == []
        assert not any(call.rows is not None and call.rows.gap.any() for call in stub.calls_seen)


@pytest.mark.parametrize("width", [None, 3])
def test_hidden_and_aux_rows_are_the_targets_own(width: int | None) -> None:
    model, texts, sampling = target("llama"), prompts((12, 30)), params(2)
    stub = recorder(rows="all", aux_layers=(0, 1, 2))
    results = run(model, texts, sampling, stub, prefill_chunk_size=7, decode_width=width)
    for text, result in zip(texts, results, strict=True):
        ids = text["prompt_token_ids"] + result.outputs[0].token_ids
        with torch.inference_mode():
            out = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
        final, streams = out.hidden_states[-1][0], [state[0] for state in out.hidden_states]
        seen: set[int] = set()
        for call in stub.calls_seen:
            assert call.rows is not None and call.rows.hidden is not None and call.rows.aux is not None
            for i, name in enumerate(call.request_ids):
                if name != f"{result.request_id}-0":
                    continue
                for r in np.flatnonzero(call.rows.request == i):
                    position = int(call.rows.positions[r])
                    seen.add(position)
                    torch.testing.assert_close(call.rows.hidden[r], final[position], atol=2e-4, rtol=2e-4)
                    # hidden_states of transformers ends with the normed state; R_k for k < L stand before it.
                    for j, k in enumerate((0, 1)):
                        torch.testing.assert_close(call.rows.aux[r, j], streams[k][position], atol=2e-4, rtol=2e-4)
                    normed = model.model.norm(call.rows.aux[r, 2])
                    torch.testing.assert_close(normed, final[position], atol=2e-4, rtol=2e-4)
        assert seen >= set(range(len(ids) - 6))


class OffForAWhile:
    """k is 0 for all rows in some steps."""

    def __init__(self, off: range) -> None:
        self.off, self.step = off, -1

    def limit(self, requests: Any, k: Any) -> list[int]:
        self.step += 1
        return [0 if self.step in self.off else value for value in k]

    def observe(self, stats: Any) -> None:
        pass


def test_a_row_with_k_zero_is_absorbed_and_drafts_nothing() -> None:
    model, texts, sampling = target("llama"), prompts((9, 20)), params(2, max_tokens=30)
    stub = recorder(rows="all")
    plugins = {"off": ControllerPlugin(OffForAWhile(range(3, 8)))}
    run(model, texts, sampling, stub, config={"controller": "off"}, plugins=plugins)
    assert stub.layout_problems() == []
    absorbed = [call for call in stub.calls_seen if all(call.newest_known) and max(call.max_draft) == 0]
    assert len(absorbed) >= 5
    assert all(sum(call.draft.lengths or ()) == 0 for call in absorbed)


# Five short requests keep speculation off above a batch of 2; the long one goes on alone.
OFF_CONFIG = {"disable_by_batch_size": 2}


def off_then_on(stub: Stub) -> tuple[Any, Any, Any]:
    model = target("llama")
    texts = prompts((9, 5, 6, 7))
    sampling = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (40, 6, 8, 9)]
    plain = run(model, texts, sampling)
    return plain, run(model, texts, sampling, stub, config=OFF_CONFIG), stub


def test_a_gap_at_the_start_is_flagged_once_for_a_method_that_lets_rows_drop() -> None:
    stub = recorder(rows="all", when_off="gap")
    plain, spec, _ = off_then_on(stub)
    assert ids_of(spec) == ids_of(plain)
    assert stub.layout_problems() == []
    gaps = [
        name for call in stub.calls_seen for i, name in enumerate(call.request_ids) if call.rows and call.rows.gap[i]
    ]
    assert "0-0" in gaps and len(gaps) == len(set(gaps))


def test_a_gap_in_the_middle_is_flagged() -> None:
    model, texts = target("llama"), prompts((9, 5, 6, 7))
    lengths = (60, 6, 8, 9)
    sampling = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
    plain = run(model, texts, sampling)
    stub = recorder(rows="all", when_off="gap")
    with LLM(
        hf_model=model,
        speculative_config={"method": "stub", "num_speculative_tokens": 2, **OFF_CONFIG},
        plugins={"stub": stub_plugin(stub)},
        strict=True,
    ) as llm:
        stream = llm.stream(texts[0], sampling[0])
        for _ in range(5):
            next(stream)
        others = llm.generate(texts[1:], sampling[1:])
        last = list(stream)[-1]
    assert ids_of([last, *others]) == ids_of(plain)
    flagged = [call for call in stub.calls_seen if call.rows is not None and call.rows.gap.any()]
    positions = [int(call.rows.positions[0]) for call in flagged if call.request_ids[0] == "0-0" and call.rows]
    assert positions and positions[0] > 9
    assert stub.layout_problems() == []


def test_a_method_that_retires_is_not_called_again_for_a_request_once_off() -> None:
    stub = recorder(rows="none", hidden=False, when_off="retire")
    plain, spec, _ = off_then_on(stub)
    assert ids_of(spec) == ids_of(plain)
    assert stub.calls == 0


def test_a_method_that_catches_up_drafts_again_after_a_switch_off() -> None:
    plain, spec, stub = off_then_on(recorder(rows="none", hidden=False, when_off="catch_up"))
    assert ids_of(spec) == ids_of(plain)
    assert stub.calls > 0
    first = stub.calls_seen[0]
    assert first.run_len[0] == len(first.tokens[0]) - 1 > first.prompt_len[0], "all ids are known at the first call"


def test_every_request_is_started_before_and_finished_after_its_drafts() -> None:
    model, texts = target("llama"), prompts((9, 5, 6))
    stub = recorder(rows="none", hidden=False)
    run(model, texts, params(3), stub)
    assert sorted(stub.started) == ["0-0", "1-0", "2-0"]
    assert sorted(stub.finished) == [("0-0", "done"), ("1-0", "done"), ("2-0", "done")]
    assert stub.live == {} and stub.closed == 1
    final = {event[1]: event[2] for event in stub.events if event[0] == "finish"}
    assert all(len(ids) == len(texts[int(name[0])]["prompt_token_ids"]) + 20 for name, ids in final.items())


def test_a_closed_stream_finishes_its_request_as_aborted_and_frees_its_pages() -> None:
    model, texts = target("llama"), prompts((9, 12))
    plain = run(model, texts, params(2))
    stub = recorder(rows="all")
    with LLM(
        hf_model=model,
        speculative_config={"method": "stub", "num_speculative_tokens": 4},
        plugins={"stub": stub_plugin(stub)},
        strict=True,
    ) as llm:
        stream = llm.stream(texts[0], params(1)[0])
        next(stream)
        next(stream)
        stream.close()
        assert stub.finished == [("0-0", "aborted")]
        llm._engine.target.arena.check_integrity([])
        assert ids_of(llm.generate(texts, params(2))) == ids_of(plain)


def test_a_preempted_request_is_finished_as_preempted_and_started_again_with_all_its_ids() -> None:
    model, texts, sampling = target("llama"), prompts((30, 41, 22, 35)), params(4, max_tokens=60)
    stub = recorder(rows="all")
    run(model, texts, sampling, stub, kv_cache_tokens=224)
    preempted = [event for event in stub.events if event[0] == "finish" and event[3] == "preempted"]
    assert preempted
    for _, name, ids, _ in preempted:
        restarts = [e[2] for e in stub.events if e[0] == "start" and e[1] == name and e[2][: len(ids)] == ids]
        assert restarts, "it comes back with everything that was known"
    assert stub.layout_problems() == []


def test_rows_of_no_draft_among_rows_with_drafts_are_handled_apart() -> None:
    class Ragged(Stub):
        def row(self, batch: Any, i: int) -> list[int]:
            return [7] * (len(batch.request(i).tokens) % 4)

    model, texts, sampling = target("llama"), prompts((9, 10, 11, 12)), params(4)
    assert ids_of(run(model, texts, sampling, Ragged())) == ids_of(run(model, texts, sampling))


def test_a_device_draft_ends_at_its_first_placeholder() -> None:
    class Device(Stub):
        traits = MethodTraits()

        def propose(self, batch: Any) -> Any:
            from specdec_core.draft import Draft

            self.calls += 1
            tokens = torch.full((len(batch), 4), -1)
            for i, most in enumerate(batch.max_draft):
                tokens[i, : min(int(most), 1 + i)] = 9
            if len(batch) and batch.max_draft[0] >= 4:
                tokens[0] = torch.tensor([9, 9, -1, 300])
            return Draft(lengths=None, tokens=tokens)

    model, texts, sampling = target("llama"), prompts((9, 10)), params(2)
    stub = Device()
    spec = run(model, texts, sampling, stub)
    assert ids_of(spec) == ids_of(run(model, texts, sampling))
    assert spec[0].metrics.drafted_per_pos[2:] == []
