"""run.json and summary.json: what a run was, and what it gave."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from agentx_engine import __version__
from agentx_engine.artifacts.facts import host_facts, versions
from agentx_engine.artifacts.folder import RunFolder
from agentx_engine.artifacts.redact import REDACTED, redact_headers, redact_json, redact_url
from agentx_engine.artifacts.wall import WallPairing
from agentx_engine.artifacts.writer import WriterReport
from agentx_engine.cli.server import Server
from agentx_engine.cli.settings import ReplaySettings
from agentx_engine.cli.validity import validity_document
from agentx_engine.corpus import Corpus
from agentx_engine.errors import CorpusError
from agentx_engine.metrics.host import HostSampler
from agentx_engine.metrics.remarks import remarks
from agentx_engine.metrics.since import Since
from agentx_engine.metrics.stats import histogram_statistics
from agentx_engine.metrics.summary import Summary
from agentx_engine.metrics.usage import Collector
from agentx_engine.metrics.verdict import Verdict
from agentx_engine.prompt.tokenizer import PoolReport
from agentx_engine.replay.options import ReplayReport, WarmupReport
from agentx_engine.replay.start_plan import LanePlan
from agentx_engine.scenario import Validity
from agentx_engine.transport.native import NativeTransport

NS = 1_000_000_000
RUN_SCHEMA = "agentx-engine/run/1"
SUMMARY_SCHEMA = "agentx-engine/summary/1"


def redacted(settings: ReplaySettings) -> dict[str, Any]:
    """The settings as they may be written down."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    del plain["applied"]  # said once, in run.json
    plain["urls"] = [redact_url(url) for url in settings.urls]
    plain["api_key"] = None if settings.api_key is None else REDACTED
    plain["headers"] = [list(pair) for pair in redact_headers(settings.headers)]
    plain["extra_body"] = redact_json(settings.extra_body)
    return plain


def before(
    *,
    settings: ReplaySettings,
    run_id: str,
    folder: RunFolder,
    corpus: Corpus,
    server: Server,
    wall: WallPairing,
    pool: PoolReport | None,
) -> dict[str, Any]:
    """run.json as far as it is known before the run. `pool`: what became of the words, with a tokenizer."""
    applied = settings.applied
    return {
        "schema": RUN_SCHEMA,
        "run_id": run_id,
        "state": "running",
        "started_unix_ns": wall.unix_ns(time.monotonic_ns()),
        "wall_pairing": {"offset_ns": wall.offset_ns, "error_ns": wall.error_ns},
        "folder": str(folder.path),
        "settings": redacted(settings),
        "scenario": None
        if applied is None
        else {
            "name": applied.scenario,
            "filled": {name: applied.effective[name] for name in applied.filled},
            "overridden": [str(violation) for violation in applied.violations],
        },
        "seeds": {"schedule": settings.seed, "content": settings.content_seed},
        "corpus": {
            "path": str(corpus.path),
            "digest": None,
            "traces": len(corpus),
            "left_out": corpus.dropped,
            "requests_left_out": corpus.requests_left_out,
            "bytes": corpus.bytes,
        },
        "prompts": {
            "isl": settings.isl,
            "template_taken_out": server.overhead()._asdict() if settings.isl == "wire" else None,
            "pool": None if pool is None else msgspec.to_builtins(pool),
        },
        "endpoints": server.endpoints,
        "models": server.models,
        "output_limit_field": server.limit_field,
        "preflight": msgspec.to_builtins(server.report),
        "versions": versions(),
        "host": host_facts(server.hosts),
    }


class ClientSide(msgspec.Struct):
    """What only the transport and the process know of the client's own error; taken before they are gone."""

    client: dict[str, Any]
    transport: dict[str, Any]
    reactor: dict[str, int]
    verdict: Verdict


def client_side(
    transport: NativeTransport,
    measured: Since,
    *,
    sampler: HostSampler,
    collector: Collector,
    process: dict[str, Any],
    summary: Summary,
) -> ClientSide:
    """Call it before the transport closes, after the sampler has stopped. `measured`: the measured phase."""
    histograms, counters = measured.histograms(), measured.counters()
    client: dict[str, Any] = {
        "read_lag_ms": histogram_statistics(histograms["read_lag"]),
        "reactor_turn_ms": histogram_statistics(histograms["reactor_turn"]),
        "collector_pause_ms": collector.result(),
        "reactor_cpu_s": transport.cpu_ns() / NS,
        "process": process,
    }
    for name in ("stamps_missing", "stamps_discarded", "clock_steps"):
        client[name] = counters[name]
    verdict = sampler.verdict(
        measured, collector_pauses=collector.pauses, planned=summary.finished, achieved=summary.tried
    )
    return ClientSide(client, transport.describe(), transport.counters(), verdict)


