"""The simulated engine's figures under vLLM's names and labels.

Law of this file: a figure is read from the engine when somebody scrapes, never copied. Only what an
admission gate or a dashboard of load reads is here, not all of vLLM's histograms; a test compares names and
labels with a running vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate.testing.engine_values import EngineOptions, EngineStats


class EngineCollector(Collector):
    """Gives `stats()` to a Prometheus registry as one vLLM engine."""

    def __init__(self, options: EngineOptions, model: str, stats: Callable[[], EngineStats]) -> None:
        self._options = options
        self._model = model
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """The metrics of this moment."""
        stats = self._stats()
        yield self._gauge("num_requests_running", "Requests in the running batch.", stats.running)
        yield self._gauge("num_requests_waiting", "Requests waiting.", stats.waiting)
        yield self._by(
            GaugeMetricFamily,
            "num_requests_waiting_by_reason",
            "reason",
            {"capacity": stats.waiting, "deferred": 0},
        )
        sleep = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        yield self._by(GaugeMetricFamily, "engine_sleep_state", "sleep_state", sleep)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", stats.kv_usage)
        yield self._counter(
            "prefix_cache_queries", "Tokens looked up in the prefix cache.", stats.prefix_query_tokens
        )
        yield self._counter("prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_hit_tokens)
        yield self._counter("num_preemptions", "Preemptions.", stats.preemptions)
        yield self._counter("prompt_tokens", "Prompt tokens processed.", stats.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens generated.", stats.generation_tokens)
        finished = {"length": stats.finished_requests, "abort": stats.cancelled_requests}
        yield self._by(CounterMetricFamily, "request_success", "finished_reason", finished)
        yield self._cache_config()

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", documentation, labels=("engine", "model_name"))
        family.add_metric(("0", self._model), value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", documentation, labels=("engine", "model_name"))
        family.add_metric(("0", self._model), value)
        return family

    def _by(
        self,
        family_type: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        label: str,
        values: dict[str, int],
    ) -> Metric:
        family = family_type(f"vllm:{name}", f"By {label}.", labels=("engine", "model_name", label))
        for key, value in values.items():
            family.add_metric(("0", self._model, key), value)
        return family

    def _cache_config(self) -> Metric:
        labels = {
            "engine": "0",
            "block_size": str(self._options.block_tokens),
            "num_gpu_blocks": str(self._options.num_blocks),
            "kv_cache_size_tokens": str(self._options.num_blocks * self._options.block_tokens),
            "kv_cache_max_concurrency": str(
                self._options.num_blocks * self._options.block_tokens / self._options.max_model_tokens
            ),
            "enable_prefix_caching": "True",
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "The cache's configuration.", labels=tuple(labels)
        )
        family.add_metric(tuple(labels.values()), 1)
        return family
