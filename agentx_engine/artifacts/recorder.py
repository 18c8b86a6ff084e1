"""Where finished requests go: into the summary, and as lines into the run's folder.

The replay calls it on the scheduler's thread; a call costs tens of microseconds and never blocks.
"""

from __future__ import annotations

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
        result = record.result
        if result.error is not None or result.error_type is not None:
            # Scrubbed here, once, so that neither the summary nor a line can show a secret.
            result.error = None if result.error is None else self._scrub.text(result.error)
            result.error_type = None if result.error_type is None else self._scrub.text(result.error_type)
        metrics = compute(record, self._template_tokens, template_taken_out=self._template_taken_out)
        failure = SHORT_ANSWER if self._fail_on_short and result.outcome.ok and metrics.short_answer else None
        if self._on_outcome is not None and record.identity.phase == "profiling":
            self._on_outcome(failure or result.outcome.value)
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
        return self._writer.close(timeout_s)
