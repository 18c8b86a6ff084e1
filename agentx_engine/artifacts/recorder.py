"""Where finished requests go: into the summary, and as lines into the run's folder.

The replay calls it on the scheduler's thread, at the moment when an answer has ended and the requests that
waited for it are to be sent. So a call only takes the record; what costs something (values, summary, line:
up to a millisecond) is done a little later, one record at a time, while the loop has nothing to arm.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path

from agentx_engine.artifacts.folder import CANCELLED, CONTEXT_OVERFLOW, PROFILE_EXPORT
from agentx_engine.artifacts.lines import encode_line
from agentx_engine.artifacts.redact import Scrubber
from agentx_engine.artifacts.wall import WallPairing
from agentx_engine.artifacts.writer import LineWriter, WriterReport
from agentx_engine.errors import UserError
from agentx_engine.metrics.record import RequestIdentity, RequestRecord
from agentx_engine.metrics.request import TemplateTokens, compute
from agentx_engine.metrics.summary import SHORT_ANSWER, Summary
from agentx_engine.replay.protocols import TreeEnd, TreeIdentity
from agentx_engine.transport.base import Outcome

LATER_S = 0.003  # behind an answer's end: its successors have been built and armed by then
_FILES = {Outcome.CANCELLED: CANCELLED, Outcome.CONTEXT_OVERFLOW: CONTEXT_OVERFLOW}


class Recorder:
    """Cancelled requests and context overflows have files of their own: readers of profile_export.jsonl
    count every line that is there."""

    def __init__(
        self,
        folder: Path,
        summary: Summary,
        wall: WallPairing,
        scrub: Scrubber,
        *,
        fail_on_short: bool = False,
        template_tokens: TemplateTokens | None = None,
        template_taken_out: bool = False,
        on_profiling: Callable[[], None] | None = None,
        on_outcome: Callable[[str], object] | None = None,
    ) -> None:
        """`fail_on_short` counts a short answer as a failure. `on_profiling` is called when the first request
        of the measured phase has been armed, `on_outcome` with the outcome of each of them: an `Outcome` or
        SHORT_ANSWER. UserError for an unwritable folder.
        """
        self._on_profiling = on_profiling
        self._on_outcome = on_outcome
        self._template_taken_out = template_taken_out
        self._template_tokens = template_tokens
        self._fail_on_short = fail_on_short
        self._summary = summary
        self._wall = wall
        self._scrub = scrub
        self._waiting: deque[RequestRecord] = deque()
        self._defect: BaseException | None = None
        try:
            self._writer = LineWriter(folder, create=(PROFILE_EXPORT,))
        except OSError as error:
            raise UserError(f"--out: {error.filename} cannot be written: {error.strerror}.") from None

    @property
    def writer_report(self) -> WriterReport:
        return self._writer.report

    def started(self, identity: RequestIdentity) -> None:
        if identity.phase == "profiling":
            self._summary.requests_started += 1
            if self._on_profiling is not None:
                self._on_profiling()
                self._on_profiling = None

    def finished(self, record: RequestRecord) -> None:
        """Takes a record. Raises what went wrong with an earlier one, which is a defect."""
        if self._defect is not None:
            raise self._defect
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None or self._fail_on_short:  # whether an answer is too short must be known at once
            self._take(record)
            return
        self._tell(record, None)
        self._waiting.append(record)
        if len(self._waiting) == 1:
            loop.call_later(LATER_S, self._work, loop)

    def flush(self) -> None:
        """Works off what was put off. Raises what went wrong, which is a defect."""
        while self._waiting and self._defect is None:
            self._take(self._waiting.popleft(), told=True)
        if self._defect is not None:
            raise self._defect

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._waiting or self._defect is not None:
            return
        record = self._waiting.popleft()
        try:
            self._take(record, told=True)
        except Exception as error:  # noqa: BLE001 - raised at the next record, where the replay sees it
            self._defect = error
            return
        if self._waiting:
            # Others first; under a backlog of records the pauses between them shrink to nothing.
            loop.call_later(LATER_S / (1 + len(self._waiting)), self._work, loop)

    def _tell(self, record: RequestRecord, failure: str | None) -> None:
        if self._on_outcome is not None and record.identity.phase == "profiling":
            self._on_outcome(failure or record.result.outcome.value)

    def _take(self, record: RequestRecord, told: bool = False) -> None:
        result = record.result
        if result.error is not None or result.error_type is not None:
            # Scrubbed here, once, so that neither the summary nor a line can show a secret.
            result.error = None if result.error is None else self._scrub.text(result.error)
            result.error_type = None if result.error_type is None else self._scrub.text(result.error_type)
        metrics = compute(record, self._template_tokens, template_taken_out=self._template_taken_out)
        failure = SHORT_ANSWER if self._fail_on_short and result.outcome.ok and metrics.short_answer else None
        if not told:
            self._tell(record, failure)
        self._summary.add(record, metrics, failure)
        line = encode_line(record, metrics, self._wall, failure)
        self._writer.put(_FILES.get(result.outcome, PROFILE_EXPORT), line)

    def withdrawn(self, identity: RequestIdentity) -> None:
        if identity.phase == "profiling":
            self._summary.requests_started -= 1

    def tree_started(self, tree: TreeIdentity, start_ns: int) -> None:
        self._summary.trees_started += 1

    def tree_finished(self, tree: TreeIdentity, reason: TreeEnd, end_ns: int) -> None:
        self._summary.trees_finished += reason == "drained"

    def close(self, timeout_s: float = 30.0) -> WriterReport:
        """Writes what is left; after a defect, which `flush` has raised, only what had been taken before."""
        if self._defect is None:
            self.flush()
        return self._writer.close(timeout_s)
