"""Counters of the simulated server and their exposition under vLLM's names.

Text format 0.0.4 as prometheus_client writes it: a counter's sample and its TYPE line both carry
`_total`; a histogram has cumulative buckets ending in `+Inf`, a sum and a count. Label values are
escaped. Every sample has vLLM's labels `engine` and `model_name`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# vLLM's own bounds, in seconds.
_TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TPOT_BOUNDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0,
)  # fmt: skip
_LATENCY_BOUNDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip

FINISH_REASONS = ("stop", "length", "abort", "error")


class Histogram:
    """A Prometheus histogram of seconds, observed in nanoseconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_ns = 0

    def observe(self, value_ns: int) -> None:
        self.counts[bisect_left(self.bounds, value_ns / 1e9)] += 1
        self.sum_ns += value_ns

    def samples(self, name: str, labels: str) -> Iterable[str]:
        total = 0
        for bound, count in zip((*self.bounds, None), self.counts, strict=True):
            total += count
            le = "+Inf" if bound is None else repr(bound)
            yield f'{name}_bucket{{{labels},le="{le}"}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"
        yield f"{name}_sum{{{labels}}} {self.sum_ns / 1e9!r}"


class Metrics:
    """Plain attributes, added to by the engine; `render` is the page of `/metrics`."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.kv_usage = 0.0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.cache_queries = 0
        self.cache_hits = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.ttft = Histogram(_TTFT_BOUNDS)
        self.tpot = Histogram(_TPOT_BOUNDS)
        self.latency = Histogram(_LATENCY_BOUNDS)
        self.queue = Histogram(_LATENCY_BOUNDS)

    def render(self, model: str) -> str:
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        labels = f'engine="0",model_name="{escaped}"'
        lines: list[str] = []

        def family(name: str, kind: str, text: str, samples: Iterable[str]) -> None:
            lines.append(f"# HELP {name} {text}")
            lines.append(f"# TYPE {name} {kind}")
            lines.extend(samples)

        def single(name: str, kind: str, text: str, value: float) -> None:
            family(name, kind, text, [f"{name}{{{labels}}} {float(value)}"])

        single("vllm:num_requests_running", "gauge", "Requests being prefilled or decoded.", self.running)
        single("vllm:num_requests_waiting", "gauge", "Requests waiting to be admitted.", self.waiting)
        single(
            "vllm:kv_cache_usage_perc", "gauge", "Cache held by running requests, 1 = full.", self.kv_usage
        )
        for name, text, value in (
            ("num_preemptions", "Preemptions; the simulation has none.", 0),
            ("prompt_tokens", "Prompt tokens of prefilled requests.", self.prompt_tokens),
            ("generation_tokens", "Tokens generated.", self.generation_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", self.cache_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", self.cache_hits),
        ):
            single(f"vllm:{name}_total", "counter", text, value)
        sources = {
            "local_compute": self.prompt_tokens - self.cache_hits,
            "local_cache_hit": self.cache_hits,
            "external_kv_transfer": 0,
        }
        name = "vllm:prompt_tokens_by_source_total"
        family(
            name,
            "counter",
            "Prompt tokens by where they came from.",
            [f'{name}{{{labels},source="{k}"}} {float(v)}' for k, v in sources.items()],
        )
        name = "vllm:request_success_total"
        family(
            name,
            "counter",
            "Finished requests.",
            [f'{name}{{{labels},finished_reason="{k}"}} {float(v)}' for k, v in self.finished.items()],
        )
        for name, text, histogram in (
            ("vllm:time_to_first_token_seconds", "Arrival to first token.", self.ttft),
            ("vllm:request_time_per_output_token_seconds", "Mean per request.", self.tpot),
            ("vllm:e2e_request_latency_seconds", "Arrival to last token.", self.latency),
            ("vllm:request_queue_time_seconds", "Time spent waiting.", self.queue),
        ):
            family(name, "histogram", text, histogram.samples(name, labels))
        return "\n".join(lines) + "\n"
