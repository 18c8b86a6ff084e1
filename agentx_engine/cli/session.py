"""One replay from its settings to its artifacts: puts the pieces together and cleans up after them.

Order: folder, corpus, server (its own one if none was named), preflight, transport, replay, files. Whatever
ends the run, what was measured is written: after an interruption, a client error, a full disk. The exit
status says which it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from agentx_engine.artifacts.folder import RunFolder, default_name, pretty
from agentx_engine.artifacts.recorder import Recorder
from agentx_engine.artifacts.redact import Scrubber, secrets_of
from agentx_engine.artifacts.wall import pair_now
from agentx_engine.cli import documents
from agentx_engine.cli.display import Progress, View, choose
from agentx_engine.cli.main import CLIENT_ERROR, INTERRUPTED, OK, UNUSABLE, USAGE
from agentx_engine.cli.report import render
from agentx_engine.cli.server import Server, connect
from agentx_engine.cli.settings import ReplaySettings
from agentx_engine.cli.signals import stop_signals
from agentx_engine.cli.streams import complain
from agentx_engine.cli.validity import COMPLETE, judge_run
from agentx_engine.corpus import Corpus, open_corpus
from agentx_engine.errors import PreflightError, UserError
from agentx_engine.metrics.host import HostSampler
from agentx_engine.metrics.since import Since
from agentx_engine.metrics.summary import Summary
from agentx_engine.metrics.usage import Collector, Usage
from agentx_engine.prompt import BodyTemplate, PromptBuilder, default_pool
from agentx_engine.prompt.tokenizer import FittedPool, fit_pool
from agentx_engine.replay.corpus_trees import CorpusTrees
from agentx_engine.replay.engine import Replay
from agentx_engine.replay.ids import random_ids, seeded_ids
from agentx_engine.replay.options import ReplayOptions, ReplayReport
from agentx_engine.replay.protocols import IdFactory
from agentx_engine.replay.realclock import LoopClock
from agentx_engine.scenario import FailedRequestThreshold, Validity
from agentx_engine.transport.base import Outcome
from agentx_engine.transport.limits import ensure_sockets
from agentx_engine.transport.preflight import check_context
from agentx_engine.tree.options import TreeOptions

if TYPE_CHECKING:
    from agentx_engine.transport.native import NativeTransport

NS = 1_000_000_000
TICK_S = 0.25
PRIMER_LEAD_CAP_NS = 10 * NS
DEFECT = "client error, a defect of agentx-engine, please report it"


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * NS)


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
        self._sampler = HostSampler()
        self._measured: Since | None = None
        self._threshold = FailedRequestThreshold(settings.failed_request_threshold, settings.concurrency)
        self._fitted: FittedPool | None = None
        self._wall = pair_now()
        self._replay: Replay | None = None
        self._recorder: Recorder | None = None
        self._transport: NativeTransport | None = None
        self._progress: Progress | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._interrupts = 0
        self._facts: dict[str, Any] = {}
        self._report: ReplayReport | None = None
        self._side: documents.ClientSide | None = None
        self._error: str | None = None  # what ended the run outside the replay: a defect's traceback, or
        self._refused: UserError | None = None  # this
        self._unwritten: list[str] = []

    async def run(self) -> int:
        """The whole run; the exit status. UserError for what is found before anything was sent."""
        settings = self.settings
        self._task = asyncio.current_task()
        self._loop = loop = asyncio.get_running_loop()
        handled = stop_signals()
        for number in handled:
            loop.add_signal_handler(number, self.interrupt)
        folder: RunFolder | None = None
        try:
            folder = RunFolder(Path(settings.out) if settings.out else default_name())
            for text in () if settings.applied is None else settings.applied.warnings:
                self._say(text)
            if settings.applied is not None and settings.seed != 42:
                self._say(f"seed {settings.seed}")
            corpus = self._open_corpus()
            if settings.tokenizer is not None:
                self._fitted = await asyncio.to_thread(fit_pool, settings.tokenizer)
                self._say(f"tokenizer {self._fitted.report}")
            async with connect(settings, self._say, self._fitted) as server:
                if settings.isl == "wire":
                    server.overhead()  # refuses before anything is made
                corpus = self._select(corpus, server)
                # Subagents come on top of the lanes; how many at once is not known before the run.
                ensure_sockets(2 * settings.concurrency, len(server.addresses))
                facts = documents.before(
                    settings=settings,
                    run_id=self._run_id,
                    folder=folder,
                    corpus=corpus,
                    server=server,
                    wall=self._wall,
                    pool=None if self._fitted is None else self._fitted.report,
                )
                self._facts = self._scrub.json(facts)
                recorder = self._recorder = Recorder(
                    folder.path,
                    self._summary,
                    self._wall,
                    self._scrub,
                    fail_on_short=settings.fail_on_short,
                    template_tokens=server.template.overhead if server.template is not None else None,
                    template_taken_out=settings.isl == "wire",
                    on_profiling=self._on_profiling,
                    on_outcome=self._threshold.add,
                )
                self._write_json(folder, "run.json", self._facts)
                if self._unwritten:
                    raise UserError(f"--out: {self._unwritten[0]}.")
                try:
                    await self._measure(corpus, server, recorder)
                except UserError as error:
                    if self._replay is None:
                        raise
                    self._refused = error
                    self._error = self._scrub.text(str(error))
                except Exception:  # noqa: BLE001 - a defect of ours: what was measured is written all the same
                    self._error = self._scrub.text(traceback.format_exc())
            return await self._finish(folder, corpus, recorder)
        except asyncio.CancelledError:
            if not self._interrupts:
                raise
            self._say("interrupted before the first request")
            return INTERRUPTED
        finally:
            # The handlers go last: a further signal must not keep the folder from being taken back.
            if folder is not None and self._replay is None and self._error is None:
                if self._recorder is not None:
                    self._recorder.close()
                folder.discard()
            for number in handled:
                loop.remove_signal_handler(number)

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
        """For people; from any thread."""
        text = self._scrub.text(text)
        if self._progress is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._progress.say, text)
        elif self.settings.ui != "none":
            with contextlib.suppress(OSError):  # nobody can be told; the result says so, if it comes to that
                print(text, file=self._target, flush=True)

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
            max_request_tokens=settings.max_request_tokens,
            on_warning=lambda text: self._say(f"note: {text}"),
        )

    def _select(self, corpus: Corpus, server: Server) -> Corpus:
        """The traces that are replayed. PreflightError if the server cannot hold them."""
        settings, window = self.settings, server.report.context_window
        limit, cap = settings.max_context, settings.max_output_tokens
        if limit is None and settings.entries is not None:
            corpus = corpus.select(entries=settings.entries)
        if window is not None or limit == "auto":
            # What every prompt has on top; a template's tokens for further messages are not known here.
            added = server.marker_tokens if settings.cache_bust != "none" else 0
            if server.template is not None and settings.isl == "text":
                added += server.template.overhead(1, 1, 0)
            peak = max(corpus.peak_tokens(index, cap) for index in range(len(corpus)))
            decision = check_context(window, peak, limit, added)
            if decision.refusal is not None:
                raise PreflightError(decision.refusal)
            limit = decision.limit
        if limit is not None or settings.entries is not None:
            corpus = corpus.select(max_context=limit, entries=settings.entries, max_output_tokens=cap)
        large, rest = corpus.dropped.get("max_context"), corpus.dropped.get("entries")
        if large:
            self._say(f"--max-context: {large:,} traces need more than {limit:,} tokens and are left out")
        if rest:
            self._say(f"--entries: the first {len(corpus):,} traces are used, {rest:,} are left out")
        if settings.max_request_tokens is not None:
            self._say(
                f"--max-request-tokens: {corpus.requests_left_out:,} requests of more than "
                f"{settings.max_request_tokens:,} tokens are left out"
            )
        return corpus

    # -- the run

    async def _measure(self, corpus: Corpus, server: Server, recorder: Recorder) -> None:
        settings = self.settings
        # What can be refused stands before the replay, which is where a run begins.
        template = BodyTemplate(
            server.models,
            limit_field=server.limit_field,
            ignore_eos=settings.ignore_eos,
            include_usage=server.include_usage,
            extra=settings.extra_body,
        )
        trees = CorpusTrees(
            corpus,
            TreeOptions.harness() if settings.compat == "harness" else None,
            max_output_tokens=settings.max_output_tokens,
            limit=template.limit if server.limit_field in settings.extra_body else None,
        )
        pool = default_pool() if self._fitted is None else self._fitted.pool()
        overhead = server.overhead() if settings.isl == "wire" else None
        async with server.transport() as transport:
            if self._interrupts:  # and the cancellation went down in somebody's cleaning up
                raise asyncio.CancelledError
            self._transport = transport
            self._replay = replay = Replay(
                clock=LoopClock(),
                transport=transport,
                trees=trees,
                prompts=PromptBuilder(pool, settings.content_seed, template, overhead),
                recorder=recorder,
                options=self._options(server),
                ids=self._ids(),
                failure_policy=lambda record: self._threshold.exceeded,
            )
            ui = choose(settings.ui, self._target)
            progress = Progress(ui, self._target, self.view, settings.stats_interval_s)
            usage = Usage()
            self._collector.start()
            housekeeping = asyncio.get_running_loop().create_task(self._housekeep())
            try:
                async with progress:
                    self._progress = progress
                    self._report = await replay.run()
                    recorder.flush()
            finally:
                self._progress = None
                housekeeping.cancel()
                self._collector.stop()
                self._sampler.stop()
                self._side = documents.client_side(
                    transport,
                    self._measured or Since(transport),
                    sampler=self._sampler,
                    collector=self._collector,
                    process=usage.result(),
                    summary=self._summary,
                )
                self._transport = None

    def _on_profiling(self) -> None:
        """The measured phase begins: from here on the client is judged."""
        if self._transport is not None:
            self._measured = Since(self._transport)
            self._sampler.start()

    def _options(self, server: Server) -> ReplayOptions:
        settings = self.settings
        system_cap_ns = _ns(settings.system_idle_gap_cap_s)
        return ReplayOptions(
            concurrency=settings.concurrency,
            duration_ns=_ns(settings.duration_s),
            request_count=settings.request_count,
            grace_ns=int(settings.grace_s * NS),
            start_ratios=settings.start_ratios,
            seed=settings.seed,
            burst_starts=settings.burst_phase_starts,
            primer_lead_cap_ns=PRIMER_LEAD_CAP_NS if system_cap_ns is None else system_cap_ns,
            warmup_requests_per_lane=settings.warmup_requests_per_lane,
            warmup_duration_ns=_ns(settings.warmup_duration_s),
            warmup_grace_ns=_ns(settings.warmup_grace_s),
            system_idle_cap_ns=system_cap_ns,
            tree_idle_cap_ns=_ns(settings.trace_idle_gap_cap_s),
            child_pause=not settings.as_harness,
            release_dead=not settings.as_harness,
            fail_fast=settings.fail_fast,
            endpoints=len(server.endpoints),
            marker=settings.cache_bust != "none",
            marker_tokens=server.marker_tokens,
            run_id=self._run_id,
        )

    def _ids(self) -> IdFactory:
        """Random, unless the run is to be reproduced: then its ids are the same too."""
        settings = self.settings
        if settings.run_id is None:
            return random_ids
        key = f"{settings.run_id}:{settings.seed}".encode()
        return seeded_ids(int.from_bytes(hashlib.sha256(key).digest()[:8], "big"))

    async def _housekeep(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._collector.tick()

    def view(self) -> View:
        """What the display shows now."""
        if self._replay is None or self._recorder is None or self._transport is None:
            return View()
        counters, live = self._replay.counters, self._summary.live()
        warming = counters.phase == "warmup"
        if warming:  # of which the summary knows nothing
            live.finished = counters.finished
            live.failed = {kind.value: n for kind, n in counters.failed.items()}
        return View(
            elapsed_s=counters.elapsed_ns / NS,
            total_s=None if warming else self.settings.duration_s,
            state="warmup" if warming else counters.state,
            lanes=counters.lanes,
            lanes_idle=counters.lanes_idle,
            in_flight=counters.in_flight,
            finished=live.finished,
            failed=live.failed,
            tokens=self._transport.counters()["content_events"],
            ttft_p50_ms=live.ttft_p50_ms,
            trees_started=self._summary.trees_started,
            trees_finished=self._summary.trees_finished,
            dropped_records=self._recorder.writer_report.dropped,
        )

    # -- after the run

    async def _finish(self, folder: RunFolder, corpus: Corpus, recorder: Recorder) -> int:
        """Writes everything, shows the result, and gives the exit status."""
        written = await asyncio.to_thread(recorder.close)
        validity = judge_run(
            settings=self.settings,
            corpus=corpus,
            summary=self._summary,
            report=self._report,
            verdict=None if self._side is None else self._side.verdict,
        )
        document = documents.summary_document(
            settings=self.settings,
            run_id=self._run_id,
            corpus=corpus,
            summary=self._summary,
            report=self._report,
            written=written,
            side=self._side,
            validity=validity,
        )
        document = self._scrub.json(document)
        self._write_json(folder, "summary.json", document)
        self._facts["corpus"] |= await asyncio.to_thread(documents.digest, corpus)
        self._facts["corpus"]["warnings"] = corpus.warnings
        documents.after(self._facts, self._wall, self._report, self._side, self._error)
        self._write_json(folder, "run.json", self._scrub.json(self._facts))
        with contextlib.suppress(OSError):  # main() sees that stdout is not writable, and says so
            if self.settings.json_output:
                self._output.write(pretty(document).decode())
            else:
                colour = self._output.isatty() and not os.environ.get("NO_COLOR")
                self._output.write(render(document, str(folder.path), colour=colour) + "\n")
            self._output.flush()
        for problem in self._unwritten:
            self._complain(problem)
        return self._status(written.complete and not self._unwritten, validity)

    def _status(self, complete: bool, validity: Validity) -> int:
        report = self._report
        if self._refused is not None:
            self._complain(f"error: {self._error}")
            return self._refused.exit_code
        if self._error is not None or report is None:
            self._complain(f"{DEFECT}:\n{self._error}")
            return CLIENT_ERROR
        if report.end_reason == "client_error":
            self._complain(f"{DEFECT}:\n{report.traceback or report.error}")
            return CLIENT_ERROR
        if report.lost or report.unrecorded or Outcome.CLIENT_ERROR.value in self._summary.outcomes:
            self._complain(
                f"{DEFECT}: {report.lost} requests were lost, {len(report.unrecorded)} not recorded"
            )
            return CLIENT_ERROR
        if report.end_reason == "corpus":
            self._complain(f"error: {report.error}")
            return USAGE
        if report.interrupted:
            return INTERRUPTED
        unusable = list(self._unusable(report, validity))
        for reason in unusable:
            self._complain(reason)
        return UNUSABLE if unusable or not self._summary.succeeded or not complete else OK

    def _unusable(self, report: ReplayReport, validity: Validity) -> Iterator[str]:
        """Why a run that was measured and written is a failed one all the same."""
        if report.end_reason == "threshold":
            yield f"ended by --failed-request-threshold: {self._threshold.reason}"
        elif report.end_reason not in COMPLETE:
            yield f"ended early ({report.end_reason.replace('_', ' ')}){': ' if report.error else ''}" + (
                report.error or ""
            )
        if validity.scenario is not None and validity.coverage is not None and validity.coverage.error:
            yield validity.coverage.error
        if self.settings.require_client_ok and validity.client != "ok":
            yield "--require-client-ok: this client was the limit; the table says why"

    def _complain(self, text: str) -> None:
        complain(f"agentx-engine replay: {self._scrub.text(text)}")

    def _write_json(self, folder: RunFolder, name: str, value: Any) -> None:
        try:
            folder.write_json(name, value)
        except OSError as error:
            self._unwritten.append(f"{folder.path / name} cannot be written: {error.strerror or error}")
