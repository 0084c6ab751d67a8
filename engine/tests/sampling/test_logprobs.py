"""Log-probabilities of emitted and of prompt ids: those of the model, one entry an id, the same with speculation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runs import VOCAB, ids_of, params, prompts, run, stubs, target
from words import tiny_tokenizer

from specdec_core.errors import TargetError
from specdec_engine import LLM, SamplingParams
from specdec_engine.decoding.target import Target
from specdec_engine.outputs import Logprobs
from specdec_engine.requests.request import Request
from specdec_engine.sampling.logprobs import HEAD_ROWS, LogprobReader
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Fixed, Garbage, Perfect, stub_plugin
from specdec_testing.table import table_target
from specdec_testing.targets import tiny_target

FAMILIES = ("llama", "gpt2", "gemma2", "opt")  # a plain one; layer norms; a softcap on the logits; a projection
TEXTS = prompts((3, 40, 17))


def distribution(model: Any, ids: list[int]) -> torch.Tensor:
    """The model's own log-probabilities [len(ids), V] after each id, as transformers runs it."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids]), use_cache=False).logits[0].float(), dim=-1)


def assert_entry(entry: Logprobs, row: torch.Tensor, token: int, count: int) -> None:
    """The chosen id first, then the `count` best of the row, with their ranks."""
    best = torch.sort(row, descending=True, stable=True).indices.tolist()
    assert list(entry) == list(dict.fromkeys([token, *best[:count]]))
    for other, logprob in entry.items():
        assert logprob.rank == best.index(other) + 1
        assert logprob.logprob == pytest.approx(float(row[other]), abs=1e-4)


def plain_form(entries: Any) -> Any:
    """Entries without their order of ids, for comparison with `pytest.approx`."""
    return [None if e is None else {t: (lp.logprob, lp.rank, lp.decoded_token) for t, lp in e.items()} for e in entries]


def assert_same(found: Any, expected: Any, tolerance: float) -> None:
    """Entries of two runs agree: ids, ranks, texts, and log-probabilities within a tolerance (0 = bit by bit)."""
    assert len(found) == len(expected)
    for mine, theirs in zip(plain_form(found), plain_form(expected), strict=True):
        if mine is None or theirs is None:
            assert mine is theirs
            continue
        assert list(mine) == list(theirs)
        for token, (logprob, rank, text) in mine.items():
            assert abs(logprob - theirs[token][0]) <= tolerance
            assert (rank, text) == theirs[token][1:]


@pytest.mark.parametrize("family", FAMILIES)
def test_entries_are_the_models_own_rows_whatever_the_temperature(family: str) -> None:
    model = target(family)
    sampling = [
        SamplingParams(temperature=t, seed=4, max_tokens=9, ignore_eos=True, logprobs=3) for t in (0.0, 1.7, 0.6)
    ]
    for text, result in zip(TEXTS, run(model, TEXTS, sampling), strict=True):
        (output,) = result.outputs
        rows = distribution(model, text["prompt_token_ids"] + output.token_ids)[len(text["prompt_token_ids"]) - 1 :]
        assert output.logprobs is not None
        assert len(output.logprobs) == len(output.token_ids) == 9
        for entry, token, row in zip(output.logprobs, output.token_ids, rows, strict=False):
            assert_entry(entry, row, token, 3)
        chosen = [entry[token].logprob for entry, token in zip(output.logprobs, output.token_ids, strict=True)]
        assert output.cumulative_logprob == pytest.approx(sum(chosen))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("count", [0, 2, -1])
