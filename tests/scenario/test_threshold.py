"""When a run is given up (agentx-v1, section 7)."""

import pytest

from agentx_engine.scenario import FailedRequestThreshold
from agentx_engine.transport.base import Outcome

GOOD, BAD = Outcome.SUCCESS, Outcome.HTTP_STATUS


def feed(threshold, outcomes):
    """How many outcomes it took; None if the run was not to be cancelled."""
    for count, outcome in enumerate(outcomes, 1):
        if threshold.add(outcome):
            return count
    return None


@pytest.mark.parametrize(
    "concurrency, ratio, outcomes, after",
    [
        (1, 0.1, [BAD] * 10, 10),  # never before 10 records
        (64, 0.1, [BAD] * 64, 64),  # nor before as many as there are lanes
        (64, 0.1, [BAD] * 63, None),
        (1, 0.1, [BAD] + [GOOD] * 9, None),  # 10 % is not more than 10 %
        (1, 0.1, [BAD, BAD] + [GOOD] * 8, 10),  # a success may be the record that makes it enough
        (1, 0.1, [GOOD] * 10 + [BAD, BAD], 12),
        (1, 0.1, [GOOD] * 100, None),
        (1, 0.0, [GOOD] * 30 + [BAD], 31),
        (1, 1.0, [BAD] * 100, None),
        (1, None, [BAD] * 100, None),
    ],
)
def test_when(concurrency, ratio, outcomes, after):
    assert feed(FailedRequestThreshold(ratio, concurrency), outcomes) == after


def test_overflows_are_records_but_no_errors():
    threshold = FailedRequestThreshold(0.1, 1)
    assert feed(threshold, [Outcome.CONTEXT_OVERFLOW] * 50 + [BAD] * 5) is None
    assert (threshold.records, threshold.errors) == (55, 5)
    assert threshold.add(BAD) is True  # 6 of 56


def test_cancelled_requests_are_no_records():
    threshold = FailedRequestThreshold(0.1, 1)
    assert feed(threshold, [Outcome.CANCELLED] * 100) is None
    assert threshold.records == 0


@pytest.mark.parametrize(
    "outcome", [o for o in Outcome if o not in ("success", "context_overflow", "cancelled")]
)
def test_every_other_outcome_is_an_error(outcome):
    threshold = FailedRequestThreshold(0.5, 1)
    threshold.add(outcome)
    assert (threshold.records, threshold.errors) == (1, 1)


def test_a_short_answer_that_is_a_failure_is_an_error():
    threshold = FailedRequestThreshold(0.5, 1)
    threshold.add("short_answer")
    assert threshold.errors == 1


def test_once_exceeded_it_stays_so():
    threshold = FailedRequestThreshold(0.1, 1)
    assert feed(threshold, [BAD, BAD] + [GOOD] * 8) == 10
    assert threshold.add(GOOD)
    assert feed(threshold, [Outcome.CANCELLED]) == 1
    for _ in range(100):
        threshold.add(GOOD)
    assert threshold.exceeded


def test_the_reason():
    threshold = FailedRequestThreshold(0.1, 1)
    feed(threshold, [BAD, BAD] + [GOOD] * 8)
    assert threshold.reason == "2 of 10 requests failed, with a bound of 10 % on failures."


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_out_of_range(ratio):
    with pytest.raises(ValueError, match="between 0 and 1"):
        FailedRequestThreshold(ratio, 1)
