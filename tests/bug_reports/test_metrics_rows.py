"""Metrics, as reported in docs/bug-reports.md, through the engine; their arithmetic is tested in the core."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from promql import Query, parse
from runs import ids_of, params, prompts, run, target

from specdec_core.draft import BatchView
from specdec_engine import LLM
from specdec_engine.reporting import prometheus
from specdec_testing.stubs import Null, Perfect, stub_plugin

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from doc_pages import table  # noqa: E402

CONFIG = {"method": "stub", "num_speculative_tokens": 5}


def test_metrics_parse_as_json_before_any_draft_and_without_one_row_98() -> None:
    model, texts, sampling = target("llama"), prompts((9, 20)), params(2)
    with LLM(hf_model=model, speculative_config=CONFIG, plugins={"stub": stub_plugin(Null())}) as llm:
        for _ in range(2):
            data = json.loads(json.dumps(llm.get_metrics().as_json(), allow_nan=False))
            assert (data["drafted"], data["acceptance_rate"], data["mean_acceptance_length"]) == (0, None, None)
            results = llm.generate(texts, sampling)
        assert json.loads(json.dumps(results[0].metrics.as_json(), allow_nan=False))["tokens_per_step"] == 1.0


class ThreeRight(Perfect):
    """Three right ids and two wrong ones."""

    def row(self, batch: BatchView, i: int) -> Any:
        right = list(super().row(batch, i))
        return [*right[:3], *[(token + 1) % 128 for token in right[3:5]]]


def test_three_of_five_accepted_and_the_next_id_make_four_row_102() -> None:
    model, texts, sampling = target("llama"), prompts((9,)), params(1, max_tokens=21)
    plain = run(model, texts, sampling)
    spec = run(model, texts, sampling, ThreeRight.of_run(texts, plain), k=5)
    assert ids_of(spec) == ids_of(plain)
    metrics = spec[0].metrics
    # One id comes with the prompt, then five steps of four; the last of them had room for three drafts, all right.
    assert (metrics.steps, metrics.drafted, metrics.accepted, metrics.emitted) == (5, 4 * 5 + 3, 15, 20)
    assert metrics.mean_acceptance_length == 4.0
    assert metrics.accepted_per_pos == [5, 5, 5, 0, 0]
    assert metrics.drafted_per_pos == [5, 5, 5, 4, 4]


def test_the_figures_of_requests_add_up_to_those_of_the_engine_row_99() -> None:
    model, texts, sampling = target("llama"), prompts(), params()
    plain = run(model, texts, sampling)
    stub = ThreeRight.of_run(texts, plain)
    with LLM(hf_model=model, speculative_config=CONFIG, plugins={"stub": stub_plugin(stub)}, strict=True) as llm:
        results = llm.generate(texts, sampling)
        whole = llm.get_metrics()
    for name in ("steps", "drafts", "empty", "proposed", "drafted", "accepted", "emitted", "kept_with_draft"):
        assert sum(getattr(result.metrics, name) for result in results) == getattr(whole, name), name
    assert whole.emitted == sum(len(ids) - 1 for (ids,) in ids_of(results))
    assert whole.acceptance_per_pos[:3] == [1.0, 1.0, 1.0]
    assert whole.acceptance_per_pos[3:] == [0.0, 0.0]


QUERIES = {figure: query.strip("`") for figure, query in table(ROOT / "docs" / "engine.md", "Prometheus")}


def by(label: str, vector: Any) -> dict[str, float]:
    """A vector by one label of its series."""
    return {dict(labels)[label]: value for labels, value in vector.items()}


class Measured(ThreeRight):
    """Tells how much it holds."""

    def memory_bytes(self) -> int:
        return 4096


def test_each_documented_query_can_be_answered_from_a_scrape_row_101() -> None:
    model, texts, sampling = target("llama"), prompts(), params()
    stub = Measured.of_run(texts, run(model, texts, sampling))
    registry = CollectorRegistry()
    with LLM(hf_model=model, speculative_config=CONFIG, plugins={"stub": stub_plugin(stub)}, strict=True) as llm:
        prometheus.register(llm, model_name="tiny", registry=registry)
        scrapes = [generate_latest(registry).decode()]
        llm.generate(texts, sampling)
        metrics = llm.get_metrics()
        metrics.add_row(4, 2, 1, 2)  # two of four proposed ids were cut
        metrics.add_row(0, 0, 0, 1)
        scrapes.append(generate_latest(registry).decode())
    of_parts = [figure for figure, query in QUERIES.items() if "per_part" in query]
    assert of_parts
    for figure in of_parts:  # which a method that is not made of parts does not have
        with pytest.raises(KeyError, match="per_part"):
            Query(QUERIES[figure], *scrapes, seconds=300.0).value()
    values = {
        figure: Query(query, *scrapes, seconds=300.0).value()
        for figure, query in QUERIES.items()
        if figure not in of_parts
    }
    every = frozenset[tuple[str, str]]()
    labels = frozenset({("model_name", "tiny"), ("engine", "0"), ("proposer", "stub")})
    assert values == {
        "acceptance rate": {every: pytest.approx(metrics.acceptance_rate)},
        "acceptance rate of each proposer": {frozenset({("proposer", "stub")}): pytest.approx(metrics.acceptance_rate)},
        "mean acceptance length of each engine": {labels: pytest.approx(metrics.mean_acceptance_length)},
        "acceptance rate at each position, of the drafts that reached it": {
            frozenset({("position", str(i))}): pytest.approx(rate) for i, rate in enumerate(metrics.acceptance_per_pos)
        },
        "tokens a step, steps without a draft included": {every: pytest.approx(metrics.tokens_per_step)},
        "share of steps for which the proposer had nothing": {every: pytest.approx(metrics.empty / metrics.steps)},
        "share of proposed tokens that were not verified": {every: pytest.approx(metrics.cut / metrics.proposed)},
        "share of ids that were taken over from earlier requests": {every: 0.0},
        "KV pages in use": {labels: 0.0},
        "memory of the drafter": {labels: 4096.0},
    }
    with pytest.raises(KeyError, match="num_drafts"):
        Query("rate(vllm:spec_decode_num_drafts[5m])", *scrapes, seconds=300.0).value()
    with pytest.raises(AssertionError, match="labels do not match"):
        wrong = (
            "rate(vllm:spec_decode_num_accepted_tokens_per_pos_total[5m]) / rate(vllm:spec_decode_num_drafts_total[5m])"
        )
        Query(wrong, *scrapes, seconds=300.0).value()
    assert by("position", parse(scrapes[1])["vllm:spec_decode_num_accepted_tokens_per_pos_total"]) == {
        str(i): float(count) for i, count in enumerate(metrics.accepted_per_pos)
    }
