"""Field log 1G, switching off: at k = 0 nothing of speculation runs, and coming back costs no acceptance."""

from __future__ import annotations

from typing import Any

from runs import ids_of, params, prompts, run, target

from specdec import hookimpl
from specdec.testing.recording import RecordingProposer
from specdec.testing.stubs import Fixed, Perfect, stub_plugin
from specdec_engine import LLM, SamplingParams
from specdec_plugin_verifiers.coupled import Coupled


class CountingVerifier:
    """`coupled` that counts its calls; it is its own plugin."""

    def __init__(self) -> None:
        self.calls = 0

    @hookimpl
    def specdec_make_verifier(self) -> CountingVerifier:
        return self

    def verify(self, draft: Any, logits: Any, noise: Any, target_draws: Any) -> Any:
        self.calls += 1
        return Coupled().verify(draft, logits, noise, target_draws)


def test_switched_off_by_batch_size_calls_neither_proposer_nor_verifier_row_76() -> None:
    model, texts, sampling = target("llama"), prompts(range(5, 13)), params()
    plain = run(model, texts, sampling)
    for off in ({"disable_by_batch_size": 2}, {"num_speculative_tokens_per_batch_size": [[1, 2, 4], [3, 99, 0]]}):
        stub, verifier = Fixed([5, 5]), CountingVerifier()
        config = {**off, "rejection_sample_method": "counting"}
        spec = run(model, texts, sampling, stub, config=config, plugins={"counting": verifier})
        assert ids_of(spec) == ids_of(plain)
        assert (stub.calls, stub.started, verifier.calls) == (0, [], 0)
        assert sum(result.metrics.drafted for result in spec) == 0


def test_a_request_that_was_off_for_a_while_drafts_as_well_as_before_row_77() -> None:
    model = target("llama")
    texts = prompts((9, 5, 6, 7, 8, 5, 6, 7))
    sampling = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (60, *[3] * 7)]
    plain = run(model, texts, sampling)
    perfect = Perfect.of_run(texts, plain)
    stub = RecordingProposer("none", hidden=False, inner=perfect)
    config = {"method": "stub", "num_speculative_tokens": 4, "disable_by_batch_size": 2}
    with LLM(hf_model=model, speculative_config=config, plugins={"stub": stub_plugin(stub)}, strict=True) as llm:
        stream = llm.stream(texts[0], sampling[0])
        for _ in range(4):
            next(stream)
        calls = stub.calls
        others = llm.generate(texts[1:], sampling[1:])
        assert stub.calls == calls, "off while eight were running"
        last = list(stream)[-1]
    assert ids_of([last, *others]) == ids_of(plain)
    assert stub.calls > calls > 0
    assert perfect.strayed == 0
    assert last.metrics.accepted == last.metrics.drafted
    assert last.metrics.acceptance_rate == 1.0


def test_a_schedule_switches_between_sizes_without_work_in_between_row_78() -> None:
    model, texts = target("llama"), prompts()
    sampling = [SamplingParams(temperature=0.0, max_tokens=6 + 3 * i, ignore_eos=True) for i in range(8)]
    plain = run(model, texts, sampling)
    stub, verifier = RecordingProposer("none", hidden=False, inner=Fixed([7, 7, 7])), CountingVerifier()
    config = {"num_speculative_tokens_per_batch_size": [[1, 4, 2], [5, 512, 0]], "rejection_sample_method": "counting"}
    spec = run(model, texts, sampling, stub, k=3, config=config, plugins={"counting": verifier})
    assert ids_of(spec) == ids_of(plain)
    assert stub.calls > 0
    assert verifier.calls <= stub.calls
    sizes = [len(call.request_ids) for call in stub.calls_seen]
    assert max(sizes) == 4, "eight to five requests ran without a call"
    assert {most for call in stub.calls_seen for most in call.max_draft} <= {0, 1, 2}


def test_a_method_without_a_model_needs_nothing_of_one_row_79() -> None:
    model = target("llama")
    for name in ("image_token_index", "draft_vocab_size", "num_nextn_predict_layers"):
        assert not hasattr(model.config, name)
    for given in ({"method": "ngram"}, {"model": "ngram"}, {"model": "[ngram]"}):
        with LLM(hf_model=model, speculative_config={**given, "num_speculative_tokens": 3}) as llm:
            assert llm.resolved_config is not None
            assert (llm.resolved_config.method, llm.resolved_config.draft) == ("ngram", None)
            assert llm.generate([[5, 6, 7]], params(1))[0].finished
