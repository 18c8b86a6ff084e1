"""docs/metrics.md names everything that is reported."""

from pathlib import Path

import pytest
from support.records import success

from agentx_engine.metrics.request import compute
from agentx_engine.metrics.summary import Summary
from agentx_engine.transport.base import Outcome, Stamps

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


@pytest.fixture(scope="module")
def text() -> str:
    return DOCS.read_text()


def test_every_stamp_and_outcome(text: str) -> None:
    for name in (*Stamps.__struct_fields__, *(o.value for o in Outcome)):
        assert f"`{name}`" in text, name


def test_every_number_of_the_summary(text: str) -> None:
    summary = Summary()
    record = success()
    summary.add(record, compute(record))
    result = summary.result()
    for group in ("latency_ms", "tokens", "client"):
        for name in result[group]:
            # Plain counts explain themselves.
            if name in ("content_events", "reads", "coalesced_events", "input_total", "output_total"):
                continue
            known = name.replace("dispatch_lag_ms", "dispatch_lag_armed_ms")
            assert known in text, name
