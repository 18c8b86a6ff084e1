"""The forecast against figures that are computed another way, and its parts alone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.replays import MS, SECOND, replay
from support.trace_files import request, subagent, trace, write_lines
from support.trees import BLOCK, ListTrees, TreeMaker, chain, make_turn

from agentx_engine.corpus import open_corpus
from agentx_engine.corpus.synth import synthesize
from agentx_engine.errors import CorpusError
from agentx_engine.prompt import BodyTemplate, PromptBuilder, default_pool
from agentx_engine.replay.corpus_trees import CorpusTrees
from agentx_engine.replay.forecast import Forecast, ServerSpec, forecast
from agentx_engine.replay.forecast.cache import KvCache
from agentx_engine.replay.forecast.curves import Steps, busiest, gaps, spread
from agentx_engine.replay.forecast.decoder import Decoder
from agentx_engine.replay.forecast.paths import Body, PathPrompts, Space
from agentx_engine.replay.forecast.residents import RefSet
from agentx_engine.replay.options import ReplayOptions
from agentx_engine.replay.protocols import TreeSource
from agentx_engine.replay.simserver import Answer
from agentx_engine.sim.cache import PrefixCache, tokenize
from agentx_engine.sim.model import TemplateTokens
from agentx_engine.tree.model import ConversationTree

ROOT = Path(__file__).resolve().parents[2]
FAST = ServerSpec(ttft_ms=100.0, prefill_tokens_per_s=1e9, itl_ms=10.0)


def run(trees: TreeSource, seconds: float, server: ServerSpec = FAST, **options: Any) -> Forecast:
    options.setdefault("concurrency", 1)
    return forecast(
        trees, ReplayOptions(duration_ns=int(seconds * SECOND), marker_tokens=0, **options), server
    )


# -- the whole, by hand


def test_one_lane_by_hand() -> None:
    """Three turns of 64 tokens and 4 words of answer, 1 s apart: 130 ms each, then the same again."""
    f = run(ListTrees(TreeMaker().root(*chain(3, delay_ns=SECOND)).tree()), 10.0)
    one = 0.1 + 3 * 0.01  # 64 uncached tokens at 1e9/s are 64 ns
    whole = 3 * one + 2  # a session; the next begins at its end
    assert f.requests.sent == f.requests.finished == 3 * 4 + 1
    assert (f.trees.started, f.trees.finished, f.trees.recycled) == (5, 4, 4)
    assert (f.trees.distinct_traces, f.trees.most_plays_of_a_trace) == (1, 5)
    assert f.tokens.input == 13 * 64
    assert f.tokens.output == 13 * 4
    assert f.in_flight.max == 1
    assert f.in_flight.mean == pytest.approx(13 * one / 10, rel=1e-5)
    assert f.in_flight.none_share == pytest.approx(1 - f.in_flight.mean)
    assert f.lanes.live_share == pytest.approx(1)
    assert f.lanes.busy_share == pytest.approx(f.in_flight.mean)
    assert f.lanes.idle_share == pytest.approx(1 - f.in_flight.mean)
    assert f.pauses.longest_quiet_s == f.pauses.longest_wait_s == pytest.approx(1)
    assert (f.pauses.longest_wait_trace, f.pauses.longest_wait_lane) == ("trace", 0)
    assert not f.pauses.longest_wait_open
    assert f.pauses.gap_max_s == pytest.approx(1 + one, rel=1e-5)
    assert f.corpus.lasts_s == pytest.approx(whole, rel=1e-5)
    assert f.corpus.lasts_estimate_s is None
    assert f.requests.most_within_1s == 2  # the last of one session and the first of the next
    assert f.requests.per_s == pytest.approx(1.3)
    assert f.tokens.input_per_s == pytest.approx(13 * 64 / 10)
    latency = f.latency_of_the_model
    assert latency.ttft_ms is not None and latency.request_ms is not None
    assert latency.ttft_ms.p50 == pytest.approx(100, rel=1e-5)
    assert latency.request_ms.max == pytest.approx(130, rel=1e-5)


def test_the_end_of_the_run() -> None:
    """A long answer is cut off at the end of the grace period; what came counts, what lies beyond the
    duration is not in the rates."""
    tree = TreeMaker().root(make_turn(0, out=1001)).tree()  # 0.1 s + 10 s
    f = run(ListTrees(tree), 5.1, grace_ns=SECOND)
    assert (f.requests.sent, f.requests.finished, f.requests.cut_off) == (1, 0, 1)
    assert f.tokens.output == pytest.approx(601, abs=1)
    assert f.tokens.output_per_s == pytest.approx(501 / 5.1, rel=0.01)
    assert f.in_flight.mean == pytest.approx(1)
    assert f.prefix_cache.theoretical_hit is None  # of successes only
    assert f.latency_of_the_model.request_ms is None
    whole = run(ListTrees(tree), 5.1)
    assert (whole.requests.finished, whole.tokens.output) == (1, 1001)
    assert whole.tokens.output_per_s == pytest.approx(501 / 5.1, rel=0.01)


def test_a_wait_that_is_open_at_the_end() -> None:
    tree = TreeMaker().root(*chain(2, delay_ns=3600 * SECOND)).tree()
    f = run(ListTrees(tree), 60.0)
    assert f.pauses.longest_wait_open
    assert f.pauses.longest_wait_s == pytest.approx(60 - 0.13, abs=1e-3)
    assert f.trees.finished == 0
    assert f.corpus.lasts_s is None and f.corpus.lasts_estimate_s is None


def test_burst_of_children() -> None:
    children = [(0, [make_turn(0, out=11)]) for _ in range(5)]
    tree = TreeMaker().root(*chain(2)).branch(0, children, join_turn=1).tree()
    f = run(ListTrees(tree), 0.34)
    assert f.in_flight.max == 5
    assert f.in_flight.max_at_s == pytest.approx(0.13, abs=1e-3)
    assert f.requests.most_within_1s == 7
    assert f.kv_cache.live_conversations == 6


def test_corpus_that_outlasts_the_run() -> None:
    trees = [TreeMaker(f"t{k}").root(*chain(1)).tree() for k in range(50)]  # 0.13 s each
    f = run(ListTrees(*trees), 1.3, concurrency=2)
    assert f.corpus.lasts_s is None
    assert f.corpus.lasts_estimate_s == pytest.approx(50 / 2 * 0.13, rel=0.1)
    long = run(ListTrees(*trees), 6.0, concurrency=2)
    assert long.corpus.lasts_s == pytest.approx(50 / 2 * 0.13, rel=1e-3)
    assert run(ListTrees(*trees), 1.0, concurrency=51).corpus.lasts_s == 0


def test_traces_without_requests() -> None:
    empty = TreeMaker("empty").root().tree()
    with pytest.raises(CorpusError, match="no trace of the corpus has a request"):
        run(ListTrees(empty), 1.0)
    with pytest.raises(ValueError, match="needs a duration"):
        forecast(ListTrees(empty), ReplayOptions(concurrency=1), FAST)
    with pytest.raises(CorpusError, match="no traces"):
        run(ListTrees(), 1.0)


# -- the whole, against the records of an independent replay


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> CorpusTrees:
    path = tmp_path_factory.mktemp("corpus") / "c.jsonl"
    synthesize(6, 3, path)
    return CorpusTrees(open_corpus(path))


def test_totals_against_a_plain_replay(corpus: CorpusTrees) -> None:
    """Without a cache the model is `LinearModel` with every prompt uncached, so the replay is the same."""

    class Uncached:
        def answer(self, request: Any, number: int) -> Answer:
            return Answer(20 * MS + 5_000 * request.body.tokens, 7 * MS, request.max_tokens)

    seconds, lanes = 300, 5
    server = ServerSpec(ttft_ms=20, prefill_tokens_per_s=200_000, itl_ms=7, cache_tokens=0)
    f = run(corpus, seconds, server, concurrency=lanes)
    played = replay(corpus, model=Uncached(), concurrency=lanes, duration_ns=seconds * SECOND)
    records, start_ns = played.seen.records, played.start_ns
    times = [(r.result.stamps.first_sent - start_ns, r.result.stamps.end - start_ns) for r in records]  # type: ignore[operator]
    assert f.requests.sent == len(records) > 50
    assert f.tokens.input == f.tokens.uncached == sum(r.identity.recorded_in for r in records)
    assert f.tokens.output == sum(r.result.usage.completion for r in records if r.result.usage)  # type: ignore[misc]
    assert (f.trees.started, f.trees.finished) == (
        sum(kind == "start" for _, kind, *_ in played.seen.trees),
        sum(kind == "end" and why == "drained" for _, kind, *_, why in played.seen.trees),
    )
    stop_ns = seconds * SECOND
    area = sum(max(0, min(end, stop_ns) - sent) for sent, end in times)
    assert f.in_flight.mean == pytest.approx(area / stop_ns)
    instants = sorted({t for pair in times for t in pair if t < stop_ns})
    levels = [sum(sent <= t < end for sent, end in times) for t in instants]
    assert f.in_flight.max == max(levels)
    assert f.in_flight.max_at_s == instants[levels.index(max(levels))] / SECOND
    sends = sorted(sent for sent, _ in times)
    assert f.requests.most_within_1s == max(sum(a <= s < a + SECOND for s in sends) for a in sends)
    assert f.pauses.gap_max_s == max(b - a for a, b in pairwise(sends)) / SECOND
    assert f.prefix_cache.model_hit == 0
    hits, blocks = (sum(getattr(r.identity, n) for r in records) for n in ("hit_blocks", "total_blocks"))
    assert f.prefix_cache.theoretical_hit == pytest.approx(hits / blocks)
    assert sum(f.curve.requests) == len(records)
    assert sum(f.curve.input_tokens) == f.tokens.input
    assert max(f.curve.in_flight_max) == f.in_flight.max
    assert np.mean(f.curve.in_flight_mean) == pytest.approx(f.in_flight.mean, abs=1e-3)
    assert sum(f.curve.output_tokens) == pytest.approx(f.tokens.output_per_s * seconds, abs=60)
    busy = Counter[int]()
    for lane in range(lanes):
        reached = 0
        for sent, end in sorted(t for t, r in zip(times, records, strict=True) if r.identity.lane == lane):
            busy[lane] += max(0, min(end, stop_ns) - max(sent, reached))
            reached = max(reached, end)
    assert f.lanes.busy_share == pytest.approx(busy.total() / lanes / stop_ns)


def prompts_of(tree: ConversationTree, marker: str | None) -> Iterator[tuple[Any, Any, Any]]:
    """Each turn's body of the forecast, and of the real prompt builder, conversation after conversation."""
    cache, live = KvCache(None), RefSet()
    paths = PathPrompts(
        Space(lambda a, b: False), Space(lambda a, b: False), lambda n, t: (cache.grow(n), live.grow(n))[0]
    )
    words = PromptBuilder(default_pool(), 1, BodyTemplate(["m"]))
    for number, conversation in enumerate(tree.conversations):
        planned, real = paths.open(tree, number, marker), words.open(tree, number, None)
        for turn in conversation.turns:
            planned.advance(turn)
            real.advance(turn)
            yield planned.rope(turn), msgspec.json.decode(bytes(real.rope(turn)))["messages"], cache


