"""Figures of the engines and of the requests, in Prometheus' text format."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.serve.engine import TIME_BOUNDS, Engine, Histogram
from pellucid.serve.served import ServedModel

GAUGES: dict[str, tuple[str, Callable[[Engine], float]]] = {
    "pellucid_requests_waiting": ("Sequences that wait for a row", lambda e: len(e.waiting)),
    "pellucid_requests_reading": ("Sequences whose prompt is being read", lambda e: len(e.reading)),
    "pellucid_requests_decoding": (
        "Sequences that are being generated",
        lambda e: len(e.running()) - len(e.reading),
    ),
    "pellucid_rows": ("Sequences that can be generated at once", lambda e: e.max_rows),
    "pellucid_prefix_cache_bytes": ("Bytes of keys and values of earlier prompts", lambda e: e.prefix_bytes),
}
COUNTERS: dict[str, tuple[str, Callable[[Engine], float]]] = {
    "pellucid_prompt_tokens": ("Prompt tokens that were computed", lambda e: e.prompt_tokens),
    "pellucid_generated_tokens": ("Tokens that were generated", lambda e: e.generated_tokens),
    "pellucid_prefix_tokens_asked": ("Prompt tokens looked up among earlier prompts", lambda e: e.prefix_asked),
    "pellucid_prefix_tokens_reused": ("Prompt tokens found there", lambda e: e.prefix_reused),
}
HISTOGRAMS: dict[str, tuple[str, Callable[[Engine], Histogram]]] = {
    "pellucid_time_to_first_token_seconds": ("From a request's arrival", lambda e: e.time_to_first_token),
    "pellucid_time_between_tokens_seconds": ("Between tokens of a sequence", lambda e: e.time_between_tokens),
}


class RequestCounter:
    """How many requests each route answered with each status, and how long answers took."""

    def __init__(self):
        self.requests: Counter[tuple[str, str]] = Counter()
        self.seconds = Histogram((*TIME_BOUNDS, 60.0, 300.0))

    class Middleware:
        """Counts a request when its answer is complete."""

        def __init__(self, app: ASGIApp, *, counter: "RequestCounter"):
            self.app, self.counter = app, counter

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await self.app(scope, receive, send)
                return
            began, status = time.monotonic(), 499

            async def noting(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await self.app(scope, receive, noting)
            finally:
                # the pattern of the route, of which there are few, and not the path, of which there is no end
                route = getattr(scope.get("route"), "path", "other")
                self.counter.requests[route, str(status)] += 1
                self.counter.seconds.observe(time.monotonic() - began)


class EngineCollector(Collector):
    """Reads the engines' own counters when somebody asks."""

    def __init__(self, models: Sequence[ServedModel], counter: RequestCounter):
        self.models, self.counter = models, counter

    def collect(self) -> Iterator[Metric]:
        """Gauges, counters and histograms, one line for each model; and the requests by route."""
        for kind, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, (meaning, value) in table.items():
                family: Any = kind(name, meaning, labels=["model"])
                for model in self.models:
                    family.add_metric([model.name], value(model.engine))
                yield family
        for name, (meaning, histogram) in HISTOGRAMS.items():
            family = HistogramMetricFamily(name, meaning, labels=["model"])
            for model in self.models:
                times = histogram(model.engine)
                family.add_metric([model.name], times.buckets(), times.sum)
            yield family
        requests = CounterMetricFamily("pellucid_requests", "Requests that were answered", labels=["route", "status"])
        for (route, status), n in list(self.counter.requests.items()):
            requests.add_metric([route, status], n)
        yield requests
        durations = HistogramMetricFamily("pellucid_request_seconds", "From a request's head to its answer's end")
        durations.add_metric([], self.counter.seconds.buckets(), self.counter.seconds.sum)
        yield durations


def metrics_text(models: Sequence[ServedModel], counter: RequestCounter) -> bytes:
    """The exposition of all figures."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(models, counter))
    return generate_latest(registry)