def test_speculation_changes_no_entry(temperature: float, count: int) -> None:
    model = target("llama")
    sampling = params(3, temperature, 12, logprobs=count, prompt_logprobs=1)
    plain = run(model, TEXTS, sampling)
    for stub in stubs(TEXTS, plain).values():
        spec = run(model, TEXTS, sampling, stub, k=5, prefill_chunk_size=16)
        assert ids_of(spec) == ids_of(plain)
        for mine, theirs in zip(spec, plain, strict=True):
            assert_same(mine.outputs[0].logprobs, theirs.outputs[0].logprobs, 1e-5)
            assert_same(mine.prompt_logprobs, theirs.prompt_logprobs, 1e-5)
            size = VOCAB if count == -1 else count
            assert all(size <= len(entry) <= size + 1 for entry in mine.outputs[0].logprobs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_a_decode_width_entries_are_bit_identical(dtype: torch.dtype) -> None:
    model = target("llama", dtype)
    sampling = params(3, 0.0, 12, logprobs=4, prompt_logprobs=2)
    widths = {"decode_width": 8, "prefill_chunk_size": 16}
    plain = run(model, TEXTS, sampling, **widths)
    solo = [run(model, [text], [one], **widths)[0] for text, one in zip(TEXTS, sampling, strict=True)]
    runs = [run(model, TEXTS, sampling, stub, **widths) for stub in stubs(TEXTS, plain).values()]
    for spec in [solo, *runs]:
        for mine, theirs in zip(spec, plain, strict=True):
            assert_same(mine.outputs[0].logprobs, theirs.outputs[0].logprobs, 0.0)
            assert_same(mine.prompt_logprobs, theirs.prompt_logprobs, 0.0)


@pytest.mark.parametrize("rounded", [False, True], ids=["distinct", "many equal"])
@pytest.mark.parametrize("width", [12, 5000])
def test_requests_read_together_get_what_each_row_gives_by_itself(width: int, rounded: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, width, generator=generator).bfloat16()
    if rounded:
        logits = (2 * logits).round()
    logits[3, 5:] = -torch.inf
    wanted = [(2, 0), (3, 7), (1, -1), (2, None), (1, 1)]
    ids = torch.randint(0, 5, (9,), generator=generator).numpy().astype(np.int32)
    emitted, at = [], 0
    for rows, count in wanted:
        sampling = SamplingParams(max_tokens=9, logprobs=count)
        request = Request("0-0", 0, np.arange(3, dtype=np.int32), sampling, 7, 0)
        request.logprobs = None if count is None else []
        emitted.append((request, ids[at : at + rows], np.arange(at, at + rows, dtype=np.int32)))
        at += rows
    LogprobReader("raw_logprobs", None).add(emitted, logits)
    for request, own, rows in emitted:
        count = request.sampling_params.logprobs
        assert (request.logprobs is None) == (count is None)
        for entry, token, row in zip(request.logprobs or [], own.tolist(), rows.tolist(), strict=False):
            values = torch.log_softmax(logits[row].float(), dim=-1)
            best = torch.sort(logits[row].float(), descending=True, stable=True).indices.tolist()
            expected = list(dict.fromkeys([token, *best[: width if count == -1 else count]]))
            assert list(entry) == expected
            assert [lp.logprob for lp in entry.values()] == values[expected].tolist(), "bit by bit"
            assert [lp.rank for lp in entry.values()] == [best.index(other) + 1 for other in expected]


def test_equal_logits_rank_by_id() -> None:
    table = np.full((12, 12), 0.02)
    table[:, [3, 5, 8]] = 0.2  # three equal ones, far above
    table /= table.sum(axis=1, keepdims=True)
    sampling = SamplingParams(temperature=1.0, seed=1, max_tokens=40, logprobs=2)
    output = run(table_target(table), [[1]], sampling)[0].outputs[0]
    order = [3, 5, 8, *(i for i in range(12) if i not in (3, 5, 8))]
    assert len(set(output.token_ids)) > 5
    assert output.logprobs is not None
    for entry, token in zip(output.logprobs, output.token_ids, strict=True):
        assert {other: logprob.rank for other, logprob in entry.items()} == {3: 1, 5: 2, token: order.index(token) + 1}


def test_raw_and_processed_modes_differ_by_the_temperature_and_logits_by_their_sum() -> None:
    model = target("llama")
    sampling = SamplingParams(temperature=2.0, seed=3, max_tokens=6, ignore_eos=True, logprobs=-1, prompt_logprobs=-1)
    found = {}
    for mode in ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"):
        plain, spec = (run(model, TEXTS[:1], sampling, stub, logprobs_mode=mode)[0] for stub in (None, Garbage(VOCAB)))
        assert_same(spec.outputs[0].logprobs, plain.outputs[0].logprobs, 1e-5)
        assert plain.prompt_logprobs is not None
        assert plain.outputs[0].logprobs is not None
        total = sum(np.exp(logprob.logprob) for logprob in plain.prompt_logprobs[1].values())
        assert total == pytest.approx(1, abs=1e-5), "a prompt's entries are log-probabilities in every mode"
        entries = plain.outputs[0].logprobs
        found[mode] = torch.tensor([[entry[token].logprob for token in range(VOCAB)] for entry in entries])
    torch.testing.assert_close(found["raw_logits"].log_softmax(-1), found["raw_logprobs"])
    torch.testing.assert_close(found["processed_logits"], found["raw_logits"] / 2)
    torch.testing.assert_close(found["processed_logits"].log_softmax(-1), found["processed_logprobs"])
    assert (found["raw_logits"] - found["raw_logprobs"]).abs().min() > 0.1


def test_an_unknown_mode_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(TargetError, match="logprobs_mode='raw' is none of raw_logprobs, processed_logprobs"):
        LLM("no-such-folder", logprobs_mode="raw")  # type: ignore[arg-type]


@pytest.mark.parametrize("stub", [False, True])
def test_only_rows_that_stay_are_read_and_none_for_those_who_did_not_ask(stub: bool, monkeypatch: Any) -> None:
    model, text = target("llama"), TEXTS[1]
    ids = ids_of(run(model, [text], params(1, max_tokens=12)))[0][0]
    stop = next(token for i, token in enumerate(ids) if i >= 6 and token not in ids[:i])
    sampling = [*params(1, max_tokens=12, logprobs=1, stop_token_ids=[stop]), *params(1, max_tokens=12)]
    read: list[int] = []
    add = LogprobReader.add

    def counted(self: LogprobReader, emitted: Any, logits: torch.Tensor) -> None:
        read.extend(len(rows) for request, _, rows in emitted if request.logprobs is not None)
        add(self, emitted, logits)

    monkeypatch.setattr(LogprobReader, "add", counted)
    right = Perfect({tuple(text["prompt_token_ids"]): ids}) if stub else None
    asked, quiet = run(model, [text, text], sampling, right, k=8)
    assert asked.outputs[0].token_ids == ids[: ids.index(stop) + 1]
    assert sum(read) == len(asked.outputs[0].token_ids) == len(asked.outputs[0].logprobs)
    assert (quiet.outputs[0].logprobs, quiet.outputs[0].cumulative_logprob, quiet.prompt_logprobs) == (None, None, None)
    assert asked.prompt_logprobs is None
    if stub:
        assert asked.metrics.accepted > asked.metrics.accepted_kept


def test_ids_come_with_their_text_unless_text_is_off() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_target("llama", vocab_size=len(tokenizer))
    common = {"temperature": 0.0, "max_tokens": 4, "logprobs": 3, "prompt_logprobs": 3}
    for given, detokenize in ((tokenizer, True), (tokenizer, False), (None, True)):
        sampling = SamplingParams(detokenize=detokenize, **common)
        (result,) = run(model, [tokenizer("the cat")["input_ids"]], sampling, tokenizer=given)
        assert result.prompt_logprobs is not None
        assert result.prompt_logprobs[0] is None
        for entry in [*result.outputs[0].logprobs, *result.prompt_logprobs[1:]]:
            for token, logprob in entry.items():
                expected = tokenizer.decode([token]) if given is not None and detokenize else None
                assert logprob.decoded_token == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_entries_are_the_models_own_rows_in_chunks_and_slices(family: str, monkeypatch: Any) -> None:
    model, texts = target(family), prompts((1, 2, 40, HEAD_ROWS + 2, 150))
    sampling = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=2)
    widest = []
    head = Target.compute_logits

    def measured(self: Target, hidden: torch.Tensor) -> torch.Tensor:
        widest.append(len(hidden))
        return head(self, hidden)

    monkeypatch.setattr(Target, "compute_logits", measured)
    for chunk in (8, 512):
        for text, result in zip(texts, run(model, texts, sampling, prefill_chunk_size=chunk), strict=True):
            ids, entries = text["prompt_token_ids"], result.prompt_logprobs
            assert entries is not None
            assert (len(entries), entries[0]) == (len(ids), None)
            for entry, token, row in zip(entries[1:], ids[1:], distribution(model, ids), strict=False):
                assert entry is not None
                assert_entry(entry, row, token, 2)
    assert max(widest) == HEAD_ROWS