def test_the_cache_hits_what_real_prompts_would(corpus: CorpusTrees) -> None:
    """The bodies that are really sent, cut into words and hashed by the simulated server's own cache."""
    hits = 0
    for index in range(len(corpus)):
        reference = PrefixCache(1 << 40)
        for body, messages, cache in prompts_of(corpus.load(index), None):
            prompt = tokenize([(m["role"], m["content"]) for m in messages], BLOCK, TemplateTokens())
            assert prompt.tokens == body.tokens
            assert len(prompt.blocks) == len(body.nodes)
            found = cache.admit(body, 1, 0)
            assert found == reference.match(prompt, BLOCK)
            cache.prefilled(body, 1)
            reference.insert(prompt)
            hits += found
    assert hits > 500_000


def test_markers_part_sessions_but_not_system_prompts(tmp_path: Path) -> None:
    """Two lanes on one trace: 120 declared tokens are two blocks of system prompt, shared by both."""
    path = write_lines(
        tmp_path / "c.jsonl", [trace("a", [request(0.0, **{"in": 640, "hash_ids": [*range(10)]})])]
    )
    trees = CorpusTrees(open_corpus(path))
    # The second starts when the first has been computed.
    slow = ServerSpec(ttft_ms=0, prefill_tokens_per_s=1e6, prefill_shared=True)
    apart = run(trees, 1.0, slow, tree_count=3)
    assert apart.requests.sent == 3
    assert apart.prefix_cache.model_hit == pytest.approx(2 * 128 / (3 * 640))
    shared = run(trees, 1.0, slow, tree_count=3, marker=False)
    assert shared.prefix_cache.model_hit == pytest.approx(2 * 9 * 64 / (3 * 640))  # never the last token
    none = run(trees, 1.0, msgspec.structs.replace(slow, cache_tokens=0), tree_count=3, marker=False)
    assert none.prefix_cache.model_hit == 0


