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
from agentx_engine.corpus import Corpus
from agentx_engine.errors import CorpusError
from agentx_engine.metrics.remarks import remarks
from agentx_engine.metrics.stats import histogram_statistics
from agentx_engine.metrics.summary import Summary
from agentx_engine.metrics.usage import Collector
from agentx_engine.replay.options import ReplayReport
from agentx_engine.transport.native import NativeTransport

NS = 1_000_000_000
RUN_SCHEMA = "agentx-engine/run/1"
SUMMARY_SCHEMA = "agentx-engine/summary/1"


def redacted(settings: ReplaySettings) -> dict[str, Any]:
    """The settings as they may be written down."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
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
) -> dict[str, Any]:
    """run.json as far as it is known before the run."""
    return {
        "schema": RUN_SCHEMA,
        "run_id": run_id,
        "state": "running",
        "started_unix_ns": wall.unix_ns(time.monotonic_ns()),
        "wall_pairing": {"offset_ns": wall.offset_ns, "error_ns": wall.error_ns},
        "folder": str(folder.path),
        "settings": redacted(settings),
        "seeds": {"schedule": settings.seed, "content": settings.content_seed},
        "corpus": {
            "path": str(corpus.path),
            "digest": None,
            "traces": len(corpus),
            "left_out": corpus.dropped,
            "bytes": corpus.bytes,
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


def client_side(transport: NativeTransport, collector: Collector, process: dict[str, Any]) -> ClientSide:
    histograms, counters = transport.histograms(), transport.counters()
    client: dict[str, Any] = {
        "read_lag_ms": histogram_statistics(histograms["read_lag"]),
        "reactor_turn_ms": histogram_statistics(histograms["reactor_turn"]),
        "collector_pause_ms": collector.result(),
        "reactor_cpu_s": transport.cpu_ns() / NS,
        "process": process,
    }
    for name in ("stamps_missing", "stamps_discarded", "clock_steps"):
        client[name] = counters[name]
    return ClientSide(client, transport.describe(), counters)


def summary_document(
    *,
    settings: ReplaySettings,
    run_id: str,
    summary: Summary,
    report: ReplayReport | None,
    written: WriterReport,
    side: ClientSide | None,
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
        **result,
        "records": msgspec.to_builtins(written) | {"complete": written.complete},
    }
    document["remarks"] = remarks(document)
    return document


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
        }
