"""This engine puts on the server what the official client put there.

Each capture's traces are replayed with its options against a recording server, and the two logs are compared
(`support.wire_compare` says how). To fit a test, recorded pauses, idle caps and the server's times are twelve
times as short; `AGENTX_WIRE_LONG=1` takes the captured times (about eight minutes) and judges pacing too,
which is a statement about the machine as well. `benches/bench_wire.py` prints the figures.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.wire_compare import Sent, Tree, Wire, check_dealing, instants, repeats
from support.wire_runs import RUNS, Capture, Played, play, support_on_path

from agentx_engine.corpus import open_corpus
from agentx_engine.metrics.record import RequestIdentity, RequestRecord
from agentx_engine.replay.corpus_trees import CorpusTrees
from agentx_engine.replay.engine import Replay
from agentx_engine.replay.options import ReplayOptions, ReplayReport
from agentx_engine.replay.protocols import TreeEnd, TreeIdentity
from agentx_engine.replay.simserver import LinearModel, PlannedPrompts, SimulatedTransport
from agentx_engine.replay.simulated import SimulatedClock, inline, run_simulated
from agentx_engine.tree.options import TreeOptions

LONG = os.environ.get("AGENTX_WIRE_LONG") == "1"
SPEED = 1 if LONG else 12
LIMIT_S = 600 if LONG else 150

MS = 1_000_000
SECOND = 1_000_000_000

# The official client's texts are slices of a token array; decoded and encoded again they lose or gain tokens.
DRIFT_TOKENS = range(-39, 4)
# Which of two lanes drains first is a matter of chance where they drain at about the same time. Their ends
# are the same if they differ by less than this share of the time since the start; a quickened run has more of
# this machine's own time in each request, and there the rule (`check_dealing`) says the rest.
SURE = 0.01 if LONG else 0.05
SURE_SIMULATED = 0.01
TIE_NS = 50 * MS
# Two requests of a tree were far apart if it was by this share of the time since its start, and so long.
FAR_SHARE = 0.1
FAR_NS = 2 * SECOND
# A stamp of the kernel is a wall time, made a monotonic one by an offset that is known better than this.
STAMP_ERROR_NS = MS // 10
PACING_NS = 2 * MS
BUSY_SHARE = 0.005  # of the time without a core; more says something about the machine only

pytestmark = pytest.mark.timeout(LIMIT_S + 100)

Both = tuple[Capture, Played]


@pytest.fixture(scope="module")
def captures(shared: Path) -> Callable[[str], Capture]:
    if not (shared / "golden" / "wire").is_dir():
        pytest.skip("needs ../shared/golden/wire (captures of the official client), which is not there")
    found: dict[str, Capture] = {}

    def get(name: str) -> Capture:
        if name not in found:
            found[name] = Capture.read(shared, name)
        return found[name]

    return get


@pytest.fixture(scope="module")
def both(
    captures: Callable[[str], Capture],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[str], Both]]:
    """The capture and this engine's run of a name. Each run is made once; two at a time unless pacing is
    judged."""
    runs: dict[str, Future[Played]] = {}

    def get(name: str) -> Both:
        for run in (name, *needed):
            if run not in runs:
                folder = tmp_path_factory.mktemp(run)
                runs[run] = pool.submit(play, captures(run), folder, speed=SPEED, limit_s=LIMIT_S)
        return captures(name), runs[name].result()

    needed = [run for run in RUNS if any(f"[{run}]" in item.nodeid for item in request.session.items)]

    with support_on_path(), ThreadPoolExecutor(1 if LONG else 2) as pool:
        yield get
        pool.shutdown(cancel_futures=True)


def pairs(capture: Capture, played: Played) -> list[tuple[Tree, Tree]]:
    """The trees that the capture shows complete, and ours of the same number."""
    theirs, ours = capture.wire.trees, played.wire.trees
    complete = [tree for tree in theirs if tree.complete]
    assert len(complete) >= 6
    assert len(ours) > complete[-1].number
    return [(tree, ours[tree.number]) for tree in complete]


every_run = pytest.mark.parametrize("name", RUNS)


@every_run
def test_the_same_requests(name: str, both: Callable[[str], Both]) -> None:
    """Conversation, turn, phase, output limit, roles and recorded tokens of every request, as a multiset."""
    for theirs, ours in pairs(*both(name)):
        wanted, sent = (Counter(request.facts for request in tree.sent) for tree in (theirs, ours))
        assert ours.complete, f"{ours}: {len(ours.sent)} of {len(theirs.sent)} requests"
        assert sent == wanted, f"{ours}: {sent - wanted} instead of {wanted - sent}"


@every_run
def test_tokens(name: str, both: Callable[[str], Both]) -> None:
    """Ours are the recorded ones, message by message; the official client's are, as far as its text allows.

    Of all requests, also those of trees that were cut short.
    """
    capture, played = both(name)
    for request in played.wire.sent:
        assert tuple(zip(request.roles, request.tokens, strict=True)) == request.turn.segments, request
        assert request.recorded == (request.turn.recorded_in, request.turn.recorded_out), request
        assert request.recorded[0] == sum(request.tokens), request
    for request in capture.wire.sent:
        assert request.roles == tuple(role for role, _ in request.turn.segments), request
        assert sum(request.tokens) - request.turn.recorded_in in DRIFT_TOKENS, request
    for request in (*capture.wire.sent, *played.wire.sent):
        limit = 1 if request.phase == "warmup" else request.turn.limit
        assert request.wire["max_tokens"] == limit, request
        assert not request.ok or request.wire["tokens_sent"] == limit, request


@every_run
def test_the_same_order(name: str, both: Callable[[str], Both]) -> None:
    """What the plan orders, and had happened in order there, happens in order here; what was far apart there
    for other reasons comes in the same order."""
    capture, played = both(name)
    compared = 0
    for theirs, ours in pairs(capture, played):
        wanted, not_kept = theirs.happened_before()
        assert not not_kept, f"the capture contradicts the plan: {theirs}, {sorted(not_kept)}"
        found, broken = ours.happened_before()
        assert not broken, f"{ours}: {sorted(broken)}"
        assert found == wanted, f"{ours}: {sorted(wanted ^ found)}"
        compared += len(wanted)
        far = theirs.clearly_before(FAR_SHARE, FAR_NS)
        turned = sorted(pair for pair in far if not ours.in_turn(pair))
        assert not turned, f"{ours}: {len(turned)} of {len(far)} the other way round: {turned[:4]}"
    for tree in played.wire.trees:
        assert not tree.happened_before()[1], tree
    assert compared > 80


@every_run
def test_the_same_texts_are_repeated(name: str, both: Callable[[str], Both]) -> None:
    """Whichever messages of a tree were the same text, byte for byte, are the same text: what a prefix cache
    can find. The marker is left out of it; it is one per tree, see `test_the_form_of_a_request`."""
    for theirs, ours in pairs(*both(name)):
        assert repeats(ours) == repeats(theirs), ours


@every_run
def test_the_same_lanes(name: str, both: Callable[[str], Both]) -> None:
    """Traces in their order, each to the lane that drained first, and so to the same lane as there."""
    capture, played = both(name)
    for wire in (capture.wire, played.wire):
        assert not check_dealing(wire, TIE_NS)
    for tree in played.wire.trees:
        told = {
            (request.export["trace_data"]["lane"], request.export["trace_data"]["play"])
            for request in tree.sent
        }
        assert told == {(tree.lane, tree.play)}, tree
    count = sure(capture.wire, SURE)
    assert count > capture.wire.lanes
    assert played.wire.dealt[:count] == capture.wire.dealt[:count]


def sure(wire: Wire, share: float) -> int:
    """How many trees were dealt before one whose lane was a matter of chance."""
    return next((n for n, margin in wire.margins().items() if margin < share), len(wire.trees))


@every_run
def test_the_same_primers_and_extra_warmup(name: str, both: Callable[[str], Both]) -> None:
    """`warm-c3` has three primers and ten more requests of each lane; the others begin at once."""
    capture, played = both(name)
    lane = {
        id(request): tree.lane
        for wire in (capture.wire, played.wire)
        for tree in wire.trees
        for request in tree.sent
    }

    def primers(wire: Wire) -> list[tuple[int, Sent]]:
        return sorted((lane[id(request)], *request.facts) for request in wire.primers())

    assert primers(played.wire) == primers(capture.wire)
    assert played.wire.extra_warmup() == capture.wire.extra_warmup()
    warmed = name == "warm-c3"
    assert len(capture.wire.primers()) == 3 * warmed
    assert capture.wire.extra_warmup() == [10 * warmed] * capture.wire.lanes


@every_run
def test_the_form_of_a_request(name: str, both: Callable[[str], Both]) -> None:
    """Members of the body in their order, names of header fields, marker, ids, connections."""
    capture, played = both(name)

    def form(request: Sent) -> tuple[object, ...]:
        wire = request.wire
        fields = frozenset(field.lower() for field, _ in wire["headers"])
        marker = wire.get("marker") or {}
        where = (marker.get("message"), marker.get("where"), marker.get("chars"))
        body = (
            tuple(wire["body_key_order"]),
            tuple(sorted(wire["body"])),
            wire["body"]["stream_options"]["include_usage"],
        )
        return (wire["line"], fields, wire["model"], wire["max_tokens_field"], *body, where)

    def forms(wire: Wire) -> set[tuple[object, ...]]:
        return {form(request) for request in wire.sent}

    assert forms(played.wire) == forms(capture.wire)
    for wire in (capture.wire, played.wire):
        speakers = [
            (id(tree), request.key[0], request.metadata["x_correlation_id"])
            for tree in wire.trees
            for request in tree.sent
        ]
        ids = {speaker[2] for speaker in speakers}
        assert len(set(speakers)) == len(ids) == len({speaker[:2] for speaker in speakers})
        for request in wire.sent:
            headers = {field.lower(): value for field, value in request.wire["headers"]}
            assert headers["x-correlation-id"] == request.metadata["x_correlation_id"]
            assert request.wire["body"]["ignore_eos"] is request.wire["body"]["stream"] is True
        assert not any(
            "x-request-id" in {field.lower() for field, _ in other.get("headers", ())}
            for other in wire.others
        )


def test_pacing(both: Callable[[str], Both]) -> None:
    """No request before its time, by what the server saw; every due time is the cause's end and the pause."""
    capture, played = both("pace-c4")
    counters = played.facts["replay"]["counters"]
    assert counters["system_shifts"] == counters["tree_shifts"] == 0  # the plan is the recording
    found = instants(played.wire, SPEED)
    assert len(found) >= 35
    for instant in found:
        late_ns = instant.sent_late_ns(played.offset_ns)
        assert late_ns >= -STAMP_ERROR_NS, f"{instant.sent}: sent {-late_ns} ns before its time"
        assert instant.arrived_late_ns >= late_ns - STAMP_ERROR_NS, instant.sent
    for tree in played.wire.trees:
        for before, request in pairwise(tree.sent):
            delay_ms = request.turn.delay_ms
            assert delay_ms is not None
            due, ended = stamp(request, "due"), stamp(before, "last_event")
            assert abs(due - ended - delay_ms / SPEED * MS) <= 1000, request
    late = [instant.sent_late_ns(played.offset_ns) for instant in found]
    print(f"dispatch after the plan, ms: {shares(late)}; the official client: {shares(theirs(capture))}")
    if LONG:
        if played.waited > BUSY_SHARE:
            pytest.skip(f"other processes had the sending thread's core for {played.waited:.1%} of the time")
        assert np.percentile(late, 99) <= PACING_NS