def test_what_is_held(tmp_path: Path) -> None:
    """A root with 5 blocks and 20 tokens that waits for a child with 3 blocks of its own."""
    child = subagent(
        4.0, [request(4.0, hash_ids=[20, 21, 22], **{"in": 192})], tool_tokens=0, system_tokens=0
    )
    root = [
        request(0.0, hash_ids=[1, 2, 3, 4, 5], **{"in": 340}),
        child,
        request(20.0, hash_ids=[1, 2, 3, 4, 5, 6], **{"in": 384}),
    ]
    path = write_lines(tmp_path / "c.jsonl", [trace("a", root)])
    f = run(CorpusTrees(open_corpus(path)), 60.0, tree_count=1)
    assert f.kv_cache.live_tokens == (5 + 3) * 64
    assert f.kv_cache.live_blocks == 8
    assert f.kv_cache.live_conversations == 2
    assert f.kv_cache.in_flight_tokens == 384 + 10  # the last request: its prompt and its answer
    assert f.memory.prompt_tokens == 340 + 192
    two = run(CorpusTrees(open_corpus(path)), 60.0, tree_count=2, concurrency=2)
    assert two.kv_cache.live_tokens == 2 * 8 * 64 - 2 * 64  # the system prompt is one
    assert two.memory.prompt_tokens == 8 * 64 + 2 * 20  # text is shared between sessions of a trace


