"""The verdict: each bound turns it, missing inputs are named, the sampler finds what the host did."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import msgspec
import pytest
import uvloop

from agentx_engine.core.hdr import Histogram
from agentx_engine.metrics import host
from agentx_engine.metrics.host import HostSampler, cpu_sample, sample
from agentx_engine.metrics.verdict import Inputs, Spread, Stall, ThreadLoad, Verdict, judge

GOOD = Inputs(
    seconds=60.0,
    dispatch_lag_armed_ms=Spread(1000, 0.02, 0.4, 3.0),
    dispatch_lag_reactive_ms=Spread(1000, 0.2, 1.1, 4.0),
    events=1_000_000,
    events_slack_over_1ms=100,
    reactor_stall=Stall("reactor", 8.0, 3.0),
    loop_stall=Stall("event loop", 12.0, 4.0),
    loop_lag_ms=Spread(3000, 0.1, 2.0, 12.0),
    threads=[ThreadLoad("main thread", 0.2, 0.4, 3.0, waiting=0.0), ThreadLoad("reactor", 0.4, 0.6, 3.0)],
    throttled_s=0.0,
    throttled_periods=0,
    steal_share=0.001,
    involuntary_switches=100,
    collector_pauses_ms=Spread(60, 0.5, 1.0, 2.0),
    planned=1000.0,
    achieved=999.0,
    reads=900_000,
    reads_without_kernel_stamp=0,
    read_lag_ms=Spread(900_000, 0.02, 30.0, 80.0),
    reactor_turn_ms=Spread(900_000, 0.02, 0.5, 8.0),
)


def with_(**changes: object) -> Verdict:
    return judge(msgspec.structs.replace(GOOD, **changes))


def test_a_good_client_is_ok() -> None:
    verdict = judge(GOOD)
    assert verdict.ok and verdict.client == "ok"
    assert verdict.reasons == [] and verdict.missing == [] and verdict.notes == []
    assert verdict.line() == "client: ok"
    assert all(len(line) <= 100 for line in verdict.table().splitlines())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dispatch_lag_armed_ms": Spread(1000, 0.1, 1.01, 2.0)}, "dispatch lag, armed: p99 1.01 ms"),
        ({"dispatch_lag_reactive_ms": Spread(1000, 0.1, 2.01, 3.0)}, "dispatch lag, reactive: p99 2.01 ms"),
        ({"events_slack_over_1ms": 10_001}, "slack above 1 ms: 1 %"),
        ({"reactor_stall": Stall("reactor", 101.0, 7.5)}, "longest stall, reactor: 101 ms at 7.50 s"),
        ({"loop_stall": Stall("event loop", 250.0, 9.0)}, "longest stall, event loop: 250 ms at 9.00 s"),
        ({"threads": [ThreadLoad("reactor 1", 0.5, 0.86, 1.0)]}, "CPU, reactor 1: 86 % of a core"),
        ({"throttled_s": 0.61, "throttled_periods": 12}, "cgroup throttling: 1.02 % of the time, 12 periods"),
        ({"steal_share": 0.051}, "steal: 5.1 %"),
        ({"achieved": 989.0}, "achieved against planned: 98.9 %"),
        ({"collector_pauses_ms": Spread(60, 0.5, 1.0, 120.0)}, "collector pauses: max 120 ms"),
        ({"reads_without_kernel_stamp": 9_100}, "read lag: p99 30 ms, 1.01 % of the reads unstamped"),
    ],
)
def test_each_bound_that_is_passed_limits_the_client(change: dict[str, object], reason: str) -> None:
    verdict = with_(**change)
    assert verdict.client == "limited"
    assert len(verdict.reasons) == 1
    assert verdict.reasons[0].startswith(reason), verdict.reasons
    assert "bound" in verdict.reasons[0]
    assert reason in verdict.line()
    assert "\n! " in verdict.table()


@pytest.mark.parametrize(
    "change",
    [
        {"dispatch_lag_armed_ms": Spread(1000, 0.1, 1.0, 2.0)},
        {"events_slack_over_1ms": 10_000},
        {"reactor_stall": Stall("reactor", 100.0, 7.5)},
        {"threads": [ThreadLoad("reactor", 0.5, 0.85, 1.0)]},
        {"achieved": 990.0},
        {"reads_without_kernel_stamp": 9_000},  # read lag does not matter while the stamps are the kernel's
    ],
)
def test_a_value_at_its_bound_is_ok(change: dict[str, object]) -> None:
    assert with_(**change).ok


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"dispatch_lag_armed_ms": None, "dispatch_lag_reactive_ms": None}, "dispatch lag"),
        ({"dispatch_lag_armed_ms": Spread(), "dispatch_lag_reactive_ms": Spread()}, "dispatch lag"),
        ({"events": 0, "events_slack_over_1ms": 0}, "slack"),
        ({"reactor_stall": None}, "reactor stalls"),
        ({"loop_stall": None}, "event loop stalls"),
        ({"threads": None}, "CPU of the threads"),
    ],
)
def test_without_an_essential_input_the_client_is_not_called_ok(change: dict[str, object], name: str) -> None:
    verdict = with_(**change)
    assert verdict.client == "limited"
    assert verdict.missing == [name]
    assert verdict.reasons == [f"{name} was not measured"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"throttled_s": None}, "cgroup throttling"),
        ({"steal_share": None}, "steal"),
        ({"involuntary_switches": None}, "involuntary switches"),
        ({"collector_pauses_ms": None}, "collector pauses"),
        ({"planned": None}, "achieved against planned rate"),
        ({"dispatch_lag_reactive_ms": None}, "dispatch lag, reactive"),
        ({"reads": None}, "kernel stamps"),
    ],
)
def test_other_missing_inputs_are_named(change: dict[str, object], name: str) -> None:
    verdict = with_(**change)
    assert verdict.ok
    assert verdict.missing == [name]
    assert name in verdict.line()
    assert f"? {name}" in verdict.table()


def test_a_kind_of_request_that_did_not_occur_is_not_missing() -> None:
    verdict = with_(dispatch_lag_reactive_ms=Spread())
    assert verdict.ok and verdict.missing == []
    assert "there were no such requests" in verdict.table()


def test_nothing_measured_is_not_ok() -> None:
    verdict = judge(Inputs(seconds=0.0))
    assert verdict.client == "limited" and "nothing was measured" in verdict.reasons
    assert set(verdict.missing) >= {"dispatch lag", "slack", "reactor stalls"}


def test_causes_are_offered_beside_a_limited_verdict() -> None:
    busy = [ThreadLoad("reactor", 0.4, 0.6, 3.0, waiting=0.3)]
    verdict = with_(threads=busy, loop_stall=Stall("event loop", 300, 1), throttled_s=5.0, steal_share=0.1)
    assert len(verdict.notes) == 3
    assert any("30 % of the time for a core" in note for note in verdict.notes)
    assert judge(msgspec.structs.replace(GOOD, threads=busy)).notes == []


def test_json_has_everything() -> None:
    document = msgspec.json.decode(msgspec.json.encode(with_(steal_share=0.2)))
    assert document["client"] == "limited"
    assert document["inputs"]["steal_share"] == 0.2 and document["bounds"]["steal_share"] == 0.05
    assert msgspec.convert(document, Verdict) == with_(steal_share=0.2)


def test_the_longest_stall_is_the_longer_of_the_two() -> None:
    longest = judge(GOOD).longest_stall
    assert longest is not None and longest.where == "event loop"
    only = with_(loop_stall=None).longest_stall
    assert only is not None and only.where == "reactor"


# -- The sampler --------------------------------------------------------------------------------------


class FakeTransport:
    def __init__(self) -> None:
        lag = Histogram()
        lag.record(50_000)
        self._histograms = dict.fromkeys(
            ("dispatch_lag_armed", "dispatch_lag_reactive", "read_lag", "reactor_turn"), lag
        )

    def counters(self) -> dict[str, int]:
        return {
            "events": 100,
            "slack_over_1ms": 1,
            "longest_turn_ns": 5_000_000,
            "longest_turn_at_ns": time.monotonic_ns(),
            "reads": 90,
            "stamps_missing": 2,
            "stamps_discarded": 1,
        }

    def histograms(self) -> dict[str, Histogram]:
        return self._histograms


class ClosedTransport:
    def counters(self) -> dict[str, int]:
        return {}

    def histograms(self) -> dict[str, Histogram]:
        return {}


def spin(cpu_seconds: float) -> None:
    until = time.thread_time() + cpu_seconds
    while time.thread_time() < until:
        pass


def sampled(seconds: float, work: float = 0.0) -> HostSampler:
    async def run() -> HostSampler:
        sampler = HostSampler()
        with sampler:
            await asyncio.sleep(seconds / 2)
            time.sleep(work)  # noqa: ASYNC251 - the stall
            await asyncio.sleep(seconds / 2)
        sampler.stop()
        return sampler

    return uvloop.run(run())


def test_a_stall_of_the_loop_is_found_with_its_time() -> None:
    before = time.monotonic()
    stall = sampled(0.1, work=0.2).inputs(None).loop_stall
    assert stall is not None and stall.where == "event loop"
    assert stall.ms >= 175
    assert 0 <= stall.at_s <= time.monotonic() - before


def test_inputs_come_from_the_transport_and_the_process() -> None:
    pauses = Histogram()
    inputs = sampled(0.1).inputs(FakeTransport(), collector_pauses=pauses, planned=10, achieved=9)
    assert inputs.seconds >= 0.09
    assert (inputs.events, inputs.events_slack_over_1ms) == (100, 1)
    assert (inputs.reads, inputs.reads_without_kernel_stamp) == (90, 3)
    assert inputs.reactor_stall is not None and inputs.reactor_stall.ms == 5
    assert inputs.collector_pauses_ms == Spread()
    assert (inputs.planned, inputs.achieved) == (10, 9)
    assert inputs.threads is None  # no thread of a reactor: its CPU was not measured, and that is said
    assert "CPU of the threads" in judge(inputs).missing


def test_a_closed_transport_gives_no_good_verdict() -> None:
    verdict = sampled(0.05).verdict(ClosedTransport())
    assert not verdict.ok and "dispatch lag" in verdict.missing


def test_the_cpu_of_every_thread_is_sampled() -> None:
    ready, leave = threading.Event(), threading.Event()

    def work() -> None:
        spin(0.1)
        ready.set()
        leave.wait()

    before = sample()
    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    after, quick = sample(), cpu_sample()
    leave.set()
    thread.join()
    tid = thread.native_id
    assert tid is not None and tid not in before.threads
    assert after.threads[tid].cpu_ns >= 90_000_000  # of its own 100 ms of CPU
    assert quick.cpu_ns[tid] >= after.threads[tid].cpu_ns
    assert os.getpid() in after.threads
    assert quick.cpu_ns[os.getpid()] >= before.threads[os.getpid()].cpu_ns


def test_the_worst_window_is_kept() -> None:
    async def run() -> HostSampler:
        with HostSampler() as sampler:
            await asyncio.sleep(1.1)
            spin(0.6)
            await asyncio.sleep(0.6)
            return sampler

    (main,) = [t for t in uvloop.run(run()).threads() if t.name == "main thread"]
    assert main.worst > main.mean
    assert main.worst_at_s > 0.9


def test_throttling_of_a_group_and_of_those_above_it_adds_up(tmp_path: Path) -> None:
    v1, v2, root = tmp_path / "v1", tmp_path / "v2", tmp_path / "root"
    v1.write_text("nr_periods 9\nnr_throttled 2\nthrottled_time 3000\n")
    v2.write_text("usage_usec 5\nnr_periods 9\nnr_throttled 4\nthrottled_usec 7\n")
    root.write_text("usage_usec 5\nuser_usec 5\nsystem_usec 0\n")
    assert host._throttled([v1]) == (2, 3000)
    assert host._throttled([v2, root]) == (4, 7000)
    assert host._throttled([root]) == (0, 0)
    assert host._throttled([tmp_path / "none"]) is None
