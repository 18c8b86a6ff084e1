"""The table of results, and the remarks under it."""

from typing import Any

import pytest
from support.records import MS, failure, success

from agentx_engine.artifacts.writer import WriterReport
from agentx_engine.cli.report import WIDTH, number, render
from agentx_engine.metrics.record import RequestRecord
from agentx_engine.metrics.remarks import remarks
from agentx_engine.metrics.request import compute
from agentx_engine.metrics.summary import Summary
from agentx_engine.transport.base import Outcome, Usage


def document(records: list[RequestRecord], written: WriterReport | None = None) -> dict[str, Any]:
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
        "records": {
            "dropped": written.dropped,
            "lost": written.lost,
            "unfinished": written.unfinished,
            "error": written.error,
            "complete": written.complete,
        },
    }
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
    late = remarks(document([success(i, lag=5 * MS) for i in range(5)]))
    assert late == ["This client sent late: dispatch lag p99 5.00 ms for requests known in advance."]
    assert "5 of 5" in remarks(document([success(i, usage=None) for i in range(5)]))[0]
    burst = success(gaps=(0, 0, 0), slack=(9 * MS, 9 * MS, 9 * MS, 0), usage=Usage(prompt=1000, completion=4))
    assert any("uncertain by more than 1 ms" in r for r in remarks(document([burst])))
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
