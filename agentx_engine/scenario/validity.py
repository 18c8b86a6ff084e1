"""What a finished run is worth: formally, by the official rules, and beyond them.

`submission_valid` means exactly what the official harness means by it, no more and no less: readers compare
it across programs. It does not look at failures, at where sessions were started, at how many traces were
left out, or at whether the client could keep up. Those stand beside it, each as a value of its own, and a
formally valid run that they put in doubt says so in `caveats`.

Source: agentx-v1, sections 7, 8.3, 8.4 and 11 (24, 25).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from agentx_engine.scenario.rules import MIN_VALID_DURATION_S

if TYPE_CHECKING:
    from agentx_engine.scenario.apply import Applied

OVERFLOW_RATE_BOUND: Final = 0.01
FAILURE_CAVEAT_BOUND: Final = 0.01
REQUIRED_COVERAGE: Final = 0.95

OVERFLOW: Final = "context_overflow_rate_exceeded"
CANCELLED: Final = "run_cancelled"
COVERAGE: Final = "insufficient_profile_metric_coverage"


class Coverage(msgspec.Struct, frozen=True):
    """How late in the measured phase the server was last seen at work.

    Ratios are of the configured duration, between 0 and 1; None if there was no such signal at all, or the
    start of the phase is not known. `skipped`: why the gate does not apply, None if it does. The gate asks
    for one late signal and nothing else: a server that was dead in between passes.
    """

    duration_s: float | None
    required: float
    ttft_ratio: float | None
    itl_ratio: float | None
    skipped: Literal["no duration", "short", "cancelled"] | None = None
    phase: str = "profiling"

    @property
    def passed(self) -> bool:
        if self.skipped is not None:
            return True
        return any(r is not None and r >= self.required for r in (self.ttft_ratio, self.itl_ratio))

    @property
    def error(self) -> str | None:
        """Why the run is to end with an error, a sentence; None if the gate is passed or skipped."""
        if self.passed:
            return None
        first, later = (
            "none" if r is None else f"{100 * r:.1f} % of the way" for r in (self.ttft_ratio, self.itl_ratio)
        )
        return (
            f"The server was last seen at work too early in the {self.duration_s:g} s of the {self.phase} "
            f"phase: last first token {first}, last answer with a token rate {later}; one of them must be at "
            f"{100 * self.required:g} %."
        )

    def exported(self) -> dict[str, Any] | None:
        """Its entry of `metadata.metric_duration_coverage`; None if the gate does not apply."""
        if self.skipped is not None:
            return None
        entry = {
            "phase_name": self.phase,
            "expected_duration_seconds": self.duration_s,
            "required_ratio": self.required,
            "ttft_ratio": self.ttft_ratio,
            "inter_token_latency_ratio": self.itl_ratio,
        }
        return {name: value for name, value in entry.items() if value is not None}


def coverage(
    *,
    phase_start_ns: int | None,
    duration_s: float | None,
    last_first_token_ns: int | None,
    last_itl_end_ns: int | None,
    cancelled: bool = False,
    required: float = REQUIRED_COVERAGE,
) -> Coverage:
    """The coverage gate of one measured phase.

    `last_first_token_ns` is the latest first token of any record, `last_itl_end_ns` the latest last event
    of a record that has an inter-token latency; times are ns of the clock of `phase_start_ns`. The gate
    applies to phases with a duration of at least 900 s that were not cancelled.
    """
    skipped: Literal["no duration", "short", "cancelled"] | None = None
    if duration_s is None:
        skipped = "no duration"
    elif duration_s < MIN_VALID_DURATION_S:
        skipped = "short"
    elif cancelled:
        skipped = "cancelled"

    def ratio(at_ns: int | None) -> float | None:
        if at_ns is None or phase_start_ns is None or not duration_s:
            return None
        return min(1.0, max(0.0, (at_ns - phase_start_ns) / (duration_s * 1e9)))

    return Coverage(duration_s, required, ratio(last_first_token_ns), ratio(last_itl_end_ns), skipped)


class RunFacts(msgspec.Struct, kw_only=True):
    """What is known of a run when it has ended. Counts are of the measured phase.

    successes, errors, overflows: exclusive; cancelled requests are in none of them. cancelled: the run was,
    by the user, by the failure threshold, or because warmup failed. traces_dropped: by reason, as
    {"max_context": 3}. t_star_ratios: earliest and latest start in a session; None = at their beginning.
    client_reasons: what made the client the limit, a few words each.
    """

    successes: int
    errors: int = 0
    overflows: int = 0
    cancelled: bool = False
    coverage: Coverage | None = None
    traces_kept: int | None = None
    traces_dropped: dict[str, int] = {}
    t_star_ratios: tuple[float, float] | None = None
    output_cap_tokens: int | None = None
    client: Literal["ok", "limited"] | None = None
    client_reasons: tuple[str, ...] = ()


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    """`scenario`, `submission_valid` and `submission_invalid_reasons` are the official fields; all else is
    ours.

    Without a scenario the first two are None. Shares are fractions; None where there is nothing to divide by.

    error_rate: errors / (successes + errors), as the official harness counts, which leaves overflows out.
    overflow_rate: overflows / all three. failure_rate: (errors + overflows) / all three. traces_kept_share:
    of all traces of the corpus.
    """

    scenario: str | None
    submission_valid: bool | None
    submission_invalid_reasons: tuple[str, ...]
    error_rate: float | None
    overflow_rate: float | None
    failure_rate: float | None
    traces_kept: int | None
    traces_kept_share: float | None
    traces_dropped: dict[str, int]
    t_star_ratios: tuple[float, float] | None
    output_cap_tokens: int | None
    client: Literal["ok", "limited"] | None
    coverage: Coverage | None
    caveats: tuple[str, ...]

    def metadata(self) -> dict[str, Any]:
        """The official fields as they stand in `metadata`: none without a scenario, no empty list of
        reasons.
        """
        if self.scenario is None:
            return {}
        fields: dict[str, Any] = {"scenario": self.scenario, "submission_valid": self.submission_valid}
        if self.submission_invalid_reasons:
            fields["submission_invalid_reasons"] = list(self.submission_invalid_reasons)
        entry = self.coverage.exported() if self.coverage is not None else None
        if entry is not None:
            fields["metric_duration_coverage"] = [entry]
        return fields


def validity(applied: Applied | None, facts: RunFacts) -> Validity:
    """The verdict on a run. `applied` is the scenario that it ran under, None = none."""
    total = facts.successes + facts.errors + facts.overflows
    overflow_rate = _share(facts.overflows, total)
    reasons: list[str] = []
    if applied is not None:
        reasons += applied.invalid_reasons
        if overflow_rate is not None and overflow_rate > OVERFLOW_RATE_BOUND:
            reasons.append(OVERFLOW)
        if facts.cancelled:
            reasons.append(CANCELLED)
        if facts.coverage is not None and not facts.coverage.passed:
            reasons.append(COVERAGE)
    valid = None if applied is None else not reasons
    kept = facts.traces_kept
    return Validity(
        scenario=None if applied is None else applied.scenario,
        submission_valid=valid,
        submission_invalid_reasons=tuple(reasons),
        error_rate=_share(facts.errors, facts.successes + facts.errors),
        overflow_rate=overflow_rate,
        failure_rate=_share(facts.errors + facts.overflows, total),
        traces_kept=kept,
        traces_kept_share=None if kept is None else _share(kept, kept + sum(facts.traces_dropped.values())),
        traces_dropped=dict(facts.traces_dropped),
        t_star_ratios=facts.t_star_ratios,
        output_cap_tokens=facts.output_cap_tokens,
        client=facts.client,
        coverage=facts.coverage,
        caveats=tuple(_caveats(facts)) if valid else (),
    )


def _caveats(facts: RunFacts) -> list[str]:
    """Sentences about a formally valid run that a reader must know, most serious first."""
    total = facts.successes + facts.errors + facts.overflows
    failed = facts.errors + facts.overflows
    out: list[str] = []
    if not facts.successes:
        out.append("Formally valid, but no request succeeded: there is no result.")
    elif failed / total > FAILURE_CAVEAT_BOUND:
        out.append(
            f"Formally valid, but {100 * failed / total:.1f} % of the requests failed ({facts.errors:,} "
            f"errors, {facts.overflows:,} context overflows of {total:,}): their latencies are missing, "
            "and the server had less to do."
        )
    if facts.client == "limited":
        because = f" ({'; '.join(facts.client_reasons)})" if facts.client_reasons else ""
        out.append(
            f"Formally valid, but the client was the limit{because}: the numbers are not the server's alone."
        )
    return out


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