def test_samples_of_one_prompt_share_its_entries(monkeypatch: Any) -> None:
    model, text = target("llama"), TEXTS[2]
    read: list[int] = []
    add = LogprobReader.add_prompt

    def counted(self: LogprobReader, request: Any, rows: torch.Tensor) -> None:
        read.append(len(rows))
        add(self, request, rows)

    monkeypatch.setattr(LogprobReader, "add_prompt", counted)
    sampling = SamplingParams(temperature=1.0, seed=2, n=3, max_tokens=5, logprobs=1, prompt_logprobs=1)
    for stub in (None, Garbage(VOCAB)):
        read.clear()
        (result,) = run(model, [text], sampling, stub)
        assert result.prompt_logprobs is not None
        assert len(result.prompt_logprobs) == 17
        assert sum(read) == 16, "once for all samples"
        assert [len(output.logprobs) for output in result.outputs] == [len(o.token_ids) for o in result.outputs]


@pytest.mark.slow
@pytest.mark.parametrize("decode_width", [None, 8])
def test_a_preempted_request_has_each_entry_once(decode_width: int | None) -> None:
    model, texts = target("llama"), prompts((30, 50, 40, 20), seed=5)
    sampling = params(4, 0.0, 60, logprobs=1, prompt_logprobs=1)
    widths = {"decode_width": decode_width, "prefill_chunk_size": 8}
    plain = run(model, texts, sampling, **widths)
    tolerance = 1e-4 if decode_width is None else 0.0  # ids run again in chunks: other shapes round otherwise
    for stub in (None, Fixed([5, 5]), RecordingProposer("all")):
        config = {"method": "stub", "num_speculative_tokens": 3} if stub is not None else None
        plugins = {} if stub is None else {"stub": stub_plugin(stub)}
        with LLM(
            hf_model=model, speculative_config=config, plugins=plugins, kv_cache_tokens=192, strict=True, **widths
        ) as llm:
            results = llm.generate(texts, sampling)
            assert llm._engine.scheduler.preemptions > 0
        assert ids_of(results) == ids_of(plain)
        for mine, theirs in zip(results, plain, strict=True):
            assert_same(mine.outputs[0].logprobs, theirs.outputs[0].logprobs, tolerance)
            assert_same(mine.prompt_logprobs, theirs.prompt_logprobs, tolerance)


