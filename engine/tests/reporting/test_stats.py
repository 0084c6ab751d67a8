"""What an engine says of itself: the log's words and figures, what counts as work, memory, and the exporter."""

from __future__ import annotations

import gc
import importlib
import logging
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry, Counter, generate_latest
from promql import parse
from runs import params, prompts, run, target

from specdec_core import hookimpl
from specdec_core.draft import Verdict
from specdec_core.errors import ConfigError
from specdec_core.metrics import SpecMetrics
from specdec_engine import LLM
from specdec_engine.reporting import prometheus
from specdec_engine.reporting.stats import EngineState, EngineStats, spec_line
from specdec_testing.stubs import Null, Perfect, stub_plugin

CONFIG = {"method": "stub", "num_speculative_tokens": 4}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
STATE = EngineState(running=1, waiting=2, kv_pages=8, kv_pages_in_use=2, kv_bytes=2**21, draft_bytes=None)


class Clock:
    """A clock that moves by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def counted(*rows: tuple[int, int, int, int]) -> SpecMetrics:
    metrics = SpecMetrics()
    for row in rows:
        metrics.add_row(*row)
    return metrics


def test_the_line_is_worded_as_vllms_and_divides_by_the_drafts_that_reached_a_position() -> None:
    metrics = counted((4, 4, 4, 5), (1, 1, 1, 2), (2, 2, 0, 1), (0, 0, 0, 1))
    assert spec_line(metrics, 2.0, None) == (
        "SpecDecoding metrics: Mean acceptance length: 2.67, Accepted throughput: 2.50 tokens/s, "
        "Drafted throughput: 3.50 tokens/s, Accepted: 5 tokens, Drafted: 7 tokens, "
        "Per-position acceptance rate: 0.667, 0.500, 1.000, 1.000, Avg Draft acceptance rate: 71.4%"
    )


def test_without_drafts_the_line_says_so_and_has_no_nan() -> None:
    assert spec_line(counted((0, 0, 0, 1), (3, 0, 0, 1)), 1.0, None) == "SpecDecoding metrics: no drafts in 2 steps"
    assert spec_line(SpecMetrics(), 1.0, None) is None


def test_a_lossy_verifier_is_named_in_every_line() -> None:
    for metrics in (counted((4, 4, 4, 5)), counted((0, 0, 0, 1))):
        assert str(spec_line(metrics, 1.0, "lenient")).endswith("Lossy verifier: lenient")


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "specdec_engine"]


def test_ten_seconds_of_work_make_a_line_and_idle_time_makes_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specdec_engine")
    clock, metrics = Clock(), SpecMetrics()
    stats = EngineStats(metrics, lambda: STATE, lossy_verifier=None, log=True, clock=clock)
    for step in range(25):
        stats.begin()
        clock.now += 1.0
        metrics.add_row(2, 2, 1, 2)
        stats.end()
        clock.now += 3600.0
        assert len(logged(caplog)) == 2 * ((step + 1) // 10)
    first, second = (line for line in logged(caplog) if line.startswith("SpecDecoding"))
    assert first == second, "each line is of its own ten seconds"
    assert "Accepted throughput: 1.00 tokens/s, Drafted throughput: 2.00 tokens/s, Accepted: 10 tokens" in first
    assert logged(caplog)[0] == (
        "Engine: Running: 1 reqs, Waiting: 2 reqs, KV cache usage: 25.0% (2 of 8 pages, 2.0 MiB allocated)"
    )


def test_with_the_log_off_nothing_is_said_and_memory_is_still_measured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specdec_engine")
    clock, measured = Clock(), []
    stats = EngineStats(SpecMetrics(), lambda: measured.append(1) or STATE, lossy_verifier=None, log=False, clock=clock)
    for _ in range(40):
        stats.begin()
        clock.now += 0.5
        stats.end()
    assert logged(caplog) == []
    assert len(measured) == 1 + 20, "at the start, and every second of work"


def test_an_engine_logs_its_own_figures_while_it_works(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "specdec_engine")
    monkeypatch.setattr("specdec_engine.reporting.stats.LOG_EVERY", 0.0)
    model, texts, sampling = target("llama"), prompts((40, 9)), params(2)
    with LLM(hf_model=model, speculative_config=NGRAM, kv_cache_tokens=512) as llm:
        llm.generate(texts, sampling)
        metrics = llm.get_metrics()
    spec = [line for line in logged(caplog) if line.startswith("SpecDecoding")]
    drafted = [int(n) for line in spec for n in re.findall(r"Drafted: (\d+) tokens", line)]
    assert sum(drafted) == metrics.drafted > 0
    engine = [line for line in logged(caplog) if line.startswith("Engine")]
    assert any("Running: 2 reqs" in line and "of 16 pages" in line and "Drafter memory" in line for line in engine)
    caplog.clear()
    with LLM(hf_model=model, speculative_config=NGRAM, disable_log_stats=True) as llm:
        llm.generate(texts, sampling)
    assert logged(caplog) == []


def test_memory_is_that_of_the_arena_and_of_the_index() -> None:
    model, texts, sampling = target("llama"), prompts((40, 9)), params(2, max_tokens=4)
    with LLM(hf_model=model, speculative_config=NGRAM, kv_cache_tokens=512) as llm:
        assert (llm.get_state().kv_pages, llm.get_state().kv_pages_in_use, llm.get_state().kv_bytes) == (16, 0, 0)
        stream = llm.stream(texts, sampling)
        for _ in range(4):  # both prompts and a step
            next(stream)
        llm._engine.stats.measure()
        state = llm.get_state()
        assert (state.running, state.waiting, state.kv_pages_in_use) == (2, 0, 3)
        assert state.kv_usage == 3 / 16
        config = model.config
        head = config.hidden_size // config.num_attention_heads
        assert state.kv_bytes == 2 * config.num_hidden_layers * config.num_key_value_heads * head * 4 * 512
        assert state.draft_bytes is not None and state.draft_bytes > 0
        stream.close()
        after = llm.get_state()
        assert (after.running, after.kv_pages_in_use, after.draft_bytes) == (0, 0, 0)
    with LLM(hf_model=model) as llm:
        assert llm.get_state().draft_bytes is None


class Forgetful(Null):
    """Does not know how much it holds."""

    def memory_bytes(self) -> int:
        raise OSError("no idea")


def test_a_proposer_that_cannot_tell_its_memory_is_contained(caplog: pytest.LogCaptureFixture) -> None:
    model, texts, sampling = target("llama"), prompts((9,)), params(1)
    with LLM(hf_model=model, speculative_config=CONFIG, plugins={"stub": stub_plugin(Forgetful())}) as llm:
        assert len(llm.generate(texts, sampling)[0].outputs[0].token_ids) == 20
        assert llm.get_state().draft_bytes is None
    assert sum("failed in memory_bytes: OSError: no idea" in line for line in logged(caplog)) == 1


class AcceptsAll:
    """Lets every draft stand."""

    @hookimpl
    def specdec_make_verifier(self) -> Any:
        return self

    @hookimpl
    def specdec_verifier_is_lossy(self) -> bool:
        return True

    def verify(self, draft: Any, logits: torch.Tensor, noise: Any, target_draws: torch.Tensor, greedy: Any) -> Verdict:
        draws, emitted, path, rows, at, row = target_draws.cpu().numpy(), [], [], [], 0, 0
        for length in draft.lengths:
            emitted += [*draft.tokens[at : at + length], draws[row + length]]
            path += range(length)
            rows += range(row, row + length + 1)
            at, row = at + length, row + length + 1
        return Verdict(*(np.array(values, np.int32) for values in (draft.lengths, path, emitted, rows)))


def test_a_lossy_verifier_is_marked_in_metrics_of_engine_and_prompt_and_in_a_scrape() -> None:
    model, texts, sampling = target("llama"), prompts((9,)), params(1)
    stub = Perfect.of_run(texts, run(model, texts, sampling))
    registry = CollectorRegistry()
    engines = []
    for more, plugins in (({}, {}), ({"rejection_sample_method": "all"}, {"all": AcceptsAll()})):
        llm = LLM(hf_model=model, speculative_config={**CONFIG, **more}, plugins={"stub": stub_plugin(stub), **plugins})
        engines.append(llm)
        prometheus.register(llm, model_name="tiny", registry=registry)
        result = llm.generate(texts, sampling)[0]
        assert result.metrics.drafted > 0
        assert result.metrics.as_json()["lossy"] is llm.get_metrics().as_json()["lossy"] is bool(more)
    lossy = parse(generate_latest(registry).decode())["specdec:spec_decode_lossy"]
    assert sorted(lossy.values()) == [0.0, 1.0]
    for llm in engines:
        llm.close()


def series(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """Values by number of engine."""
    found = parse(generate_latest(registry).decode()).get(name, {})
    return {dict(labels)["engine"]: value for labels, value in found.items()}


def test_engines_of_one_registry_have_labels_of_their_own_and_leave_with_their_engine() -> None:
    model, texts, sampling = target("llama"), prompts((40,)), params(1)
    registry = CollectorRegistry()
    first, plain = LLM(hf_model=model, speculative_config=NGRAM), LLM(hf_model=model)
    for llm in (first, plain, first):
        prometheus.register(llm, model_name="tiny", registry=registry)
    first.generate(texts, sampling)
    assert series(registry, "vllm:spec_decode_num_draft_tokens_total") == {"0": float(first.get_metrics().drafted)}
    assert set(series(registry, "vllm:kv_cache_usage_perc")) == {"0", "1"}
    assert set(series(registry, "specdec:draft_memory_bytes")) == {"0"}
    positions = parse(generate_latest(registry).decode())["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    assert sorted(dict(labels)["position"] for labels in positions) == ["0", "1", "2", "3"]
    first.close()
    del first, llm
    gc.collect()
    assert series(registry, "vllm:spec_decode_num_draft_tokens_total") == {}
    assert set(series(registry, "vllm:kv_cache_usage_perc")) == {"1"}
    plain.close()


def test_a_registry_that_has_the_names_already_is_refused_and_can_be_retried() -> None:
    registry = CollectorRegistry()
    taken = Counter("vllm:spec_decode_num_drafts", "somebody else's", registry=registry)
    with LLM(hf_model=target("llama"), speculative_config=NGRAM) as llm:
        with pytest.raises(ConfigError, match="these names already"):
            prometheus.register(llm, registry=registry)
        registry.unregister(taken)
        prometheus.register(llm, registry=registry)
        assert series(registry, "vllm:spec_decode_num_drafts_total") == {"0": 0.0}


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "specdec_engine.reporting.prometheus")
    with pytest.raises(ImportError, match=r"pip install 'specdec-engine\[metrics\]'"):
        importlib.import_module("specdec_engine.reporting.prometheus")
