"""The dashboard for Grafana: every query of it has an answer from the text that the exporter really shows."""

from __future__ import annotations

import json
import math
import re
from importlib.resources import files
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from promql import Query, parse
from runs import params, prompts, run, target

from specdec_core.draft import BatchView
from specdec_engine import LLM
from specdec_engine.reporting import prometheus
from specdec_testing.stubs import Perfect, Stub, stub_plugin

DASHBOARD = json.loads(files("specdec_engine.reporting").joinpath("grafana.json").read_text(encoding="utf-8"))
QUERIES = [(panel["title"], each["expr"]) for panel in DASHBOARD["panels"] for each in panel["targets"]]
VARIABLES = {"$model_name": "tiny|other", "$__rate_interval": "5m"}


class Sometimes(Perfect):
    """Right at first, then wrong, and every third time without a draft; it tells how much it holds."""

    def row(self, batch: BatchView, i: int) -> Any:
        right = list(super().row(batch, i))
        return (
            [] if len(batch.request(i).tokens) % 3 == 0 else [*right[:2], *[(token + 1) % 128 for token in right[2:]]]
        )

    def memory_bytes(self) -> int:
        return 4096


class Seldom(Stub):
    """A wrong draft now and then, where the other part has none."""

    def row(self, batch: BatchView, i: int) -> Any:
        return [1] if len(batch.request(i).tokens) % 6 == 0 else []


@pytest.fixture(scope="module")
def scrapes() -> list[str]:
    """The exporter's text before and after some requests, of an engine with speculation and one without."""
    model, texts, sampling = target("llama"), prompts((9, 20, 23)), params(3)
    stub = Sometimes.of_run(texts, run(model, texts, sampling))
    registry = CollectorRegistry()
    config = {"method": "combine", "num_speculative_tokens": 4, "methods": [{"method": "stub"}, {"method": "seldom"}]}
    plugins = {"stub": stub_plugin(stub), "seldom": stub_plugin(Seldom())}
    with (
        LLM(hf_model=model, speculative_config=config, plugins=plugins, strict=True) as llm,
        LLM(hf_model=model) as plain,
    ):
        for engine in (llm, plain):
            prometheus.register(engine, model_name="tiny", registry=registry)
        found = [generate_latest(registry).decode()]
        for engine in (llm, plain):
            engine.generate(texts, sampling)
        return [*found, generate_latest(registry).decode()]


def evaluated(query: str, scrapes: list[str]) -> Any:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query, f"a variable that Grafana does not fill in: {query}"
    return Query(query, *scrapes, seconds=300.0).value()


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[f"{title} {i}" for i, (title, _) in enumerate(QUERIES)])
def test_every_query_has_an_answer_from_a_scrape_row_101(title: str, query: str, scrapes: list[str]) -> None:
    vector = evaluated(query, scrapes)
    assert vector and all(math.isfinite(value) for value in vector.values()), title


def test_what_the_panels_show_is_what_the_engine_counted(scrapes: list[str]) -> None:
    found = {title: list(evaluated(query, scrapes).values()) for title, query in QUERIES}
    (accepted,), (drafted,) = (
        [value for labels, value in parse(scrapes[1])[name].items()]
        for name in ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total")
    )
    assert found["Acceptance rate"] == [pytest.approx(accepted / drafted)] and 0 < accepted < drafted
    assert len(found["Acceptance by position"]) == 4
    counts = parse(scrapes[1])
    for kind, whole in (("draft", drafted), ("accepted", accepted)):
        by_part = counts[f"specdec:spec_decode_num_{kind}_tokens_per_part_total"]
        assert {dict(labels)["part"] for labels in by_part} == {"0.stub", "1.seldom"}
        assert sum(by_part.values()) == whole and (min(by_part.values()) > 0) == (kind == "draft")
    assert found["Drafting time by part"][0] > 0
    assert found["Lossy verifiers"] == [0.0] and found["Steps without a draft"][0] > 0
    assert found["Requests"] == [0.0]


def test_legends_name_labels_that_the_answers_have(scrapes: list[str]) -> None:
    for panel in DASHBOARD["panels"]:
        for each in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", each["legendFormat"]):
                assert all(label in dict(labels) for labels in evaluated(each["expr"], scrapes)), (
                    panel["title"],
                    label,
                )


def test_all_counters_of_the_exporter_are_on_a_panel(scrapes: list[str]) -> None:
    shown = " ".join(query for _, query in QUERIES)
    names = {name for name in parse(scrapes[1]) if not name.endswith("_created")}
    assert {name for name in names if name not in shown} == set()


def test_panels_do_not_overlap_and_have_names_of_their_own() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & own, panel["title"]
        cells |= own
    for name in ("id", "title"):
        assert len({panel[name] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    variables = {f"${each['name']}" for each in DASHBOARD["templating"]["list"]}
    assert variables == {"$datasource", "$model_name"}


def test_a_query_of_a_name_or_label_that_no_scrape_has_is_seen(scrapes: list[str]) -> None:
    with pytest.raises(KeyError):
        evaluated("sum(rate(vllm:spec_decode_num_drafts[5m]))", scrapes)
    with pytest.raises(AssertionError, match="has no label 'model'"):
        evaluated('vllm:num_requests_running{model="tiny"}', scrapes)
    with pytest.raises(AssertionError, match="no label"):
        evaluated("sum by (pos) (vllm:num_requests_running)", scrapes)
    assert evaluated('vllm:num_requests_running{model_name="another"}', scrapes) == {}