def test_a_proposer_that_gets_states_gets_the_same_beside_scored_prompts() -> None:
    model = target("llama")
    with_entries, without = RecordingProposer("all", aux_layers=(1,)), RecordingProposer("all", aux_layers=(1,))
    run(model, TEXTS, params(3, prompt_logprobs=1), with_entries, prefill_chunk_size=16)
    run(model, TEXTS, params(3), without, prefill_chunk_size=16)
    assert len(with_entries.calls_seen) == len(without.calls_seen)
    for mine, theirs in zip(with_entries.calls_seen, without.calls_seen, strict=True):
        assert mine.rows is not None
        assert theirs.rows is not None
        np.testing.assert_array_equal(mine.rows.positions, theirs.rows.positions)
        torch.testing.assert_close(mine.rows.hidden, theirs.rows.hidden, rtol=0, atol=0)
        torch.testing.assert_close(mine.rows.aux, theirs.rows.aux, rtol=0, atol=0)


def test_pictures_of_a_stream_have_the_entries_so_far_and_keep_them() -> None:
    model, text = target("llama"), TEXTS[2]
    (sampling,) = params(1, 1.0, 10, logprobs=2, prompt_logprobs=1)
    (plain,) = run(model, [text], sampling)
    plugins = {"stub": stub_plugin(Perfect.of_run([text], [plain]))}
    config = {"method": "stub", "num_speculative_tokens": 3}
    with LLM(hf_model=model, speculative_config=config, plugins=plugins) as llm:
        pictures = list(llm.stream(text, sampling))
    assert len(pictures) < 10
    for picture in pictures:
        (output,) = picture.outputs
        count = len(output.token_ids)
        assert_same(output.logprobs, plain.outputs[0].logprobs[:count], 1e-5)
        assert_same(picture.prompt_logprobs, plain.prompt_logprobs, 1e-5)
        chosen = [entry[token].logprob for entry, token in zip(output.logprobs, output.token_ids, strict=True)]
        assert output.cumulative_logprob == pytest.approx(sum(chosen))
    assert len(pictures[-1].outputs[0].token_ids) == 10


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_penalties_stop_texts_and_entries_go_together(mode: str, temperature: float) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    texts = [tokenizer(text)["input_ids"] for text in ("the cat sat", "a hat and a hat", "mat")]
    shaped = {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
        "top_k": 20,
        "min_tokens": 4,
    }
    common = {"temperature": temperature, "max_tokens": 30, "logprobs": 2, "prompt_logprobs": 1, **shaped}
    arguments = {"tokenizer": tokenizer, "logprobs_mode": mode}
    whole = run(model, texts, [SamplingParams(seed=i, **common) for i in range(3)], **arguments)
    asked = [
        SamplingParams(seed=i, stop=result.outputs[0].text[9 + i : 11 + i], **common) for i, result in enumerate(whole)
    ]
    plain = run(model, texts, asked, **arguments)
    assert sum(result.outputs[0].finish_reason == "stop" for result in plain) >= 2
    for stub in (Perfect.of_run(texts, whole), Garbage(len(tokenizer)), Fixed([80, 81])):
        for mine, theirs in zip(run(model, texts, asked, stub, k=5, **arguments), plain, strict=True):
            one, other = mine.outputs[0], theirs.outputs[0]
            assert (one.token_ids, one.text, one.stop_reason) == (other.token_ids, other.text, other.stop_reason)
            assert_same(one.logprobs, other.logprobs, 1e-5)
            assert_same(mine.prompt_logprobs, theirs.prompt_logprobs, 1e-5)
    ids, output = texts[0], plain[0].outputs[0]
    own = distribution(model, ids + output.token_ids)[len(ids) - 1 :]
    off = [
        abs(entry[token].logprob - float(own[i, token]))
        for i, (token, entry) in enumerate(zip(output.token_ids, output.logprobs, strict=True))
    ]
    assert (max(off) < 1e-4) == (mode == "raw_logprobs")
    if mode == "processed_logprobs" and temperature == 0:
        assert all(entry[token].rank == 1 for token, entry in zip(output.token_ids, output.logprobs, strict=True))
