"""Structured outputs in the engine: the text has its form, whatever is drafted and whatever else is asked for."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from runs import ids_of, run
from words import tiny_tokenizer

from specdec_core.draft import Draft
from specdec_core.errors import RequestError
from specdec_core.traits import MethodTraits
from specdec_engine import LLM, SamplingParams
from specdec_engine.sampling_params import StructuredOutputsParams
from specdec_testing.breakers import OutOfVocabulary, Raises, WrongType
from specdec_testing.stubs import Fixed, Garbage, Null, Perfect, Soft, Stub, stub_plugin
from specdec_testing.table import random_table
from specdec_testing.targets import tiny_target

EOS = 1
TOKENIZER = tiny_tokenizer()
VOCAB = 288  # wider than the tokenizer
SCHEMA = {
    "type": "object",
    "properties": {"cat": {"enum": ["mat", "hat"]}, "sat": {"type": "boolean"}, "at": {"type": "array", "items": {}}},
    "required": ["cat", "sat"],
    "additionalProperties": False,
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def shaped(**form: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(**form)


FORMS: list[tuple[StructuredOutputsParams | None, Callable[[str], Any]]] = [
    (shaped(choice=["the cat", "the mat", "a hat"]), ["the cat", "the mat", "a hat"].index),
    (shaped(regex="((cat|hat)( sat)? ?){2,4}"), re.compile("((cat|hat)( sat)? ?){2,4}").fullmatch),
    (shaped(json=SCHEMA, disable_any_whitespace=True), json.loads),
    (None, str),
    (shaped(json_object=True), json.loads),
    (shaped(grammar='root ::= "a" ("b" | "c" root)'), re.compile("(ac)*ab").fullmatch),
]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_target("llama", vocab_size=VOCAB, eos_token_id=EOS, max_position_embeddings=512)


def params(temperature: float, max_tokens: int = 40, **more: Any) -> list[SamplingParams]:
    return [
        SamplingParams(temperature=temperature, seed=i, max_tokens=max_tokens, structured_outputs=form, **more)
        for i, (form, _) in enumerate(FORMS)
    ]


def texts() -> list[list[int]]:
    return [TOKENIZER.encode("the cat sat on the mat and the hat" * (1 + i % 3))[i:] for i in range(len(FORMS))]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_have_their_form_and_drafts_change_no_id(
    model: Any, temperature: float, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = params(temperature)
    plain = run(model, texts(), chosen, tokenizer=TOKENIZER)
    finished = 0
    for result, (form, check) in zip(plain, FORMS, strict=True):
        output = result.outputs[0]
        finished += form is not None and output.finish_reason == "stop"
        if output.finish_reason == "stop":
            assert check(output.text) is not None, output.text
            assert output.token_ids[-1] == EOS
    assert finished >= 3
    table = random_table(VOCAB, seed=3)
    stubs: list[Stub] = [
        Perfect.of_run(texts(), plain),
        Garbage(VOCAB),
        Null(),
        Fixed([5, EOS, 6]),
        Soft(table, shared=True),
    ]
    for stub in stubs:
        spec = run(model, texts(), chosen, stub, tokenizer=TOKENIZER)
        assert ids_of(spec) == ids_of(plain), type(stub).__name__
        assert [r.outputs[0].text for r in spec] == [r.outputs[0].text for r in plain]
        if isinstance(stub, Perfect):
            assert all(r.metrics.accepted == r.metrics.drafted == r.metrics.proposed > 0 for r in spec)
        if isinstance(stub, Garbage):
            assert sum(r.metrics.cut for r in spec) > 100
    for llm in ({"config": NGRAM}, {"config": NGRAM, "decode_width": 8}):
        assert ids_of(run(model, texts(), chosen, tokenizer=TOKENIZER, **llm)) == ids_of(plain)
    assert caplog.records == []
    assert capfd.readouterr() == ("", ""), "a matcher is never fed what it would complain of"


def test_a_proposer_that_breaks_the_contract_costs_its_drafts_only(model: Any) -> None:
    plain = run(model, texts(), params(0.0), tokenizer=TOKENIZER)
    perfect = Perfect.of_run(texts(), plain)
    for stub in (
        Raises("propose", every=2, inner=perfect),
        OutOfVocabulary(VOCAB, every=3, inner=perfect),
        WrongType(),
    ):
        spec = run(model, texts(), params(0.0), stub, tokenizer=TOKENIZER, strict=False)
        assert ids_of(spec) == ids_of(plain)
        assert stub.broken > 0


class TwoWays(Stub):
    """A tree: the right ids in one branch, garbage in another, both with children."""

    traits = MethodTraits(shape="tree")

    def __init__(self, right: Perfect) -> None:
        super().__init__()
        self.right, self.wrong = right, Garbage(VOCAB)

    def propose(self, batch: Any) -> Draft:
        self.calls += 1
        rows, parents = [], []
        for i in range(len(batch)):
            half = int(batch.max_draft[i]) // 2
            right, wrong = list(self.right.row(batch, i))[:half], list(self.wrong.row(batch, i))[:half]
            nodes = [("w", i, t) for i, t in enumerate(wrong)] + [("r", i, t) for i, t in enumerate(right)]
            nodes.sort(key=lambda node: node[1])
            rows.append([token for _, _, token in nodes])
            at = {node[:2]: n for n, node in enumerate(nodes)}
            parents += [at.get((branch, depth - 1), -1) for branch, depth, _ in nodes]
        draft = Draft.of(rows)
        draft.parents = np.array(parents, np.int32)
        self.drafted += len(parents)
        return draft


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_node_of_a_tree_is_masked_after_its_own_path(model: Any, temperature: float) -> None:
    chosen = params(temperature)
    plain = run(model, texts(), chosen, tokenizer=TOKENIZER)
    spec = run(model, texts(), chosen, TwoWays(Perfect.of_run(texts(), plain)), k=6, tokenizer=TOKENIZER)
    assert ids_of(spec) == ids_of(plain)
    formed = [result.metrics for result, (form, _) in zip(spec, FORMS, strict=True) if form is not None]
    assert sum(m.accepted for m in formed) > 30
    assert sum(m.cut for m in formed) > 30


def test_a_lossy_verifier_never_gets_an_illegal_draft(model: Any) -> None:
    """It might accept what has no chance."""
    config = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [1.0] * 4}
    spec = run(model, texts(), params(1.0), Soft(random_table(VOCAB, seed=3)), tokenizer=TOKENIZER, config=config)
    for result, (_, check) in zip(spec, FORMS, strict=True):
        if result.outputs[0].finish_reason == "stop":
            assert check(result.outputs[0].text) is not None
    assert sum(r.metrics.accepted for r in spec) > 0


def test_what_was_proposed_cut_and_verified_is_counted_apart(model: Any) -> None:
    seen: list[Any] = []

    class Watching:
        def limit(self, requests: Any, k: Any) -> list[int]:
            return list(k)

        def observe(self, stats: Any) -> None:
            seen.append(stats)

    form = shaped(regex="(the cat ){20}")
    asked = SamplingParams(temperature=0.0, max_tokens=16, structured_outputs=form)
    prompt = [TOKENIZER.encode("the")]
    the = TOKENIZER.encode("the cat ")
    with LLM(
        hf_model=model,
        tokenizer=TOKENIZER,
        speculative_config={"method": "stub", "num_speculative_tokens": 3},
        plugins={"stub": stub_plugin(Fixed([EOS, the[0], the[0]]))},
    ) as llm:
        llm._engine.reports._controller = Watching()
        metrics = llm.generate(prompt, asked)[0].metrics
        assert metrics.steps == 15
        assert metrics.proposed == metrics.cut == sum(sum(s.proposed) for s in seen) > 36
        assert (metrics.drafted, metrics.drafts, metrics.accepted) == (0, 0, 0)
        assert metrics.empty == 0, "in the last step nothing is asked"
        assert all(s.drafted == [0] and s.rows == 1 for s in seen if s.request_ids), "what is cut is not run"
        assert llm.get_metrics().as_json() == metrics.as_json()


def test_samples_move_each_its_own_matcher_and_give_it_back(model: Any) -> None:
    form = shaped(regex="(cat|hat|mat| sat){3,5}")
    asked = SamplingParams(n=6, temperature=1.0, seed=4, max_tokens=30, structured_outputs=form)
    plain = run(model, texts()[:2], asked, tokenizer=TOKENIZER)
    said = {tuple(ids) for result in ids_of(plain) for ids in result}
    assert len(said) > 6
    for stub in (Perfect.of_run(texts()[:2], plain), Garbage(VOCAB)):
        assert ids_of(run(model, texts()[:2], asked, stub, tokenizer=TOKENIZER)) == ids_of(plain)
    with LLM(hf_model=model, tokenizer=TOKENIZER) as llm:
        groups, sampler = llm._engine.submit(texts()[:1], asked), llm._engine.sampler
        states = [sampler.state(request) for request in groups[0].requests]
        assert len({id(state.grammar) for state in states if state is not None and state.grammar is not None}) == 6
        while llm._engine.step():
            pass
        assert all(request.finished and sampler.state(request) is None for request in groups[0].requests)


def test_an_aborted_request_gives_its_matcher_back(model: Any) -> None:
    asked = SamplingParams(max_tokens=30, structured_outputs=shaped(json_object=True))
    with LLM(hf_model=model, tokenizer=TOKENIZER) as llm:
        stream = llm.stream(texts()[:1], asked)
        next(stream)
        (request,) = llm._engine.scheduler.running
        sampler = llm._engine.sampler
        assert sampler.state(request).grammar is not None
        stream.close()
        assert request.finish_reason == "abort"
        assert sampler.state(request) is None
        assert llm.generate(texts()[:1], asked)[0].finished


def test_a_preempted_request_goes_on_where_its_form_stood(model: Any) -> None:
    form = shaped(regex="([abc]{7}[mst]{4}){20,}")  # every place has its own state
    asked = [SamplingParams(temperature=0.8, seed=i, max_tokens=60, structured_outputs=form) for i in range(4)]
    prompts = [(texts()[i] * 3)[:30] for i in range(4)]
    plain = run(model, prompts, asked, tokenizer=TOKENIZER)
    for stub in (Perfect.of_run(prompts, plain), Garbage(VOCAB)):
        spec = run(model, prompts, asked, stub, tokenizer=TOKENIZER, kv_cache_tokens=224)
        assert "preempted" in {reason for _, reason in stub.finished}
        assert ids_of(spec) == ids_of(plain)


def test_one_form_among_plain_requests_leaves_them_alone(model: Any) -> None:
    free = SamplingParams(temperature=0.7, seed=1, max_tokens=20, ignore_eos=True, logprobs=2)
    bound = SamplingParams(temperature=0.7, seed=1, max_tokens=20, structured_outputs=shaped(choice=["the cat"]))
    prompts = texts()[:3]
    together = run(model, prompts, [free, bound, free], tokenizer=TOKENIZER)
    assert ids_of(together)[::2] == ids_of(run(model, prompts[::2], free, tokenizer=TOKENIZER))
    assert together[1].outputs[0].text == "the cat"


def test_log_probabilities_are_of_the_targets_own_distribution(model: Any) -> None:
    """Those before all processing: a mask in place would show."""
    form = shaped(choice=["the cat sat"])
    asked = SamplingParams(temperature=0.0, max_tokens=20, structured_outputs=form, logprobs=3)
    free = SamplingParams(temperature=0.0, max_tokens=1, logprobs=3)
    prompt = texts()[:1]
    bound = run(model, prompt, asked, tokenizer=TOKENIZER)[0].outputs[0]
    loose = run(model, prompt, free, tokenizer=TOKENIZER)[0].outputs[0]
    best = max(loose.logprobs[0], key=lambda token: loose.logprobs[0][token].logprob)
    assert best in bound.logprobs[0]
    assert bound.logprobs[0][best].logprob == pytest.approx(loose.logprobs[0][best].logprob, abs=1e-5)
    spec = run(model, prompt, asked, Fixed(bound.token_ids[1:]), tokenizer=TOKENIZER)[0].outputs[0]
    for a, b in zip(bound.logprobs, spec.logprobs, strict=True):
        assert set(a) == set(b)


def test_a_bad_form_is_refused_before_anything_is_queued(model: Any) -> None:
    good = SamplingParams(max_tokens=5, structured_outputs=shaped(choice=["cat"]))
    bad = SamplingParams(max_tokens=5, structured_outputs=shaped(regex="a("))
    with LLM(hf_model=model, tokenizer=TOKENIZER) as llm:
        with pytest.raises(RequestError, match=r"structured_outputs\.regex cannot be used"):
            llm.generate(texts()[:2], [good, bad])
        assert not llm._engine.scheduler.waiting
        assert not llm._engine.scheduler.running
        assert llm.generate(texts()[:1], good)[0].request_id == "0"
    with LLM(hf_model=model) as llm, pytest.raises(RequestError, match=r"structured_outputs\.choice.*no tokenizer"):
        llm.generate(texts()[:1], good)


def test_a_form_that_cannot_go_on_ends_with_a_warning(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    form = shaped(grammar='root ::= "a" tail\ntail ::= tail "b"')
    asked = SamplingParams(temperature=0.0, max_tokens=20, structured_outputs=form)
    for stub in (None, Garbage(VOCAB), Fixed([EOS, EOS])):
        output = run(model, texts()[:1], asked, stub, tokenizer=TOKENIZER)[0].outputs[0]
        assert (output.text, output.finish_reason) == ("a", "stop")
        assert [r.levelno for r in caplog.records] == [logging.WARNING]
        assert "the text ends unfinished" in caplog.text
        caplog.clear()


@pytest.mark.parametrize(
    "more",
    [
        {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "presence_penalty": 0.5},
        {"top_k": 3, "top_p": 0.9, "min_p": 0.01},
        {"bad_words": ["cat", " sat"], "logit_bias": {5: 3.0}, "min_tokens": 2},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forms_go_together_with_other_parameters(model: Any, temperature: float, more: dict[str, Any]) -> None:
    chosen = params(temperature, max_tokens=24, **more)
    plain = run(model, texts(), chosen, tokenizer=TOKENIZER)
    for result, (_, check) in zip(plain, FORMS, strict=True):
        if result.outputs[0].finish_reason == "stop":
            assert check(result.outputs[0].text) is not None, result.outputs[0].text
    for stub in (Perfect.of_run(texts(), plain), Garbage(VOCAB), Fixed([5, EOS, 6])):
        spec = run(model, texts(), chosen, stub, tokenizer=TOKENIZER)
        assert ids_of(spec) == ids_of(plain), type(stub).__name__


def test_where_other_parameters_leave_no_id_the_request_fails_by_name(
    model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Here the form is complete after one id, and its end comes too early."""
    asked = SamplingParams(temperature=0.0, max_tokens=9, min_tokens=4, structured_outputs=shaped(regex="a"))
    for stub in (None, Fixed([EOS, EOS]), Garbage(VOCAB)):
        outputs = run(model, texts()[:2], [asked, SamplingParams(max_tokens=3)], stub, tokenizer=TOKENIZER)
        assert outputs[0].outputs[0].finish_reason == "error"
        assert outputs[0].outputs[0].text == "a"
        assert len(outputs[1].outputs[0].token_ids) > 0, "the others go on"
        assert "min_tokens, structured_outputs left no id" in caplog.text
        caplog.clear()
    longer = SamplingParams(temperature=0.0, max_tokens=9, min_tokens=4, structured_outputs=shaped(regex="[ab]+"))
    assert len(run(model, texts()[:1], longer, tokenizer=TOKENIZER)[0].outputs[0].token_ids) >= 4


