"""Figures of the engines in Prometheus' text format."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pellucid.serve.served import ServedModel


class EngineCollector(Collector):
    """Reads the engines' own counters when somebody asks."""

    def __init__(self, models: Sequence[ServedModel]):
        self.models = models

    def collect(self) -> Iterator[Metric]:
        """Gauges and counters, one line for each model."""
        gauges = {
            "pellucid_requests_waiting": ("Sequences that wait for a row", lambda e: len(e.waiting)),
            "pellucid_requests_reading": ("Sequences whose prompt is being read", lambda e: len(e.reading)),
            "pellucid_requests_decoding": ("Sequences that are decoded together", lambda e: len(e.decoding)),
            "pellucid_rows": ("Sequences that can be decoded together", lambda e: e.batch.max_rows),
            "pellucid_prefix_cache_bytes": ("Bytes of keys and values of earlier prompts", lambda e: e.prefixes.nbytes),
        }
        counters = {
            "pellucid_prompt_tokens": ("Prompt tokens that were computed", lambda e: e.prompt_tokens),
            "pellucid_generated_tokens": ("Tokens that were generated", lambda e: e.generated_tokens),
            "pellucid_prefix_tokens_asked": ("Prompt tokens looked up in the prefix cache", lambda e: e.prefixes.asked),
            "pellucid_prefix_tokens_reused": ("Prompt tokens found there", lambda e: e.prefixes.reused),
        }
        for kind, table in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, (meaning, value) in table.items():
                family = kind(name, meaning, labels=["model"])
                for model in self.models:
                    family.add_metric([model.name], value(model.engine))
                yield family


def metrics_text(models: Sequence[ServedModel]) -> bytes:
    """The exposition of all figures."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(models))
    return generate_latest(registry)
