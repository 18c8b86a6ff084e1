"""The native transport on an event loop: handles, results, threads, overflow, closing."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from support.scripted import STREAM, ScriptedServer, answer, chunk, serve_forever, text

from agentx_engine.core.clock import now_ns
from agentx_engine.core.rope import Rope
from agentx_engine.errors import UserError
from agentx_engine.transport.base import Outcome, Request
from agentx_engine.transport.native import NativeOptions, NativeTransport


def url(server: ScriptedServer) -> str:
    return "http://{}:{}".format(*server.address)


def run(server: ScriptedServer, n: int = 1, options: NativeOptions | None = None, **request: object):  # type: ignore[no-untyped-def]
    async def go():  # type: ignore[no-untyped-def]
        async with NativeTransport.to(url(server), options=options) as transport:
            handles = [
                transport.arm(
                    Request(body=Rope([b"{}"]), due_ns=now_ns(), max_tokens=5, session=i, **request)  # type: ignore[arg-type]
                )
                for i in range(n)
            ]
            results = [await h.done for h in handles]
            return results, transport.counters(), transport.histograms()

    return uvloop.run(go())


def test_a_result_carries_everything() -> None:
    with ScriptedServer(serve_forever("a", "b")) as server:
        (result,), counters, histograms = run(server, headers=b"X-Request-ID: r7\r\n")
    assert result.outcome is Outcome.SUCCESS and result.outcome.ok
    assert result.usage is not None and result.usage.prompt == 3 and result.usage.cached is None
    assert result.token_ns is not None and result.token_ns.shape == (2,)
    assert result.plan_end_ns == result.stamps.last_event
    assert counters["succeeded"] == 1 and histograms["ttft"].count == 1
    head = server.requests[0].head
    assert b"POST /v1/chat/completions HTTP/1.1" in head and b"X-Request-ID: r7" in head
    assert b"Accept: text/event-stream" in head and b"Content-Length: 2" in head


def test_several_threads_share_the_work_and_their_numbers_are_merged() -> None:
    with ScriptedServer(serve_forever("a")) as server:
        results, counters, histograms = run(server, 40, NativeOptions(threads=3))
    assert all(r.outcome.ok for r in results)
    assert counters["completed"] == 40 and histograms["ttft"].count == 40


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"This model\'s maximum context length is 8192 tokens"}}',
        b'{"error":{"message":"too long","code":"context_length_exceeded"}}',
        b"Prompt is too long",
    ],
)
def test_context_overflow_in_any_vendors_words(body: bytes) -> None:
    """Field fault 54."""

    def script(conn) -> None:  # type: ignore[no-untyped-def]
        conn.request()
        conn.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    with ScriptedServer(script) as server:
        (result,), _, _ = run(server)
    assert result.outcome is Outcome.CONTEXT_OVERFLOW and result.status == 400


def test_headers_of_the_run_are_sent_and_not_described() -> None:
    options = NativeOptions(headers=(("Authorization", "Bearer canary-key"),))
    with ScriptedServer(serve_forever("a")) as server:
        run(server, 1, options)
        assert b"Authorization: Bearer canary-key" in server.requests[0].head
        described = str(NativeTransport.to(url(server), options=options).describe())
    assert "canary" not in described and "Authorization" in described


def test_close_gives_every_waiter_its_result() -> None:
    def script(conn) -> None:  # type: ignore[no-untyped-def]
        conn.request()
        conn.send(STREAM + chunk(text("a")))
        conn.request()

    async def go(server: ScriptedServer) -> list[Outcome]:
        transport = NativeTransport.to(url(server))
        transport.start()
        handles = [transport.post({}) for _ in range(3)]
        await asyncio.sleep(0.05)
        handles[0].cancel()
        first = await handles[0].done
        await transport.close()
        return [first.outcome, *[(await h.done).outcome for h in handles[1:]]]

    with ScriptedServer(script) as server:
        assert uvloop.run(go(server)) == [Outcome.CANCELLED] * 3


def test_an_abandoned_waiter_does_no_harm() -> None:
    def script(conn) -> None:  # type: ignore[no-untyped-def]
        conn.request()
        conn.pause(0.1)
        conn.send(answer("a"))

    async def go(server: ScriptedServer) -> int:
        async with NativeTransport.to(url(server)) as transport:
            handle = transport.post({})
            waiter = asyncio.ensure_future(asyncio.wait_for(handle.done, 0.02))
            with pytest.raises(TimeoutError):
                await waiter
            await asyncio.sleep(0.15)
            return transport.counters()["succeeded"]

    with ScriptedServer(script) as server:
        assert uvloop.run(go(server)) == 1


def test_a_wrong_url_is_the_users_error() -> None:
    with pytest.raises(UserError, match="port"):
        NativeTransport.to("http://127.0.0.1:99999")


def test_an_unstarted_transport_says_so() -> None:
    transport = NativeTransport.to("http://127.0.0.1:9")
    with pytest.raises(RuntimeError, match="not been started"):
        transport.post({})