def test_a_processor_that_says_what_the_form_forbids_ends_the_form_with_a_warning(
    model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    forced = TOKENIZER.encode("h")[0]

    def force(output: tuple[int, ...], logits: Any) -> Any:
        if len(output) == 1:
            logits[:] = -torch.inf
            logits[forced] = 0.0
        return logits

    form = shaped(choice=["abc"])
    asked = SamplingParams(temperature=0.0, max_tokens=9, structured_outputs=form, logits_processors=[force])
    plain = run(model, texts()[:1], asked, tokenizer=TOKENIZER)
    assert (plain[0].outputs[0].text, plain[0].outputs[0].finish_reason) == ("ah", "stop")
    assert "which the form forbids" in caplog.text
    for stub in (Perfect.of_run(texts()[:1], plain), Garbage(VOCAB)):
        assert ids_of(run(model, texts()[:1], asked, stub, tokenizer=TOKENIZER)) == ids_of(plain)


def test_a_comparison_knows_the_form(model: Any) -> None:
    """An id that only the form excludes is no near miss: the margin is that of the masked row."""
    asked = SamplingParams(temperature=0.0, max_tokens=9, structured_outputs=shaped(choice=["abc"]))
    with LLM(hf_model=model, tokenizer=TOKENIZER) as llm:
        plain, other = (llm.generate(texts()[:1], asked)[0] for _ in range(2))
        assert llm.compare(plain, other, asked) is None
        other.outputs[0].token_ids[1] += 1
        found = llm.compare(plain, other, asked)
    assert found is not None
    assert (found.index, found.verdict, found.margin) == (1, "fault", float("inf"))