def summary_document(
    *,
    settings: ReplaySettings,
    run_id: str,
    corpus: Corpus,
    summary: Summary,
    report: ReplayReport | None,
    written: WriterReport,
    side: ClientSide | None,
    validity: Validity,
) -> dict[str, Any]:
    """summary.json. Without a report the run was ended by a defect of ours."""
    result = summary.result()
    if side is not None:
        result["client"] |= side.client
    document: dict[str, Any] = {
        "schema": SUMMARY_SCHEMA,
        "engine": {"name": "agentx-engine", "version": __version__},
        "run_id": run_id,
        "ended_by": "client_error" if report is None else report.end_reason,
        "interrupted": report is not None and report.interrupted,
        "elapsed_s": 0.0 if report is None else (report.ended_ns - report.started_ns) / NS,
        "settings": redacted(settings),
        "verdict": None if side is None else msgspec.to_builtins(side.verdict),
        "validity": validity_document(validity),
        "corpus": {
            "traces": len(corpus),
            "left_out": corpus.dropped,
            "requests_left_out": corpus.requests_left_out,
        },
        "warmup": None if report is None or report.warmup is None else _warmup(report.warmup, summary),
        "schedule": None if report is None else _schedule(settings, report),
        **result,
        "records": msgspec.to_builtins(written) | {"complete": written.complete},
    }
    document["remarks"] = remarks(document)
    return document


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS


def _warmup(warmup: WarmupReport, summary: Summary) -> dict[str, Any]:
    """Nothing of it counts in the result. Seconds from its beginning."""

    def since(at_ns: int | None) -> float | None:
        return None if at_ns is None else _seconds(at_ns - warmup.started_ns)

    return {
        "requests": sum(summary.warmup_outcomes.values()),
        "by_outcome": dict(sorted(summary.warmup_outcomes.items())),
        "primers": warmup.primers,
        "extra_requests": sum(warmup.extra_requests),
        "extra_missing": warmup.extra_missing,
        "primed_s": since(warmup.primed_ns),
        "ended_s": since(warmup.ended_ns),
    }


def _schedule(settings: ReplaySettings, report: ReplayReport) -> dict[str, Any]:
    """What made requests of the measured phase earlier or later than recorded, and which rules held."""
    c = report.counts
    return {
        "as_harness": settings.as_harness,
        "pauses_dropped": c.pauses_dropped,
        "pauses_dropped_s": _seconds(c.pause_dropped_ns),
        "held_by_dead": c.held_by_dead,
        "barriers_broken": c.barriers_broken,
        "join_waits": c.join_waits,
        "join_wait_s": _seconds(c.join_wait_ns),
        "barrier_holds": c.barrier_holds,
        "barrier_hold_s": _seconds(c.barrier_hold_ns),
        "system_shifts": c.system_shifts,
        "system_shift_s": _seconds(c.system_shift_ns),
        "trace_shifts": c.tree_shifts,
        "trace_shift_s": _seconds(c.tree_shift_ns),
        "lane_idle_s": _seconds(c.lane_idle_ns),
        "lane_idle_longest_s": _seconds(c.lane_idle_longest_ns),
        "trees_torn_down": c.trees_torn_down,
        "branches": msgspec.to_builtins(c.branches),
    }


def _start(plan: LanePlan) -> dict[str, Any]:
    """Where each lane began."""
    return {
        "ratios": list(plan.ratios),
        "skipped_traces": list(plan.skipped),
        "lanes": [
            {
                "trace": lane.trace_id,
                "t_star_s": None if lane.t_star_ms is None else lane.t_star_ms / 1e3,
                "live": len(lane.streams),
                "primers": len(lane.primers),
            }
            for lane in plan.lanes
        ],
    }


def digest(corpus: Corpus) -> dict[str, str | None]:
    """The corpus' identity; blocks for seconds on a large corpus that was not seen before."""
    try:
        return {"digest": corpus.digest}
    except CorpusError as error:
        return {"digest": None, "digest_error": str(error)}


def after(
    run: dict[str, Any],
    wall: WallPairing,
    report: ReplayReport | None,
    side: ClientSide | None,
    error: str | None,
) -> None:
    """Adds to run.json what is known after the run. `error`: the traceback of a defect outside the replay."""
    run["state"] = "finished"
    run["ended_unix_ns"] = wall.unix_ns(time.monotonic_ns())
    if side is not None:
        run["transport"], run["reactor_counters"] = side.transport, side.reactor
        run["verdict"] = msgspec.to_builtins(side.verdict)
    if error is not None:
        run["error"] = error
    if report is not None:
        run["replay"] = {
            "started_unix_ns": wall.unix_ns(report.started_ns),
            "stopped_unix_ns": wall.unix_ns(report.stopped_ns),
            "ended_unix_ns": wall.unix_ns(report.ended_ns),
            "end_reason": report.end_reason,
            "error": report.error,
            "traceback": report.traceback,
            "lost": report.lost,
            "unrecorded": len(report.unrecorded),
            "counters": msgspec.to_builtins(report.counts),
            "warmup": None if report.warmup is None else msgspec.to_builtins(report.warmup),
            "start": None if report.start is None else _start(report.start),
        }