def test_warmup_is_told_apart(tmp_path: Path) -> None:
    """Half way through ten turns: a primer of turn 4, two more requests, then the rest at its pace."""
    turns = [
        request(10.0 * k, hash_ids=[*range(k + 3)], **{"in": 64 * (k + 3)}) for k in range(10)
    ]  # 2 s each, 8 s between them
    path = write_lines(tmp_path / "c.jsonl", [trace("a", turns)])
    f = run(
        CorpusTrees(open_corpus(path)),
        600.0,
        tree_count=1,
        start_ratios=(0.5, 0.5),
        warmup_requests_per_lane=2,
    )
    assert f.warmup is not None
    assert (f.warmup.primers, f.warmup.extra_requests, f.warmup.extra_missing) == (1, 2, 0)
    assert f.warmup.input_tokens == 64 * (7 + 8 + 9)
    assert f.warmup.uncached_tokens == 64 * 9  # each block once
    assert f.warmup.seconds == pytest.approx(0.3, rel=1e-5)
    assert f.requests.sent == f.requests.finished == 3
    assert f.tokens.input == 64 * (10 + 11 + 12)
    assert f.tokens.uncached == 64 * 3
    assert f.tokens.output == 30
    assert sum(f.curve.requests) == 3
    assert f.kv_cache.live_tokens == 64 * 12
    assert (f.trees.started, f.trees.recycled) == (1, 0)


def test_idle_caps_are_told() -> None:
    tree = TreeMaker().root(*chain(3, delay_ns=3600 * SECOND)).tree()
    f = run(ListTrees(tree), 60.0, tree_idle_cap_ns=10 * SECOND)
    assert f.idle_caps.tree_shifts == 5
    assert f.idle_caps.tree_skipped_s == pytest.approx(5 * 3590, rel=1e-3)
    assert f.pauses.longest_wait_s == pytest.approx(10)
    assert f.idle_caps.system_shifts == 0


# -- determinism and the document