def stamp(request: Sent, name: str) -> int:
    return int(request.export["trace_data"]["stamps_unix_ns"][name])


def theirs(capture: Capture) -> list[int]:
    return [instant.arrived_late_ns for instant in instants(capture.wire)]


def shares(values_ns: list[int]) -> str:
    return ", ".join(f"p{p} {np.percentile(values_ns, p) / MS:.3f}" for p in (50, 99, 100))


# -- the captured times, simulated -----------------------------------------------------------------


class Dealt:
    """A recorder that only keeps which trees were started, and when."""

    def __init__(self) -> None:
        self.trees: list[tuple[TreeIdentity, int]] = []

    def tree_started(self, tree: TreeIdentity, start_ns: int) -> None:
        self.trees.append((tree, start_ns))

    def tree_finished(self, tree: TreeIdentity, reason: TreeEnd, end_ns: int) -> None: ...

    def started(self, identity: RequestIdentity) -> None: ...

    def finished(self, record: RequestRecord) -> None: ...

    def withdrawn(self, identity: RequestIdentity) -> None: ...


@every_run
def test_lanes_at_the_captured_times(name: str, captures: Callable[[str], Capture], tmp_path: Path) -> None:
    """The same options, pauses, and server times under a simulated clock: trees start within seconds of when
    they did there, on the same lanes. What is left is the official client's own time."""
    capture = captures(name)
    for path in capture.inputs:
        (tmp_path / path.name).symlink_to(path)
    corpus = open_corpus(tmp_path, compat_harness=True)
    dealt = Dealt()
    options = simulated_options(capture)

    async def run(clock: SimulatedClock) -> ReplayReport:
        model = LinearModel(int(capture.ttft_ms * MS), 0, int(capture.itl_ms * MS))
        return await Replay(
            clock=clock,
            transport=SimulatedTransport(clock, model),
            trees=CorpusTrees(corpus, TreeOptions.harness()),
            prompts=PlannedPrompts(),
            recorder=dealt,
            options=options,
            offload=inline,
        ).run()

    report = run_simulated(run)
    assert report.end_reason == "duration"
    count = sure(capture.wire, SURE_SIMULATED)
    assert [(tree.lane, tree.trace_id) for tree, _ in dealt.trees][:count] == capture.wire.dealt[:count]
    if report.warmup is not None and report.warmup.primers:
        assert report.warmup.extra_requests == capture.wire.extra_warmup()
        assert report.warmup.primers == len(capture.wire.primers())
        return  # from here on the official client's own time between the phases counts
    began_ns = dealt.trees[0][1]
    for (tree, start_ns), there in zip(dealt.trees[:count], capture.wire.trees, strict=False):
        seconds = (start_ns - began_ns) / SECOND
        assert seconds == pytest.approx(capture.wire.seconds(there.start_ns), rel=0.01, abs=0.15), tree


def simulated_options(capture: Capture) -> ReplayOptions:
    def ns(flag: str, default: float | None = None) -> int | None:
        seconds = capture.number(flag)
        seconds = default if seconds is None else seconds
        return None if seconds is None else int(seconds * SECOND)

    ratios = (capture.number("--trajectory-start-min-ratio"), capture.number("--trajectory-start-max-ratio"))
    assert ratios[0] is not None
    assert ratios[1] is not None
    return ReplayOptions(
        concurrency=capture.wire.lanes,
        duration_ns=ns("--benchmark-duration"),
        start_ratios=(ratios[0], ratios[1]),
        seed=int(capture.options["--random-seed"]),
        warmup_requests_per_lane=10 if capture.options["--scenario"] == "agentx" else 0,
        system_idle_cap_ns=ns("--system-idle-gap-cap-seconds", 10),
        primer_lead_cap_ns=ns("--system-idle-gap-cap-seconds", 10),
        tree_idle_cap_ns=ns("--trace-idle-gap-cap-seconds"),
        child_pause=False,
        release_dead=False,
    )
