"""One replay from its settings to its artifacts: puts the pieces together and cleans up after them.

Order: folder, corpus, server (its own one if none was named), preflight, transport, replay, files. Whatever
ends the run, what was measured is written: after an interruption, a client error, a full disk. The exit
status says which it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from agentx_engine import __version__
from agentx_engine.artifacts.facts import host_facts, versions
from agentx_engine.artifacts.folder import RunFolder, default_name
from agentx_engine.artifacts.recorder import Recorder
from agentx_engine.artifacts.redact import Scrubber, redact_headers, redact_json, redact_url, secrets_of
from agentx_engine.artifacts.wall import pair_now
from agentx_engine.artifacts.writer import WriterReport
from agentx_engine.cli.display import Progress, View, choose
from agentx_engine.cli.main import CLIENT_ERROR, INTERRUPTED, OK, UNUSABLE, USAGE
from agentx_engine.cli.report import render
from agentx_engine.cli.server import Server, connect
from agentx_engine.cli.settings import ReplaySettings
from agentx_engine.corpus import Corpus, open_corpus
from agentx_engine.errors import CorpusError, PreflightError, UserError
from agentx_engine.metrics.remarks import remarks
from agentx_engine.metrics.stats import histogram_statistics
from agentx_engine.metrics.summary import Summary
from agentx_engine.metrics.usage import Collector, Usage
from agentx_engine.prompt import BodyTemplate, PromptBuilder, default_pool
from agentx_engine.replay.corpus_trees import CorpusTrees
from agentx_engine.replay.engine import Replay
from agentx_engine.replay.ids import random_ids, seeded_ids
from agentx_engine.replay.options import ReplayOptions, ReplayReport
from agentx_engine.replay.realclock import LoopClock
from agentx_engine.transport.base import Outcome
from agentx_engine.transport.preflight import check_context
from agentx_engine.tree.options import TreeOptions

if TYPE_CHECKING:
    from agentx_engine.transport.native import NativeTransport

NS = 1_000_000_000
TICK_S = 0.25


def redacted(settings: ReplaySettings) -> dict[str, Any]:
    """The settings as they may be written down."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    plain["urls"] = [redact_url(url) for url in settings.urls]
    plain["api_key"] = None if settings.api_key is None else "[redacted]"
    plain["headers"] = [list(pair) for pair in redact_headers(settings.headers)]
    plain["extra_body"] = redact_json(settings.extra_body)
    return plain