def test_the_same_in_every_process(corpus: CorpusTrees, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    synthesize(6, 3, path)
    code = (
        "import sys, msgspec\n"
        "from agentx_engine.corpus import open_corpus\n"
        "from agentx_engine.replay.corpus_trees import CorpusTrees\n"
        "from agentx_engine.replay.forecast import ServerSpec, forecast\n"
        "from agentx_engine.replay.options import ReplayOptions\n"
        "options = ReplayOptions(concurrency=4, duration_ns=300 * 10**9)\n"
        "server = ServerSpec(itl_slope_us=50, cache_tokens=500_000, prefill_shared=True)\n"
        "f = forecast(CorpusTrees(open_corpus(sys.argv[1])), options, server)\n"
        "sys.stdout.buffer.write(msgspec.json.encode(f))\n"
    )
    documents = {
        subprocess.run(
            [sys.executable, "-P", "-c", code, str(path)],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(documents) == 1
    decoded = msgspec.json.decode(documents.pop(), type=Forecast)
    assert decoded.schema == "agentx-engine/forecast/1"
    assert decoded.requests.sent > 20


def test_schema_describes_the_document(corpus: CorpusTrees) -> None:
    document = msgspec.json.decode(msgspec.json.encode(run(corpus, 60.0)))
    schema = msgspec.json.schema(Forecast)["$defs"]
    assert set(document) == set(schema["Forecast"]["properties"])
    assert set(document["curve"]) == set(schema["Curve"]["properties"])
    assert {len(v) for v in document["curve"].values() if isinstance(v, list)} == {60}
    msgspec.convert(document, Forecast, strict=True)


def test_server_that_cannot_be() -> None:
    for wrong in (
        {"prefill_tokens_per_s": 0},
        {"itl_ms": -1},
        {"ttft_ms": float("nan")},
        {"cache_tokens": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ServerSpec(**wrong)  # type: ignore[arg-type]


# -- the server


def test_decoding_slows_down_with_the_batch() -> None:
    """Two answers of 11 tokens, begun together: 10 gaps of 10 ms + 2 x 5 ms; alone 10 ms + 5 ms."""
    tree = TreeMaker().root(make_turn(0, out=11)).tree()
    spec = ServerSpec(ttft_ms=0, prefill_tokens_per_s=1e12, itl_ms=10, itl_slope_us=5000)
    for lanes, itl_ms in ((1, 15), (2, 20), (10, 60)):
        f = run(ListTrees(tree), 0.001, spec, concurrency=lanes)
        assert f.latency_of_the_model.request_ms is not None
        assert f.latency_of_the_model.request_ms.p50 == pytest.approx(10 * itl_ms)


def test_shared_prefill_queues() -> None:
    tree = TreeMaker().root(make_turn(0, tokens=640, out=1)).tree()
    spec = ServerSpec(ttft_ms=0, prefill_tokens_per_s=6400, itl_ms=1)
    apart = run(ListTrees(tree), 0.001, spec, concurrency=3).latency_of_the_model.ttft_ms
    queued = run(
        ListTrees(tree), 0.001, msgspec.structs.replace(spec, prefill_shared=True), concurrency=3
    ).latency_of_the_model.ttft_ms
    assert apart is not None and queued is not None
    assert (apart.p50, apart.max) == pytest.approx((100, 100))
    assert (queued.p50, queued.max) == pytest.approx((200, 300))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 12)), min_size=1, max_size=6),
    st.integers(0, 5),
    st.integers(0, 3),
)
def test_decoder_against_small_steps(streams: list[tuple[int, int]], base: int, slope: int) -> None:
    """`streams` = (start, tokens) in units of 1000 ns; the reference adds up fractions of a token."""
    unit = 1000
    decoder: Decoder[int] = Decoder(lambda n: unit * (base + slope * n))
    pending = sorted((start * unit, number) for number, (start, _) in enumerate(streams))
    ends: dict[int, int] = {}
    want: dict[int, Fraction] = {}
    left: dict[int, Fraction] = {}
    now = Fraction(0)
    queue = list(pending)
    while queue or left:
        itl = Fraction(unit * (base + slope * len(left)))
        next_end = min((now + tokens * itl for tokens in left.values()), default=None)
        if next_end is not None and (not queue or next_end <= queue[0][0]):
            then = next_end
        else:
            then = max(now, Fraction(queue[0][0]))
        left = {n: tokens - (then - now) / itl if itl else Fraction(0) for n, tokens in left.items()}
        now = then
        for number in [n for n, tokens in left.items() if tokens <= 0]:
            want[number] = now
            del left[number]
        while queue and queue[0][0] <= now:
            number = queue.pop(0)[1]
            left[number] = Fraction(streams[number][1])
    while pending or len(decoder):
        following = decoder.next_end()
        if following is not None and (not pending or following[0] <= pending[0][0]):
            ends[following[1]] = following[0]
            decoder.leave(*following[::-1])
        else:
            start, number = pending.pop(0)
            decoder.join(number, streams[number][1], start)
    assert all(abs(ends[n] - want[n]) <= len(streams) for n in want)  # an instant is a whole nanosecond
    if not slope and base:
        assert all(ends[n] == (start + base * tokens) * unit for n, (start, tokens) in enumerate(streams))


# -- the cache


def bodies(tree: ConversationTree) -> tuple[KvCache, list[list[Body]]]:
    made: list[list[Body]] = [[] for _ in tree.conversations]
    size = 0

    def grow(nodes: int, texts: int) -> None:
        nonlocal size
        size = nodes

    paths = PathPrompts(Space(lambda a, b: False), Space(lambda a, b: False), grow)
    for number, conversation in enumerate(tree.conversations):
        prompt = paths.open(tree, number, "x")
        for turn in conversation.turns:
            prompt.advance(turn)
            made[number].append(prompt.rope(turn))  # type: ignore[arg-type]
    cache = KvCache(None)
    cache.grow(size)
    return cache, made


class LruReference:
    """Blocks in a plain list, oldest first."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.order, self.running = capacity, [], Counter[int]()

    def match(self, path: list[int], tokens: int) -> int:
        hits = 0
        while hits < min(len(path), (tokens - 1) // BLOCK) and path[hits] in self.order:
            hits += 1
        return hits * BLOCK

    def insert(self, path: list[int]) -> None:
        self.order += [node for node in path if node not in self.order]
        self.trim()

    def end(self, path: list[int]) -> None:
        for node in reversed(path):
            if node in self.order:
                self.order.remove(node)
                self.order.append(node)
        self.trim()

    def trim(self) -> None:
        while len(self.order) * BLOCK > self.capacity:
            victim = next((n for n in self.order if not self.running[n]), None)
            if victim is None:
                return
            self.order.remove(victim)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 30))
def test_lru_against_a_list(seed: int, capacity: int) -> None:
    """Any order of requests over conversations which share prefixes; answers take no room here."""
    draw = random.Random(seed)
    maker = TreeMaker().root(*chain(1))
    tree = maker.tree()
    conversation = tree.conversations[0]
    turns = []
    for k in range(8):
        turn = make_turn(k, tokens=BLOCK * draw.randint(1, 8))
        turn.new_blocks = np.arange(len(turn.new_blocks), dtype=np.int32) + 100 * draw.randint(0, 2)
        turns.append(turn)
    conversation.turns = tuple(turns)
    unbounded, made = bodies(tree)
    cache = KvCache(capacity * BLOCK)
    cache.grow(len(unbounded.pins.counts))
    reference = LruReference(capacity * BLOCK)
    running: list[Body] = []
    for _ in range(40):
        if running and draw.random() < 0.5:
            body = running.pop(draw.randrange(len(running)))
            path = body.path().tolist()
            reference.running.subtract(path)
            reference.end(path)
            cache.ended(body, 0, prefilled=True)
        else:
            body = draw.choice(made[0])
            if body in running:
                continue
            path = body.path().tolist()
            assert cache.admit(body, 0, 0) == reference.match(path, body.tokens)
            reference.running.update(path)
            if capacity:
                reference.insert(path)
            cache.prefilled(body, 0)
            running.append(body)
        assert cache.stored == len(reference.order) * BLOCK


def test_answers_take_room_and_are_gone_first() -> None:
    tree = TreeMaker().root(make_turn(0, tokens=4 * BLOCK)).tree()
    unbounded, made = bodies(tree)
    cache = KvCache(6 * BLOCK)
    cache.grow(len(unbounded.pins.counts))
    body = made[0][0]
    assert cache.admit(body, 200, 0) == 0
    assert cache.over_capacity == 1  # 456 tokens of 384
    cache.prefilled(body, 200)
    assert cache.stored == 456  # what runs is kept
    cache.ended(body, 200, prefilled=True)
    assert cache.stored == 4 * BLOCK
    assert cache.admit(body, 1, 0) == 3 * BLOCK


def test_small_cache_costs_prefill(corpus: CorpusTrees) -> None:
    shares = []
    for capacity in (0, 100_000, 400_000, 10_000_000, None):
        f = run(corpus, 100.0, ServerSpec(cache_tokens=capacity), concurrency=6)
        assert f.tokens.uncached == round(f.tokens.input * (1 - (f.prefix_cache.model_hit or 0)))
        shares.append(f.prefix_cache.model_hit or 0)
        if capacity is not None and capacity >= 10_000_000:
            assert f.prefix_cache.over_capacity == 0
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[3] == shares[4] > 0.8  # what exceeds the live set is enough


@pytest.mark.parametrize("capacity", [None, 300_000])
def test_numbers_of_ended_sessions_are_used_again(
    corpus: CorpusTrees, capacity: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory follows what is alive or cached, and nothing of an ended session shows up in another."""
    sizes: list[int] = []

    class Measured(Space):
        def take(self, count: int) -> int:
            start = super().take(count)
            sizes.append(self.size)
            return start

    def play(space: type[Space]) -> Forecast:
        monkeypatch.setattr("agentx_engine.replay.forecast.run.Space", space)
        spec = ServerSpec(cache_tokens=capacity)
        return run(corpus, 600.0, spec, concurrency=3, tree_idle_cap_ns=10 * SECOND)

    class Wasteful(Measured):
        def give_back(self, start: int, count: int) -> None:
            pass

    thrifty, most = play(Measured), max(sizes)
    sizes.clear()
    assert play(Wasteful) == thrifty
    assert thrifty.trees.finished > 10
    assert most < max(sizes) / 2


# -- arithmetic


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=15),
    st.integers(0, 20),
    st.integers(1, 40),
)
def test_steps_against_counting(pairs: list[tuple[int, int]], start: int, width: int) -> None:
    starts = np.array([min(p) for p in pairs], dtype=np.int64)
    ends = np.array([max(p) for p in pairs], dtype=np.int64)
    stop = start + width
    levels = [sum(a <= t < b for a, b in zip(starts, ends, strict=True)) for t in range(start, stop)]
    steps = Steps(starts, ends, start, stop)
    assert steps.mean() == pytest.approx(np.mean(levels))
    assert steps.peak() == (max(levels), start + levels.index(max(levels)))
    for share in (0.5, 0.9, 0.99):
        assert steps.percentile(share) == sorted(levels)[max(0, int(np.ceil(share * width - 1e-9)) - 1)]
    free = [t for t in range(start, stop) if levels[t - start] == 0]
    assert [t for a, b in gaps(starts, ends, start, stop) for t in range(a, b)] == free
    edges = np.array([start, start + width // 2, stop], dtype=np.int64)
    if width >= 2:
        halves = levels[: width // 2], levels[width // 2 :]
        assert steps.peaks(edges).tolist() == [max(half) for half in halves]
        assert spread(starts, ends, ends - starts, edges) == pytest.approx([sum(half) for half in halves])


def test_busiest() -> None:
    times = np.array([0, 5, 9, 10, 30], dtype=np.int64)
    assert busiest(times, np.ones_like(times), 10) == (3, 0)
    assert busiest(times, np.array([1, 1, 1, 5, 9], dtype=np.int64), 10) == (9, 30)
    assert busiest(times[:0], times[:0], 10) == (0, 0)


def test_recorded_sessions(shared: Path) -> None:
    """The figures of real traces: what is independent of the model agrees with the recording."""
    trees = CorpusTrees(open_corpus(shared / "traces"))
    f = run(trees, 40 * 86400.0, ServerSpec(), concurrency=26, tree_count=26)
    every = [trees.load(k) for k in range(len(trees))]
    turns = [t for tree in every for c in tree.conversations for t in c.turns]
    assert f.requests.sent == f.requests.finished == len(turns)
    assert f.tokens.input == sum(t.in_tokens for t in turns)
    assert f.tokens.output == sum(t.max_tokens for t in turns)
    hits, blocks = sum(t.hit_blocks for t in turns), sum(t.total_blocks for t in turns)
    assert f.prefix_cache.theoretical_hit == pytest.approx(hits / blocks)
    assert f.prefix_cache.model_hit == pytest.approx(hits / blocks, abs=0.01)
    assert (f.trees.finished, f.trees.recycled) == (26, 0)
