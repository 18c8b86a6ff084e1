"""A forecast of a replay: the replay's own coroutines under simulated time, on a model of a server."""

from __future__ import annotations

from agentx_engine.errors import CorpusError, UserError
from agentx_engine.prompt.marker import marker_digest, marker_text
from agentx_engine.replay.engine import Replay
from agentx_engine.replay.forecast import build, document
from agentx_engine.replay.forecast.cache import KvCache
from agentx_engine.replay.forecast.paths import PathPrompts, Space
from agentx_engine.replay.forecast.residents import Residents
from agentx_engine.replay.forecast.server import ForecastServer, ServerSpec
from agentx_engine.replay.forecast.watch import Watch
from agentx_engine.replay.ids import seeded_ids
from agentx_engine.replay.options import ReplayOptions, ReplayReport
from agentx_engine.replay.protocols import TreeIdentity, TreeSource
from agentx_engine.replay.simulated import SimulatedClock, inline, run_simulated


def forecast(trees: TreeSource, options: ReplayOptions, server: ServerSpec) -> document.Forecast:
    """Replays `trees` as `options` say, which must have a duration, on the model `server`.

    The result is the same in every process. It takes about a millisecond of CPU per request.

    Raises:
        CorpusError: a trace cannot be replayed, or none can.
        UserError: the warmup does not end within its grace.
    """
    duration_ns = options.duration_ns
    if duration_ns is None:
        raise ValueError("a forecast needs a duration")
    if not len(trees):
        raise CorpusError("the corpus has no traces")
    cache, residents = KvCache(server.cache_tokens), Residents()

    def unused(start: int, stop: int) -> bool:
        return cache.free(start, stop) and not residents.live.counts[start:stop].any()

    def grow(nodes: int, texts: int) -> None:
        cache.grow(nodes)
        residents.grow(nodes, texts)

    prompts = PathPrompts(Space(unused), Space(lambda start, stop: False), grow)

    def close_play(tree: TreeIdentity) -> None:
        if options.marker:
            digest = marker_digest(options.run_id, tree.play, tree.lane, tree.trace_id)
            play = prompts.close(tree.trace_id, marker_text(digest))
            if play is not None:
                cache.forget(play.start, play.start + play.trace.count)

    watch = Watch(close_play)

    async def replay(clock: SimulatedClock) -> ReplayReport:
        return await Replay(
            clock=clock,
            transport=ForecastServer(clock, server, cache, residents.sent, residents.returned),
            trees=trees,
            prompts=prompts,
            recorder=watch,
            options=options,
            ids=seeded_ids(0),
            headers=lambda identity: b"",
            offload=inline,
        ).run()

    report = run_simulated(replay)
    if report.end_reason == "client_error":
        raise RuntimeError(report.traceback or report.error)
    if report.error is not None:
        raise (CorpusError if report.end_reason == "corpus" else UserError)(report.error)
    seen = build.Seen(
        start_ns=report.started_ns,
        stop_ns=report.started_ns + duration_ns,
        lanes=options.concurrency,
        traces=len(trees),
        requests=watch.columns(warmup=False),
        warmup=watch.columns(warmup=True),
        plays=watch.plays,
        cache=cache,
        residents=residents,
    )
    steps, in_flight = build.in_flight(seen)
    lanes, pauses = build.lanes_and_pauses(seen)
    return document.Forecast(
        run=document.Run(
            traces=len(trees),
            concurrency=options.concurrency,
            duration_s=seen.seconds,
            grace_s=options.grace_ns / build.SECOND,
            cache_bust=options.marker,
            seed=options.seed,
            start_ratios=options.start_ratios,
            burst_starts=options.burst_starts,
            warmup_requests_per_lane=options.warmup_requests_per_lane,
            warmup_duration_s=_seconds(options.warmup_duration_ns),
            system_idle_cap_s=_seconds(options.system_idle_cap_ns),
            tree_idle_cap_s=_seconds(options.tree_idle_cap_ns),
        ),
        server=server,
        assumptions=assumptions(options, server),
        warmup=build.warmup(seen, report.warmup),
        requests=build.requests(seen),
        in_flight=in_flight,
        lanes=lanes,
        trees=build.trees(seen),
        corpus=build.corpus_use(seen),
        tokens=build.tokens(seen),
        prefix_cache=build.prefix_cache(seen),
        kv_cache=build.kv_cache(seen),
        pauses=pauses,
        idle_caps=build.idle_caps(report.counts),
        latency_of_the_model=build.latency(seen),
        memory=build.memory(seen),
        curve=build.curve(seen, steps),
    )


def assumptions(options: ReplayOptions, server: ServerSpec) -> list[str]:
    """What the figures rest on, as sentences."""
    decode = f"then one token every {server.itl_ms:g} ms"
    if server.itl_slope_us:
        decode += f" + {server.itl_slope_us:g} us per request that decodes"
    prefill = "one prompt after another" if server.prefill_shared else "all prompts at once"
    if server.cache_tokens is None:
        cache = "The prefix cache is unbounded."
    elif server.cache_tokens:
        cache = f"The prefix cache holds {server.cache_tokens:,} tokens, least recently used out first."
    else:
        cache = "There is no prefix cache."
    return [
        f"The first token comes {server.ttft_ms:g} ms + {1e6 / server.prefill_tokens_per_s:g} us per "
        f"uncached prompt token after the request ({prefill}), {decode}.",
        f"{cache} Any number of requests run at once, prefill does not slow decoding.",
        "Answers are as long as recorded, nothing fails, the network takes no time.",
        f"{_start(options)} {_pauses(options)}",
    ]


def _start(options: ReplayOptions) -> str:
    warmup = []
    if options.start_ratios is not None:
        low, high = options.start_ratios
        start = f"Lanes begin between {low:.0%} and {high:.0%} of their recordings (seed {options.seed})"
        warmup.append("one primer per live stream")
    else:
        start = "All lanes begin at once at the first turn of their sessions"
    if options.warmup_requests_per_lane:
        warmup.append(f"{options.warmup_requests_per_lane:,} one-token requests per lane")
    if options.warmup_duration_ns is not None:
        warmup.append(f"{options.warmup_duration_ns / build.SECOND:g} s of one-token requests")
    return f"{start}, {'after a warmup of ' + ' and '.join(warmup) if warmup else 'without warmup'}."


def _pauses(options: ReplayOptions) -> str:
    caps = [
        f"{cap_ns / build.SECOND:g} s of {what}"
        for cap_ns, what in (
            (options.system_idle_cap_ns, "nothing in flight at all"),
            (options.tree_idle_cap_ns, "nothing in flight for a session"),
        )
        if cap_ns is not None
    ]
    bound = f"but come nearer after {' or '.join(caps)}" if caps else "however long"
    child = "" if options.child_pause else " Children start without the pause recorded before them."
    return f"Pauses are as recorded, {bound}.{child}"


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / build.SECOND