class Session:
    """Runs once; `interrupt` is the signal handler."""

    def __init__(self, settings: ReplaySettings, output: TextIO, target: TextIO) -> None:
        """`output` takes the result (stdout), `target` everything that is said meanwhile."""
        self.settings = settings
        self._output = output
        self._target = target
        self._scrub = Scrubber(
            secrets_of(settings.api_key, settings.headers, settings.extra_body, settings.urls)
        )
        self._run_id = settings.run_id or secrets.token_hex(8)
        self._summary = Summary()
        self._collector = Collector()
        self._wall = pair_now()
        self._replay: Replay | None = None
        self._recorder: Recorder | None = None
        self._transport: NativeTransport | None = None
        self._task: asyncio.Task[Any] | None = None
        self._interrupts = 0
        self._facts: dict[str, Any] = {}

    # -- the outer frame

    async def run(self) -> int:
        """The whole run; the exit status. UserError before anything was sent."""
        settings = self.settings
        folder = RunFolder(Path(settings.out) if settings.out else default_name())
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.interrupt)
        began = False
        try:
            async with contextlib.AsyncExitStack() as stack:
                corpus = self._open_corpus()
                server = await stack.enter_async_context(connect(settings, self._say))
                corpus = self._select(corpus, server)
                self._describe(folder, corpus, server)
                folder.write_json("run.json", self._facts)
                began = True
                return await self._measure(folder, corpus, server)
        except asyncio.CancelledError:
            if not self._interrupts:
                raise
            self._say("interrupted before the run began")
            return INTERRUPTED
        except OSError as error:
            raise UserError(f"--out: {folder.path} cannot be written: {error.strerror or error}.") from None
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            if not began:
                folder.remove_if_empty()

    def interrupt(self) -> None:
        """Once: stop sending, let what is in flight return shortly. Twice: cancel it."""
        self._interrupts += 1
        if self._replay is None:
            if self._task is not None and self._interrupts == 1:
                self._task.cancel()
        elif self._interrupts == 1:
            self._replay.stop("interrupted")
        else:
            self._replay.abort()

    def _say(self, text: str) -> None:
        if self.settings.ui != "none":
            print(self._scrub.text(text), file=self._target, flush=True)

    # -- before the run

    def _open_corpus(self) -> Corpus:
        settings = self.settings
        if settings.corpus is None:
            from agentx_engine.corpus.synth import default_corpus

            path = default_corpus()
            self._say(f"no --corpus: replaying the small synthetic one, {path}")
        else:
            path = Path(settings.corpus)
        return open_corpus(
            path,
            compat_harness=settings.compat == "harness",
            on_warning=lambda text: self._say(f"note: {text}"),
        )

    def _select(self, corpus: Corpus, server: Server) -> Corpus:
        """The traces that are replayed. PreflightError if the server cannot hold them."""
        settings, window = self.settings, server.report.context_window
        limit = settings.max_context
        if window is not None or limit == "auto":
            # What every prompt has on top; a template's tokens for further messages are not known here.
            added = server.marker_tokens if settings.cache_bust != "none" else 0
            if server.template is not None:
                added += server.template.overhead(1, 1, 0)
            peak = max(corpus.peak_tokens(index) for index in range(len(corpus)))
            decision = check_context(window, peak, limit, added)
            if decision.refusal is not None:
                raise PreflightError(decision.refusal)
            limit = decision.limit
        if limit is None and settings.entries is None:
            return corpus
        return corpus.select(max_context=limit, entries=settings.entries)

    def _describe(self, folder: RunFolder, corpus: Corpus, server: Server) -> None:
        """The body of run.json, as far as it is known before the run."""
        settings = self.settings
        self._facts = self._scrub.json(
            {
                "schema": "agentx-engine/run/1",
                "run_id": self._run_id,
                "state": "running",
                "started_unix_ns": self._wall.unix_ns(time.monotonic_ns()),
                "wall_pairing": {"offset_ns": self._wall.offset_ns, "error_ns": self._wall.error_ns},
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
                "preflight": msgspec.to_builtins(server.report),
                "versions": versions(),
                "host": host_facts(server.hosts),
            }
        )

    # -- the run

    async def _measure(self, folder: RunFolder, corpus: Corpus, server: Server) -> int:
        settings = self.settings
        template = BodyTemplate(
            server.models,
            limit_field=server.limit_field,
            ignore_eos=settings.ignore_eos,
            include_usage=server.include_usage,
            extra=settings.extra_body,
        )
        harness = settings.compat == "harness"
        trees = CorpusTrees(corpus, TreeOptions.harness() if harness else None)
        self._recorder = recorder = Recorder(
            folder.path,
            self._summary,
            self._wall,
            self._scrub,
            fail_on_short=settings.fail_on_short,
            template_tokens=server.template.overhead if server.template is not None else None,
        )
        options = ReplayOptions(
            concurrency=settings.concurrency,
            duration_ns=None if settings.duration_s is None else int(settings.duration_s * NS),
            request_count=settings.request_count,
            grace_ns=int(settings.grace_s * NS),
            endpoints=len(server.endpoints),
            marker=settings.cache_bust != "none",
            marker_tokens=server.marker_tokens,
            run_id=self._run_id,
        )
        ids = random_ids
        if settings.run_id is not None:
            # A run that is to be reproduced has the same ids too.
            key = f"{settings.run_id}:{settings.seed}".encode()
            ids = seeded_ids(int.from_bytes(hashlib.sha256(key).digest()[:8], "big"))
        report: ReplayReport | None = None
        usage = Usage()
        counters: dict[str, Any] = {}
        try:
            async with server.transport() as transport:
                self._transport = transport
                replay = Replay(
                    clock=LoopClock(),
                    transport=transport,
                    trees=trees,
                    prompts=PromptBuilder(default_pool(), settings.content_seed, template),
                    recorder=recorder,
                    options=options,
                    ids=ids,
                )
                self._replay = replay
                mode = choose(settings.ui, self._target)
                usage = Usage()
                self._collector.start()
                housekeeping = asyncio.get_running_loop().create_task(self._housekeep())
                try:
                    async with Progress(mode, self._target, self.view):
                        report = await replay.run()
                finally:
                    housekeeping.cancel()
                    self._collector.stop()
                used = usage.result()
                counters = self._client_counters(transport, used)
        finally:
            written = await asyncio.to_thread(recorder.close)
        await self._write(folder, corpus, report, written, counters)
        return self._conclude(folder, report, written)

    async def _housekeep(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._collector.tick()

    def view(self) -> View:
        """What the display shows now."""
        if self._replay is None or self._recorder is None:
            return View()
        counters, live = self._replay.counters, self._summary.live()
        return View(
            elapsed_s=counters.elapsed_ns / NS,
            total_s=self.settings.duration_s,
            state=counters.state,
            lanes=counters.lanes,
            lanes_idle=counters.lanes_idle,
            in_flight=counters.in_flight,
            finished=live.finished,
            failed=live.failed,
            tokens=self._transport.counters()["content_events"] if self._transport else live.output_tokens,
            ttft_p50_ms=live.ttft_p50_ms,
            trees_started=self._summary.trees_started,
            trees_finished=self._summary.trees_finished,
            dropped_records=self._recorder.writer_report.dropped,
        )

    def _client_counters(self, transport: NativeTransport, used: dict[str, Any]) -> dict[str, Any]:
        """What only the transport and the process know about our own error."""
        histograms = transport.histograms()
        return {
            "read_lag_ms": histogram_statistics(histograms["read_lag"]),
            "reactor_turn_ms": histogram_statistics(histograms["reactor_turn"]),
            "collector_pause_ms": self._collector.result(),
            "reactor_cpu_s": transport.cpu_ns() / NS,
            "process": used,
            "reactor": transport.counters(),
            "transport": transport.describe(),
        }

    # -- after the run

    async def _write(
        self,
        folder: RunFolder,
        corpus: Corpus,
        report: ReplayReport | None,
        written: WriterReport,
        counters: dict[str, Any],
    ) -> None:
        reactor, transport = counters.pop("reactor", {}), counters.pop("transport", None)
        result = self._summary.result()
        result["client"] |= counters
        for name in ("stamps_missing", "stamps_discarded", "clock_steps"):
            result["client"][name] = reactor.get(name)
        elapsed = 0 if report is None else report.ended_ns - report.started_ns
        self._document: dict[str, Any] = self._scrub.json(
            {
                "schema": "agentx-engine/summary/1",
                "engine": {"name": "agentx-engine", "version": __version__},
                "run_id": self._run_id,
                "ended_by": "client_error" if report is None else report.end_reason,
                "interrupted": report is not None and report.interrupted,
                "elapsed_s": elapsed / NS,
                "settings": redacted(self.settings),
                **result,
                "records": msgspec.to_builtins(written) | {"complete": written.complete},
            }
        )
        self._document["remarks"] = remarks(self._document)
        facts = self._facts
        facts["state"] = "finished"
        facts["transport"] = transport
        facts["reactor_counters"] = reactor
        try:
            facts["corpus"]["digest"] = await asyncio.to_thread(lambda: corpus.digest)
        except CorpusError as error:
            facts["corpus"]["digest_error"] = str(error)
        facts["corpus"]["warnings"] = corpus.warnings
        facts["ended_unix_ns"] = self._wall.unix_ns(time.monotonic_ns())
        if report is not None:
            facts["replay"] = {
                "started_unix_ns": self._wall.unix_ns(report.started_ns),
                "stopped_unix_ns": self._wall.unix_ns(report.stopped_ns),
                "ended_unix_ns": self._wall.unix_ns(report.ended_ns),
                "end_reason": report.end_reason,
                "error": report.error,
                "traceback": report.traceback,
                "lost": report.lost,
                "unrecorded": len(report.unrecorded),
                "counters": msgspec.to_builtins(report.counts),
            }
        folder.write_json("summary.json", self._document)
        folder.write_json("run.json", self._scrub.json(facts))

    def _conclude(self, folder: RunFolder, report: ReplayReport | None, written: WriterReport) -> int:
        if self.settings.json_output:
            self._output.write((folder.path / "summary.json").read_text())
        else:
            self._output.write(render(self._document, str(folder.path)) + "\n")
        self._output.flush()
        if report is None or report.end_reason == "client_error":
            error = report.error if report is not None else "the replay gave no report"
            print(f"client error (a defect of agentx-engine, please report it): {error}", file=sys.stderr)
            if report is not None and report.traceback:
                print(self._scrub.text(report.traceback), file=sys.stderr)
            return CLIENT_ERROR
        if report.lost or report.unrecorded or Outcome.CLIENT_ERROR.value in self._summary.outcomes:
            print(
                f"client error: {report.lost} requests were lost and {len(report.unrecorded)} not recorded; "
                "please report this defect of agentx-engine",
                file=sys.stderr,
            )
            return CLIENT_ERROR
        if report.end_reason == "corpus":
            print(f"agentx-engine replay: error: {report.error}", file=sys.stderr)
            return USAGE
        if report.interrupted:
            return INTERRUPTED
        return OK if self._summary.succeeded and written.complete else UNUSABLE
