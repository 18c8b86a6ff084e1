"""What a finished run is worth, from what its parts know: feeds `scenario.validity`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from agentx_engine.scenario import RunFacts, Validity, coverage, validity
from agentx_engine.transport.base import Outcome

if TYPE_CHECKING:
    from agentx_engine.cli.settings import ReplaySettings
    from agentx_engine.corpus import Corpus
    from agentx_engine.metrics.summary import Summary
    from agentx_engine.metrics.verdict import Verdict
    from agentx_engine.replay.options import ReplayReport

# How a run ends that was not cancelled by anybody or anything.
COMPLETE: Final = frozenset({"duration", "request_count", "tree_count"})


def judge_run(
    *,
    settings: ReplaySettings,
    corpus: Corpus,
    summary: Summary,
    report: ReplayReport | None,
    verdict: Verdict | None,
) -> Validity:
    """The verdict on the run. Without a report a defect of ours ended it, which counts as cancelled."""
    overflows = summary.outcomes.get(Outcome.CONTEXT_OVERFLOW.value, 0)
    cancelled_requests = summary.outcomes.get(Outcome.CANCELLED.value, 0)
    cancelled = report is None or report.interrupted or report.end_reason not in COMPLETE
    return validity(
        settings.applied,
        RunFacts(
            successes=summary.succeeded,
            errors=summary.finished - summary.succeeded - overflows - cancelled_requests,
            overflows=overflows,
            cancelled=cancelled,
            coverage=coverage(
                phase_start_ns=None if report is None else report.started_ns,
                duration_s=settings.duration_s,
                last_first_token_ns=summary.last_first_token_ns,
                last_itl_end_ns=summary.last_itl_end_ns,
                cancelled=cancelled,
            ),
            traces_kept=len(corpus),
            traces_dropped=corpus.dropped,
            t_star_ratios=settings.start_ratios,
            output_cap_tokens=settings.max_output_tokens,
            client=None if verdict is None else verdict.client,
        ),
    )


def validity_document(found: Validity) -> dict[str, Any]:
    """As `validity` of summary.json: the official fields, and ours beside them."""
    document: dict[str, Any] = msgspec.to_builtins(found)
    if found.coverage is not None:
        document["coverage"]["passed"] = found.coverage.passed
    return document
