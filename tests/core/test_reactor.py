"""The reactor against a server that does what each test says: stamps, due times, pool, resend, outcomes."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.scripted import (
    DONE,
    END,
    STREAM,
    Connection,
    ScriptedServer,
    answer,
    chunk,
    finish,
    serve_forever,
    text,
    usage,
)

from agentx_engine.core.clock import now_ns
from agentx_engine.core.exchange import Exchange
from agentx_engine.core.reactor import Reactor, option_defaults
from agentx_engine.core.rope import Rope
from agentx_engine.transport.base import Stamps

MS = 1_000_000
STAMPS = Stamps.__struct_fields__


def request(body: bytes | list[bytes] = b"{}", **options: object) -> Exchange:
    rope = Rope([body] if isinstance(body, bytes) else body)
    options.setdefault("due_ns", now_ns())
    options.setdefault("max_tokens", 100)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(rope)
    return Exchange(head, rope, **options)  # type: ignore[arg-type]


def collect(reactor: Reactor, n: int, seconds: float = 20.0) -> list[Exchange]:
    done: list[Exchange] = []
    deadline = time.monotonic() + seconds
    while len(done) < n:
        left = deadline - time.monotonic()
        assert left > 0, f"only {len(done)} of {n} exchanges completed"
        select.select([reactor], [], [], left)
        done += reactor.pop()
    assert len(done) == n
    return done


def stamps(exchange: Exchange) -> dict[str, int | None]:
    return dict(zip(STAMPS, exchange.stamps, strict=True))


@contextlib.contextmanager
def reactor_for(server: ScriptedServer, **options: object) -> Iterator[Reactor]:
    reactor = Reactor([server.address], **options)
    try:
        yield reactor
    finally:
        reactor.close()
        reactor.pop()


def play(script: Callable[[Connection], None], **options: object) -> Exchange:
    """One request through a script."""
    with ScriptedServer(script) as server, reactor_for(server, **options) as reactor:
        reactor.submit(request())
        return collect(reactor, 1)[0]


def reply(*parts: bytes, pause: float = 0.0, end: str = "close") -> Callable[[Connection], None]:
    def script(conn: Connection) -> None:
        conn.request()
        for part in parts:
            conn.send(part)
            conn.pause(pause)
        if end == "reset":
            conn.reset()
        elif end == "hold":
            conn.request()

    return script


# -- A good exchange ----------------------------------------------------------------------------------


def test_stamps_of_a_good_exchange_are_complete_and_in_order() -> None:
    parts = [
        STREAM,
        *(chunk(text(w)) for w in ("a", "b", "c")),
        chunk(finish()),
        chunk(usage(7, 3, 2) + DONE) + END,
    ]
    x = play(reply(*parts, pause=0.003))
    at = stamps(x)
    assert x.outcome == "success"
    assert None not in at.values()
    order = [
        "due",
        "first_sent",
        "last_sent",
        "ack",
        "first_event",
        "first_content",
        "last_content",
        "last_event",
        "end",
    ]
    values = [at[name] for name in order]
    assert values == sorted(values)  # type: ignore[type-var]
    assert at["conn_ready"] <= at["first_sent"]  # type: ignore[operator]
    assert at["first_text"] == at["first_content"]
    assert x.usage == (7, 3, 2, None)
    assert x.finish_reason == "length"
    assert x.status == 200
    reads, events, content, coalesced, _, bytes_out = x.counts
    assert (events, content) == (6, 3)
    assert coalesced == 1  # usage and [DONE] came in one write
    assert reads >= 5
    assert bytes_out == len(x.head) + 2
    assert list(x.token_ns) == sorted(x.token_ns)
    assert x.token_ns[0] == at["first_content"] and x.token_ns[-1] == at["last_content"]
    assert list(x.token_slack_ns) == [0, 0, 0]


def test_no_stamp_is_invented() -> None:
    x = play(reply(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nwait"))
    at = stamps(x)
    assert x.outcome == "http_status" and x.status == 503 and x.error == "wait"
    for name in ("first_event", "first_content", "first_text", "last_content", "last_event"):
        assert at[name] is None
    assert at["ack"] is not None and at["end"] is not None


def test_kernel_stamps_are_not_moved_by_a_late_reader() -> None:
    """Field fault 78: five tokens 4 ms apart, read late in one go: the last is exact, the others are flagged
    with an interval that holds their true arrival."""
    sent: list[tuple[int, int]] = []  # before and after the send: on loopback the arrival is in between

    def script(conn: Connection) -> None:
        conn.request()
        conn.send(STREAM + chunk(text("first")))
        conn.pause(0.02)
        for i in range(5):
            before = time.monotonic_ns()
            conn.send(chunk(text(f"t{i}")))
            sent.append((before, time.monotonic_ns()))
            conn.pause(0.004)
        conn.pause(0.05)
        conn.send(chunk(finish() + DONE) + END)

    with ScriptedServer(script) as server, reactor_for(server) as reactor:
        x = request(keep_user_ns=True)
        reactor.submit(x)
        while not sent:
            time.sleep(0.001)
        tid = next(
            t
            for t in (p.name for p in Path("/proc/self/task").iterdir())
            if _thread_name(t) == "agentx-reactor"
        )
        _stop_thread_for(tid, 0.04)
        (x,) = collect(reactor, 1)
    assert x.outcome == "success"
    slack, stamp = x.token_slack_ns.astype(np.int64), x.token_ns
    for i, (before, after) in enumerate(sent):
        k = stamp[i + 1]
        assert before - MS <= k
        if slack[i + 1] == 0:
            assert k <= after + MS
        else:
            assert k - slack[i + 1] <= after + MS


def _thread_name(tid: str) -> str:
    return Path(f"/proc/self/task/{tid}/comm").read_text().strip()


def _stop_thread_for(tid: str, seconds: float) -> None:
    """Takes the thread's core away: the lowest priority beside a busy loop pinned to the same core."""
    cpu = sorted(os.sched_getaffinity(0))[0]
    before = os.sched_getaffinity(int(tid))
    os.sched_setaffinity(int(tid), {cpu})
    with contextlib.suppress(OSError):
        os.sched_setscheduler(int(tid), os.SCHED_IDLE, os.sched_param(0))
    stop = time.monotonic() + seconds
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    while time.monotonic() < stop:
        pass
    os.sched_setaffinity(0, mine)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(int(tid), os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(int(tid), before)


def test_coalesced_events_carry_slack_and_the_last_is_exact() -> None:
    parts = [
        STREAM + chunk(text("a")),
        chunk(text("b")) + chunk(text("c")) + chunk(text("d")),
        chunk(finish() + DONE) + END,
    ]
    x = play(reply(*parts, pause=0.01))
    slack = list(x.token_slack_ns)
    assert slack[0] == 0 and slack[3] == 0
    assert slack[1] == slack[2] > 0
    assert x.token_ns[1] == x.token_ns[2] == x.token_ns[3]
    # The interval reaches back no further than the read before.
    assert x.token_ns[1] - slack[1] >= x.token_ns[0]


def test_tokens_hidden_behind_a_last_event_without_content_are_flagged_too() -> None:
    x = play(reply(STREAM + chunk(text("a")), chunk(text("b") + finish() + DONE) + END, pause=0.005))
    assert x.token_slack_ns[0] == 0 and x.token_slack_ns[1] > 0


# -- Due times ----------------------------------------------------------------------------------------


def test_nothing_is_sent_before_its_due_time_and_the_order_is_kept() -> None:
    with ScriptedServer(serve_forever("a")) as server, reactor_for(server) as reactor:
        start = now_ns()
        xs = [request(b"%d" % i, due_ns=start + (20 + 7 * (i % 5)) * MS) for i in range(30)]
        for x in xs:
            reactor.submit(x)
        for x in collect(reactor, 30):
            at = stamps(x)
            assert x.outcome == "success"
            assert at["due"] <= at["first_sent"]  # type: ignore[operator]
            assert at["conn_ready"] <= at["due"] or x.connect_ns is not None  # type: ignore[operator]
        histograms = reactor.histograms()
        assert histograms["dispatch_lag_armed"].count == 30
        assert histograms["dispatch_lag_reactive"].count == 0


def test_a_send_does_not_wait_for_python() -> None:
    """The GIL is held over the due time; the request still goes out in time by the server's clock."""
    with ScriptedServer(serve_forever("a")) as server, reactor_for(server) as reactor:
        x = request(due_ns=now_ns() + 60 * MS)
        reactor.submit(x)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(10)
        try:
            stop = now_ns() + 200 * MS
            while now_ns() < stop:
                pass
        finally:
            sys.setswitchinterval(interval)
        (x,) = collect(reactor, 1)
    at = stamps(x)
    assert at["first_sent"] < stop  # type: ignore[operator]


def test_connects_happen_ahead_of_due() -> None:
    with ScriptedServer(serve_forever("a")) as server, reactor_for(server) as reactor:
        x = request(due_ns=now_ns() + 150 * MS)
        reactor.submit(x)
        (x,) = collect(reactor, 1)
    at = stamps(x)
    assert at["conn_ready"] < at["due"]  # type: ignore[operator]
    assert x.connect_ns is not None


def test_cancel_before_and_after_the_first_byte() -> None:
    with (
        ScriptedServer(reply(STREAM, chunk(text("a")), end="hold")) as server,
        reactor_for(server) as reactor,
    ):
        early = request(due_ns=now_ns() + 10_000 * MS)
        late = request()
        reactor.submit(early)
        reactor.submit(late)
        while reactor.counters()["content_events"] == 0:
            time.sleep(0.002)
        reactor.cancel(early)
        reactor.cancel(late)
        done = collect(reactor, 2)
        assert {x.outcome for x in done} == {"cancelled"}
        assert stamps(early)["first_sent"] is None
        assert stamps(late)["first_content"] is not None  # what had arrived is kept
        reactor.cancel(late)  # no effect any more
        assert reactor.counters()["in_flight"] == 0


# -- Bodies -------------------------------------------------------------------------------------------


def test_a_burst_of_large_bodies_arrives_whole_and_starts_as_one() -> None:
    bodies = [bytes([65 + i]) * 300_000 + b"|" + b"x" * i for i in range(16)]
    with ScriptedServer(serve_forever("a")) as server, reactor_for(server) as reactor:
        due = now_ns() + 120 * MS
        for body in bodies:
            pieces = [body[i : i + 7001] for i in range(0, len(body), 7001)]
            reactor.submit(request(pieces, due_ns=due))
        done = collect(reactor, 16)
        assert [x.outcome for x in done] == ["success"] * 16
        assert sorted(r.body for r in server.requests) == sorted(bodies)
        first = [stamps(x)["first_sent"] for x in done]
        last = [stamps(x)["last_sent"] for x in done]
        assert max(first) < min(last)  # type: ignore[type-var]


def test_an_answer_that_comes_before_the_body_is_sent_is_read() -> None:
    def script(conn: Connection) -> None:
        conn.sock.recv(1024)
        conn.send(b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 7\r\nConnection: close\r\n\r\ntoo big")
        conn.pause(0.2)

    with ScriptedServer(script) as server, reactor_for(server) as reactor:
        reactor.submit(request(b"x" * 20_000_000))
        (x,) = collect(reactor, 1)
    assert x.outcome == "http_status" and x.status == 413 and x.error == "too big"


# -- The pool -----------------------------------------------------------------------------------------


def test_keep_alive_reuses_one_socket() -> None:
    with ScriptedServer(serve_forever("a")) as server, reactor_for(server) as reactor:
        for _ in range(5):
            reactor.submit(request())
            (x,) = collect(reactor, 1)
        assert server.accepted == 1
        assert x.flags[0] and x.connect_ns is None


def test_request_pooling_connects_each_time() -> None:
    with ScriptedServer(serve_forever("a")) as server, reactor_for(server, pooling="request") as reactor:
        for _ in range(3):
            reactor.submit(request())
            collect(reactor, 1)
        assert server.accepted == 3


def test_session_pooling_keeps_a_socket_for_each_session() -> None:
    with ScriptedServer(serve_forever("a")) as server, reactor_for(server, pooling="session") as reactor:
        for session in (1, 2, 1, 2, 3):
            reactor.submit(request(session=session))
            collect(reactor, 1)
        assert server.accepted == 3


def test_no_silent_cap_on_connections() -> None:
    """Field fault 79: 300 requests due at once are 300 in flight at the server."""
    gate = threading.Barrier(301, timeout=20)

    def script(conn: Connection) -> None:
        conn.request()
        gate.wait()
        conn.send(answer("a"))

    with ScriptedServer(script) as server, reactor_for(server) as reactor:
        for _ in range(300):
            reactor.submit(request())
        gate.wait()  # passes only if the server holds all 300
        assert {x.outcome for x in collect(reactor, 300)} == {"success"}


def test_an_idle_socket_that_is_too_old_is_replaced_before_due() -> None:
    with ScriptedServer(serve_forever("a")) as server, reactor_for(server, max_idle_ns=50 * MS) as reactor:
        reactor.submit(request())
        collect(reactor, 1)
        x = request(due_ns=now_ns() + 200 * MS)
        reactor.submit(x)
        collect(reactor, 1)
        assert server.accepted == 2
        assert stamps(x)["conn_ready"] < stamps(x)["due"]  # type: ignore[operator]


# -- The resend rule ----------------------------------------------------------------------------------


def one_then(act: Callable[[Connection], None]) -> Callable[[Connection], None]:
    """The first connection serves one request well, and does `act` at the second; later ones serve well."""

    def script(conn: Connection) -> None:
        conn.request()
        conn.send(answer("a"))
        conn.request()
        if conn.index == 0:
            act(conn)
        else:
            conn.send(answer("b"))

    return script


def test_a_request_that_met_a_dying_keep_alive_socket_is_sent_once_more() -> None:
    """Field fault 83."""
    with ScriptedServer(one_then(lambda c: c.reset())) as server, reactor_for(server) as reactor:
        reactor.submit(request())
        collect(reactor, 1)
        x = request()
        reactor.submit(x)
        collect(reactor, 1)
        assert x.outcome == "success"
        assert x.flags == (False, False, True, 1)
        assert len(server.requests) == 3
        assert reactor.counters()["reconnects"] == 1


def test_no_resend_when_switched_off() -> None:
    with (
        ScriptedServer(one_then(lambda c: c.reset())) as server,
        reactor_for(server, resend=False) as reactor,
    ):
        reactor.submit(request())
        collect(reactor, 1)
        reactor.submit(request())
        (x,) = collect(reactor, 1)
        assert x.outcome == "reset"


def test_no_resend_on_a_fresh_socket() -> None:
    with ScriptedServer(reply(end="reset")) as server, reactor_for(server) as reactor:
        reactor.submit(request())
        (x,) = collect(reactor, 1)
        assert x.outcome == "reset" and server.accepted == 1


def some_bytes_then_reset(conn: Connection) -> None:
    conn.send(b"HTTP/1.1 2")
    conn.pause(0.01)
    conn.reset()


def late_reset(conn: Connection) -> None:
    conn.pause(0.15)
    conn.reset()


@pytest.mark.parametrize("act", [some_bytes_then_reset, late_reset])
def test_no_resend_when_the_server_may_have_worked_on_it(act: Callable[[Connection], None]) -> None:
    with ScriptedServer(one_then(act)) as server, reactor_for(server) as reactor:
        reactor.submit(request())
        collect(reactor, 1)
        reactor.submit(request())
        (x,) = collect(reactor, 1)
        assert x.outcome == "reset" and len(server.requests) == 2


def test_a_socket_closed_while_idle_is_not_used() -> None:
    def script(conn: Connection) -> None:
        conn.request()
        conn.send(answer("a"))
        if conn.index > 0:
            conn.request()

    with ScriptedServer(script) as server, reactor_for(server) as reactor:
        reactor.submit(request())
        collect(reactor, 1)
        time.sleep(0.05)
        reactor.submit(request())
        (x,) = collect(reactor, 1)
        assert x.outcome == "success" and reactor.counters()["reconnects"] == 0


# -- Outcomes -----------------------------------------------------------------------------------------

GOOD = chunk(text("a"))


@pytest.mark.parametrize(
    ("parts", "end", "outcome", "words"),
    [
        ((STREAM, GOOD, chunk(DONE), END), "close", "success", None),
        ((STREAM, GOOD, chunk(finish()), END), "close", "success", None),
        ((STREAM, GOOD, chunk(finish())), "close", "success", None),
        ((STREAM, GOOD, END), "close", "truncated", None),
        ((STREAM, GOOD), "close", "truncated", None),
        ((STREAM, GOOD), "reset", "truncated", "reset by peer"),
        ((STREAM, chunk(text("a")[:-9])), "close", "reset", None),
        ((STREAM, GOOD, chunk(text("a")[:40])), "close", "truncated", None),
        ((STREAM,), "close", "reset", None),
        ((), "close", "reset", None),
        ((STREAM, chunk(DONE), END), "close", "empty", None),
        ((STREAM, END), "close", "empty", None),
        (
            (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n",),
            "close",
            "empty",
            None,
        ),
        (
            (STREAM, chunk(b'data: {"error":{"message":"kaput","type":"oom"}}\n\n'), chunk(DONE), END),
            "close",
            "server_error_event",
            "kaput",
        ),
        (
            (STREAM, GOOD, chunk(b'event: error\ndata: {"message":"late"}\n\n'), END),
            "close",
            "server_error_event",
            "late",
        ),
        ((STREAM, GOOD, chunk(b"data: {oops\n\n"), chunk(DONE), END), "close", "malformed", "oops"),
        ((b"SSH-2.0-OpenSSH_9.2\r\n\r\n",), "close", "malformed", None),
        ((STREAM, GOOD, b"zz\r\n"), "close", "malformed", None),
        (
            (
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 29\r\n\r\n"
                b'{"error":{"message":"a json"}}'[:-1]
                + b"}",
            ),
            "close",
            "not_a_stream",
            "json",
        ),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), "close", "not_a_stream", None),
        (
            (b"HTTP/1.1 500 Oh\r\nContent-Length: 27\r\n\r\n" + b'{"error":{"message":"bad"}}',),
            "close",
            "http_status",
            "bad",
        ),
        ((b"HTTP/1.1 307 Moved\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",), "close", "http_status", None),
    ],
)
def test_outcomes(parts: tuple[bytes, ...], end: str, outcome: str, words: str | None) -> None:
    x = play(reply(*parts, pause=0.002, end=end), resend=False)
    assert x.outcome == outcome
    if words:
        assert words in (x.error or "")
    if outcome == "success":
        assert x.error is None


@pytest.mark.parametrize("end", ["reset", "close"])
def test_a_connection_that_does_not_take_the_whole_request_is_a_send_error(end: str) -> None:
    def script(conn: Connection) -> None:
        conn.sock.recv(1024)
        conn.pause(0.05)
        if end == "reset":
            conn.reset()

    with ScriptedServer(script) as server, reactor_for(server) as reactor:
        reactor.submit(request(b"x" * 20_000_000))
        (x,) = collect(reactor, 1)
    assert x.outcome == "send_error" and x.status is None
    assert 0 < x.counts[5] < 20_000_000


def test_a_socket_that_never_carried_a_request_is_not_called_reused() -> None:
    with ScriptedServer(serve_forever("a")) as server, reactor_for(server) as reactor:
        withdrawn = request(due_ns=now_ns() + 200 * MS)
        reactor.submit(withdrawn)
        while reactor.counters()["connects"] == 0:
            time.sleep(0.002)
        time.sleep(0.02)
        reactor.cancel(withdrawn)
        collect(reactor, 1)
        reactor.submit(request())
        (x,) = collect(reactor, 1)
        assert server.accepted == 1 and x.outcome == "success" and not x.flags[0]


def test_a_server_that_hangs_up_at_once_is_not_stormed() -> None:
    with ScriptedServer(lambda conn: None) as server, reactor_for(server) as reactor:
        reactor.submit(request(due_ns=now_ns() + 100 * MS))
        (x,) = collect(reactor, 1)
        assert x.outcome in ("reset", "send_error")
        assert server.accepted < 30


def test_connect_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        address = s.getsockname()
    reactor = Reactor([address])
    reactor.submit(request())
    (x,) = collect(reactor, 1)
    assert x.outcome == "connect_error" and x.error_type == "ECONNREFUSED" and x.error
    reactor.close()


def test_timeouts() -> None:
    silent = reply(end="hold")
    assert play(silent, first_byte_timeout_ns=60 * MS).outcome == "timeout_first_byte"
    stalled = reply(STREAM, GOOD, end="hold")
    x = play(stalled, idle_timeout_ns=60 * MS)
    assert x.outcome == "timeout_idle" and x.counts[2] == 1
    assert play(stalled, total_timeout_ns=80 * MS).outcome == "timeout_total"


def test_comments_reset_the_idle_timer_and_are_no_events() -> None:
    """Field fault 8."""
    pings = [chunk(b": keep-alive\n\n")] * 6
    x = play(reply(STREAM, *pings, GOOD, chunk(DONE), END, pause=0.03), idle_timeout_ns=110 * MS)
    assert x.outcome == "success" and x.counts[1] == 2


def test_the_end_does_not_wait_for_a_socket_that_stays_open() -> None:
    """Field fault 18: after [DONE] the framing gets a bounded time, then the socket is dropped."""
    x = play(reply(STREAM, GOOD, chunk(DONE), end="hold"), drain_after_done_ns=40 * MS)
    at = stamps(x)
    assert x.outcome == "success" and x.flags[1]
    assert at["end"] - at["last_event"] >= 40 * MS  # type: ignore[operator]


def test_one_asked_for_token_may_show_no_text() -> None:
    def script(conn: Connection) -> None:
        conn.request()
        conn.send(STREAM, chunk(finish("stop")), chunk(usage(5, 1)), chunk(DONE), END)

    with ScriptedServer(script) as server, reactor_for(server) as reactor:
        reactor.submit(request(max_tokens=1))
        reactor.submit(request(max_tokens=2))
        done = collect(reactor, 2)
    assert {x.outcome for x in done} == {"success", "empty"}


# -- Life and death -----------------------------------------------------------------------------------


def test_close_completes_everything() -> None:
    with ScriptedServer(reply(STREAM, GOOD, end="hold")) as server:
        reactor = Reactor([server.address])
        xs = [request() for _ in range(3)] + [request(due_ns=now_ns() + 60_000 * MS)]
        for x in xs:
            reactor.submit(x)
        time.sleep(0.05)
        with pytest.raises(RuntimeError, match="belongs to its reactor"):
            _ = xs[0].outcome
        reactor.close()
        reactor.close()
        assert len(reactor.pop()) == 4 and reactor.in_reactor == 0
        assert {x.outcome for x in xs} == {"cancelled"}
        with pytest.raises(RuntimeError, match="closed"):
            reactor.submit(request())
        assert reactor.cpu_ns is None


def test_a_dropped_reactor_lets_go_of_its_exchanges() -> None:
    with ScriptedServer(reply(end="hold")) as server:
        x = request()
        before = sys.getrefcount(x)
        reactor = Reactor([server.address])
        reactor.submit(x)
        del reactor
        gc.collect()
        assert sys.getrefcount(x) == before and x.outcome == "cancelled"


def test_an_exchange_is_used_once() -> None:
    with ScriptedServer(serve_forever("a")) as server, reactor_for(server) as reactor:
        x = request()
        reactor.submit(x)
        with pytest.raises(RuntimeError, match="once"):
            reactor.submit(x)
        collect(reactor, 1)
        with pytest.raises(RuntimeError, match="once"):
            reactor.submit(x)


def test_a_forked_child_cannot_use_the_reactor() -> None:
    with ScriptedServer(serve_forever("a")) as server, reactor_for(server) as reactor:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                reactor.submit(request())
            except RuntimeError as error:
                code = 0 if "parent process" in str(error) else 2
            reactor.close()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        reactor.submit(request())
        assert collect(reactor, 1)[0].outcome == "success"


def test_signals_go_to_the_main_thread() -> None:
    with ScriptedServer(serve_forever("a")) as server, reactor_for(server):
        caught: list[int] = []
        old = signal.signal(signal.SIGUSR1, lambda number, _: caught.append(number))
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.01)
        finally:
            signal.signal(signal.SIGUSR1, old)
        assert caught == [signal.SIGUSR1]


def test_options_are_checked() -> None:
    with pytest.raises(TypeError, match="tiemout"):
        Reactor([("127.0.0.1", 1)], tiemout=3)
    with pytest.raises(ValueError, match="at least one"):
        Reactor([])
    with pytest.raises(ValueError, match="port 0"):
        Reactor([("127.0.0.1", 0)])
    assert option_defaults()["connect_timeout_ns"] == 10_000 * MS


def test_ipv6() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this host has no IPv6 loopback")

    def serve() -> None:
        sock, _ = listener.accept()
        conn = Connection(sock, 0, ScriptedServer(serve_forever("a")))
        conn.request()
        conn.send(answer("six"))

    threading.Thread(target=serve, daemon=True).start()
    reactor = Reactor([listener.getsockname()])
    reactor.submit(request())
    assert collect(reactor, 1)[0].outcome == "success"
    reactor.close()
    listener.close()
