"""The table of results, and the remarks under it."""

from typing import Any

import msgspec
import pytest
from support.records import MS, failure, success

from agentx_engine.artifacts.writer import WriterReport
from agentx_engine.cli.report import PLAIN, RED, WIDTH, number, render
from agentx_engine.cli.validity import validity_document
from agentx_engine.metrics.record import RequestRecord
from agentx_engine.metrics.remarks import remarks
from agentx_engine.metrics.request import compute
from agentx_engine.metrics.summary import Summary
from agentx_engine.metrics.verdict import Inputs, Spread, Stall, ThreadLoad, Verdict, judge
from agentx_engine.scenario import SCENARIOS, RunFacts, Validity, apply
from agentx_engine.scenario import validity as make_validity
from agentx_engine.transport.base import Outcome, Usage


def inputs(**changes: Any) -> Inputs:
    calm: dict[str, Any] = {
        "seconds": 600.0,
        "dispatch_lag_armed_ms": Spread(50, 0.02, 0.1, 0.2),
        "dispatch_lag_reactive_ms": Spread(50, 0.1, 0.3, 0.5),
        "events": 1000,
        "events_slack_over_1ms": 0,
        "reactor_stall": Stall("reactor", 2.0, 1.0),
        "loop_stall": Stall("event loop", 3.0, 1.0),
        "threads": [ThreadLoad("reactor", 0.1, 0.2, 5.0)],
        "planned": 100,
        "achieved": 100,
        "throttled_s": 0.0,
        "steal_share": 0.0,
        "involuntary_switches": 5,
        "collector_pauses_ms": Spread(),
        "reads": 1000,
        "reads_without_kernel_stamp": 0,
    }
    return Inputs(**(calm | changes))


OK = judge(inputs())
assert OK.ok


def unruled() -> Validity:
    return make_validity(None, RunFacts(successes=5, traces_kept=5))


def document(
    records: list[RequestRecord],
    written: WriterReport | None = None,
    verdict: Verdict | None = None,
    validity: Validity | None = None,
    **changes: Any,
) -> dict[str, Any]:
    summary = Summary()
    for record in records:
        summary.add(record, compute(record))
    written = written or WriterReport()
    body = {
        "run_id": "abc",
        "elapsed_s": 600.0,
        "ended_by": "request_count",
        "settings": {"concurrency": 64, "urls": ["http://a-host-name.cluster.example:8000"] * 3},
        **summary.result(),
        "verdict": msgspec.to_builtins(verdict or OK),
        "validity": validity_document(validity or unruled()),
        "corpus": {"traces": 5, "left_out": {}, "requests_left_out": 0},
        "warmup": None,
        "schedule": None,
        "records": {
            "dropped": written.dropped,
            "lost": written.lost,
            "unfinished": written.unfinished,
            "error": written.error,
            "complete": written.complete,
        },
    }
    body |= changes
    return body | {"remarks": remarks(body)}


def test_fits_and_says_everything() -> None:
    text = render(
        document(
            [success(i) for i in range(2000)] + [failure(Outcome.HTTP_STATUS, status=503, error="busy " * 80)]
        ),
        "runs/x",
    )
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    for said in ("2,000 succeeded, 1 failed", "TTFT", "p99", "dispatch lag, armed", "http_status 503: busy",
                 "artifacts    runs/x", "66.7 % of blocks", "62.7 %"):  # fmt: skip
        assert said in text, said


def test_an_empty_run_has_no_numbers() -> None:
    text = render(document([]), "runs/x")
    assert "No request finished." in text
    assert "not reported" in text
    assert "nan" not in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.05, "0.050"),
        (9.9874, "9.987"),
        (12.345, "12.35"),
        (123.45, "123.5"),
        (12345.6, "12,346"),
        (5, "5"),
    ],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_remarks_for_what_makes_numbers_mean_less() -> None:
    assert remarks(document([success(i) for i in range(5)])) == []
    assert remarks(document([failure(Outcome.RESET)]))[0] == "No request succeeded: there is no result."
    assert "5 of 5" in remarks(document([success(i, usage=None) for i in range(5)]))[0]
    late = document([success(i, lag=5 * MS) for i in range(5)])
    assert remarks(late) == []  # that is the verdict's to say
    short = remarks(document([success(usage=Usage(prompt=1000, completion=5), max_tokens=500)]))
    assert short == ["1 of 1 (100.0 %) answers were shorter than was asked for."]
    cut = remarks(document([success(usage=Usage(prompt=100, completion=5))]))
    assert "another tokenizer" in cut[0]
    full = remarks(document([success()], WriterReport(lost=3, error="/x: No space left on device")))
    assert full == ["3 records are missing from the files: /x: No space left on device."]
    broken = success()
    broken.result.stamps.first_sent = broken.result.stamps.due - 1
    assert "please report: sent_before_due 1" in remarks(document([broken]))[0]


