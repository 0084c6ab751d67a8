"""Exports an engine's counters to Prometheus under vLLM's names; it reads them at every scrape and keeps none.

Needs `prometheus_client` (`pip install specdec-engine[metrics]`). Names and the labels `model_name` and `engine` are
vLLM's, so that its dashboards show a specdec engine; the label `proposer` is added. What vLLM does not have is called
`specdec:...`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from specdec_core.errors import ConfigError

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    message = "the Prometheus exporter needs prometheus_client: pip install 'specdec-engine[metrics]'"
    raise ImportError(message) from error

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from specdec_engine.llm import LLM

LABELS: Final = ("model_name", "engine", "proposer")
# Name, attribute of `SpecMetrics`, description. A scrape shows counters with `_total` behind the name.
COUNTERS: Final = (
    ("vllm:spec_decode_num_drafts", "drafts", "Rows of a target forward with at least one draft verified."),
    ("vllm:spec_decode_num_draft_tokens", "drafted", "Draft tokens verified."),
    ("vllm:spec_decode_num_accepted_tokens", "accepted", "Draft tokens accepted, before stop rules."),
    ("specdec:spec_decode_num_steps", "steps", "Rows of a target forward that could have speculated."),
    ("specdec:spec_decode_num_empty", "empty", "Those of them for which the proposer was asked and had nothing."),
    ("specdec:spec_decode_num_proposed_tokens", "proposed", "Draft tokens that came from the proposer."),
    ("specdec:spec_decode_num_cut_tokens", "cut", "Proposed tokens that were not verified."),
    ("specdec:spec_decode_num_emitted_tokens", "emitted", "Tokens gained by all rows, after stop rules."),
    (
        "specdec:spec_decode_num_emitted_tokens_with_draft",
        "kept_with_draft",
        "Tokens gained by rows with at least one draft verified, after stop rules.",
    ),
    ("specdec:spec_decode_num_failures", "failures", "Steps whose proposer failed."),
)
# The same with a label `position` more.
COUNTERS_PER_POS: Final = (
    ("vllm:spec_decode_num_accepted_tokens_per_pos", "accepted_per_pos", "Accepted tokens by draft position."),
    ("specdec:spec_decode_num_draft_tokens_per_pos", "drafted_per_pos", "Verified tokens by draft position."),
)
# The same with a label `part` more, `0.suffix` for the first one; only of methods that are made of others.
COUNTERS_PER_PART: Final = (
    ("specdec:spec_decode_num_draft_tokens_per_part", "drafted_per_part", "Draft tokens verified, by part."),
    ("specdec:spec_decode_num_accepted_tokens_per_part", "accepted_per_part", "Accepted draft tokens, by part."),
)
PART_SECONDS: Final = ("specdec:spec_decode_draft_seconds_per_part", "part_seconds", "Seconds of drafting, by part.")
# Name, attribute of `EngineState`, description.
STATE_COUNTERS: Final = (
    ("vllm:prefix_cache_queries", "prefix_cache_queries", "Ids of requests that looked for a prefix of theirs."),
    ("vllm:prefix_cache_hits", "prefix_cache_hits", "Those of them that were taken over from earlier requests."),
)
GAUGES: Final = (
    ("vllm:num_requests_running", "running", "Requests that run."),
    ("vllm:num_requests_waiting", "waiting", "Requests that wait."),
    ("vllm:kv_cache_usage_perc", "kv_usage", "Share of the KV pages that requests hold, 0 to 1."),
    ("specdec:kv_cache_bytes", "kv_bytes", "Bytes of the KV arena as allocated."),
    ("specdec:draft_memory_bytes", "draft_bytes", "Bytes of the proposer's indexes and caches, if it tells."),
)
LOSSY: Final = ("specdec:spec_decode_lossy", "lossy", "1 if the verifier changes the target's distribution, else 0.")


class EngineCollector(Collector):
    """All engines of one Prometheus registry, each with labels of its own; an engine that is gone leaves it."""

    def __init__(self) -> None:
        """Start without engines."""
        self._engines: WeakKeyDictionary[LLM, tuple[str, str, str]] = WeakKeyDictionary()
        self._numbers = itertools.count()

    def add(self, llm: LLM, model_name: str) -> None:
        """Export an engine; does nothing if it is exported already."""
        if llm not in self._engines:
            proposer = "" if llm.resolved_config is None else llm.resolved_config.method
            self._engines[llm] = (model_name, str(next(self._numbers)), proposer)

    def describe(self) -> Iterator[Metric]:
        """Yield the names that `collect` may yield, so that a registry sees a clash."""
        return EngineCollector().collect()

    def collect(self) -> Iterator[Metric]:
        """Yield what all engines count and hold now; engines without speculation have no counters of it."""
        engines = list(self._engines.items())
        counting = [(llm.resolved_config, llm.get_metrics(), labels) for llm, labels in engines if llm.resolved_config]
        for name, attribute, text in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=LABELS)
            for _, metrics, labels in counting:
                counter.add_metric(labels, getattr(metrics, attribute))
            yield counter
        for name, attribute, text in COUNTERS_PER_POS:
            counter = CounterMetricFamily(name, text, labels=(*LABELS, "position"))
            for resolved, metrics, labels in counting:
                values = list(getattr(metrics, attribute))
                values += [0] * (
                    resolved.num_speculative_tokens - len(values)
                )  # a series exists before its first draft
                for position, value in enumerate(values):
                    counter.add_metric((*labels, str(position)), value)
            yield counter
        yield from _by_part(engines)
        gauge = GaugeMetricFamily(LOSSY[0], LOSSY[2], labels=LABELS)
        for _, metrics, labels in counting:
            gauge.add_metric(labels, metrics.lossy)
        yield gauge
        for name, attribute, text in STATE_COUNTERS:
            counter = CounterMetricFamily(name, text, labels=LABELS)
            for llm, labels in engines:
                counter.add_metric(labels, getattr(llm.get_state(), attribute))
            yield counter
        for name, attribute, text in GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            for llm, labels in engines:
                held = getattr(llm.get_state(), attribute)
                if held is not None:
                    gauge.add_metric(labels, held)
            yield gauge


def _by_part(engines: Sequence[tuple[LLM, tuple[str, str, str]]]) -> Iterator[Metric]:
    """Yield what is counted by part; each part has a series from the start."""
    for name, attribute, text in (*COUNTERS_PER_PART, PART_SECONDS):
        counter = CounterMetricFamily(name, text, labels=(*LABELS, "part"))
        for llm, labels in engines:
            parts = () if llm.resolved_config is None else llm.resolved_config.parts
            source = llm.get_state() if attribute == PART_SECONDS[1] else llm.get_metrics()
            values = list(getattr(source, attribute)) if parts else []
            for place, part in enumerate(parts):
                value = values[place] if place < len(values) else 0
                counter.add_metric((*labels, f"{place}.{part.method}"), value)
        yield counter


_COLLECTORS: WeakKeyDictionary[CollectorRegistry, EngineCollector] = WeakKeyDictionary()


def register(llm: LLM, *, model_name: str | None = None, registry: CollectorRegistry = REGISTRY) -> None:
    """Export an engine's metrics through a Prometheus registry, as long as the engine lives.

    `model_name` is the label; None takes the name that the model was loaded under. Serve the registry with
    `prometheus_client.start_http_server(port)`; a scrape in another thread is safe while the engine decodes. Raises
    ConfigError if the registry has metrics of these names already.
    """
    collector = _COLLECTORS.get(registry)
    if collector is None:
        collector = EngineCollector()
        try:
            registry.register(collector)
        except ValueError as error:
            message = f"the registry exports metrics of these names already: {error}; pass another registry="
            raise ConfigError(message) from error
        _COLLECTORS[registry] = collector
    collector.add(llm, model_name or str(getattr(llm.model, "name_or_path", "")) or type(llm.model).__name__)