def test_a_server_that_does_not_stream() -> None:
    """kekzl/imp#754: all frames at the end; TTFT is the latency and ITL about 0."""
    records = [
        success(
            i,
            gaps=(0,) * 39,
            slack=(900_000,) * 39 + (0,),
            usage=Usage(prompt=1000, completion=40),
            max_tokens=40,
        )
        for i in range(3)
    ]
    assert any("does not really stream" in r for r in remarks(document(records)))


def test_the_verdict_is_shown_with_its_reasons() -> None:
    records = [success(i) for i in range(5)]
    assert "\nclient: ok\n" in render(document(records), "runs/x")
    slow = judge(inputs(dispatch_lag_armed_ms=Spread(50, 1.0, 7.5, 9.0), throttled_s=60.0))
    shown = render(document(records, verdict=slow), "runs/x")
    assert "client: LIMITED" in shown
    assert "dispatch lag, armed: p99 7.5 ms" in shown
    assert "cgroup throttling: 10 % of the time" in shown
    assert RED not in shown
    red = render(document(records, verdict=slow), "runs/x", colour=True)
    assert f"{RED}client: LIMITED" in red
    assert red.count(RED) == red.count(PLAIN) >= 3
    assert max(len(line) for line in shown.splitlines()) <= WIDTH


PINNED = {"loader": "semianalysis_cc_traces_weka_062126"}


def test_a_formally_valid_run_that_is_not_worth_much() -> None:
    """Each thing is said once: caveats take the place of the remarks about the same."""
    records = [success(i) for i in range(90)] + [failure(Outcome.RESET, i) for i in range(90, 100)]
    facts = RunFacts(successes=90, errors=10, traces_kept=5, client="limited")
    applied = apply(SCENARIOS["agentx"], PINNED)
    body = document(records, validity=make_validity(applied, facts))
    assert body["validity"]["submission_valid"] is True
    assert len([r for r in body["remarks"] if "failed" in r]) == 1
    shown = render(body, "runs/x")
    assert "agentx: submission_valid true" in shown
    assert "Formally valid, but 10.0 % of the requests failed" in " ".join(shown.split())
    assert "Formally valid, but the client was the limit" in " ".join(shown.split())
    nothing = make_validity(applied, RunFacts(successes=0, errors=1))
    assert remarks(document([failure(Outcome.RESET)], validity=nothing)) == [
        "Formally valid, but no request succeeded: there is no result."
    ]


def test_an_invalid_run_says_why() -> None:
    facts = RunFacts(successes=90, overflows=10, cancelled=True)
    body = document([success()], validity=make_validity(apply(SCENARIOS["agentx"], PINNED), facts))
    shown = " ".join(render(body, "runs/x").split())
    assert "submission_valid false (context_overflow_rate_exceeded, run_cancelled)" in shown


def test_what_was_left_out_and_the_warmup() -> None:
    warmup = {
        "requests": 50, "by_outcome": {"success": 48, "reset": 2}, "primers": 20, "extra_requests": 30,
        "extra_missing": 10, "primed_s": 5.0, "ended_s": 12.5,
    }  # fmt: skip
    schedule = {"pauses_dropped": 3, "pauses_dropped_s": 4000.0, "held_by_dead": 0, "barriers_broken": 2}
    corpus = {"traces": 5, "left_out": {"max_context": 3, "entries": 2}, "requests_left_out": 7}
    body = document([success()], warmup=warmup, schedule=schedule, corpus=corpus)
    shown = " ".join(render(body, "runs/x").split())
    assert "5 traces; left out: 3 traces by max-context, 2 traces by entries, 7 requests by max-req" in shown
    assert "20 primers and 30 requests more, 10 missing, 12.5 s; not counted" in shown
    assert "2 of 50 (4.0 %) warmup requests failed" in shown
    assert "3 groups of subagents started without the recorded pause before them, 4,000 s" in shown
    assert "2 turns were sent although" in shown
