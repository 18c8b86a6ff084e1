"""The simulated server over real sockets: the wire format, its accounts, its faults."""

import asyncio
import json
import random
import socket

import pytest
import uvloop
from support.simulated import chat_body, encode, read_reply, simulated, until

BLOCK = 64


def words(count: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(1000)}" for _ in range(count))


def run(main):
    return uvloop.run(main())


def test_a_stream_is_role_tokens_usage_done_each_in_its_own_chunk(tmp_path):
    async def main():
        async with simulated(tmp_path) as sim:
            return await sim.chat("hello  there\n\nworld", max_completion_tokens=5)

    reply = run(main)
    assert (reply.status, reply.complete) == (200, True)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert all(c.startswith(b"data: ") and c.endswith(b"\n\n") for c in reply.chunks)
    assert len(reply.chunks) == 1 + 5 + 1 + 1
    first, *_, usage = reply.events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {(e["id"], e["object"], e["model"], e["created"]) for e in reply.events} == {
        (first["id"], "chat.completion.chunk", "simulated", first["created"])
    }
    assert len(reply.texts) == 5 and all(len(t.split()) == 1 for t in reply.texts)
    reasons = [e["choices"][0]["finish_reason"] for e in reply.events[:-1]]
    assert reasons == [None] * 5 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_usage_only_if_asked_and_only_if_the_server_has_it(tmp_path):
    async def main():
        async with simulated(tmp_path) as sim:
            silent = [
                await sim.chat("a", stream_options=None),
                await sim.chat("a", stream_options={"include_usage": False}),
            ]
        async with simulated(tmp_path, no_usage=True) as sim:
            silent += [await sim.chat("a")]
            whole = await sim.chat("a", stream=False)
        async with simulated(tmp_path, no_cached_tokens=True) as sim:
            uncounted = await sim.chat("a")
        return silent, whole, uncounted

    silent, whole, uncounted = run(main)
    for reply in silent:
        assert all("usage" not in e for e in reply.events) and len(reply.texts) == 4
    assert whole.json["usage"] is None
    assert uncounted.usage["prompt_tokens_details"] is None


def test_an_answer_that_is_not_streamed_says_the_same(tmp_path):
    async def main():
        async with simulated(tmp_path) as sim:
            return await sim.chat("a b c", stream=False, max_completion_tokens=None, max_tokens=7), sim.path

    reply, _ = run(main)
    choice = reply.json["choices"][0]
    assert len(choice["message"]["content"].split()) == reply.json["usage"]["completion_tokens"] == 7
    assert choice["finish_reason"] == "length" and reply.json["object"] == "chat.completion"


def test_the_answer_stops_early_only_without_ignore_eos(tmp_path):
    async def main():
        async with simulated(tmp_path, stop_probability=1.0, itl_ms=0.01) as sim:
            free = [await sim.chat("a", ignore_eos=False, max_completion_tokens=50) for _ in range(5)]
            held = [await sim.chat("a", max_completion_tokens=50) for _ in range(5)]
        return free, held

    free, held = run(main)
    for reply in free:
        assert reply.finish_reason == "stop"
        assert len(reply.texts) == reply.usage["completion_tokens"] < 50
    assert all(r.finish_reason == "length" and len(r.texts) == 50 for r in held)


def test_cached_tokens_are_those_of_an_independent_count(tmp_path):
    """A conversation that grows, forks and starts again, in words and whole blocks."""
    system, other = words(100, 1), words(100, 2)
    turns = [words(n, 10 + n) for n in (30, 200, 64, 1, 500)]
    prompts: list[list[tuple[str, str]]] = []
    for head in (system, other, system):
        for k in range(1, len(turns) + 1):
            roles = ["user", "assistant"] * 3
            prompts.append([("system", head), *zip(roles, turns[:k], strict=False)])
    prompts.append([("system", system), ("assistant", turns[0])])  # the same words in another role

    async def main():
        async with simulated(tmp_path) as sim:
            usages = [(await sim.chat(*p)).usage for p in prompts]
            metrics = await sim.metrics()
        return usages, metrics, sim.log

    usages, metrics, log = run(main)
    seen: list[list[tuple[str, str]]] = []
    expected = []
    for prompt in prompts:
        tokens = [(role if i == 0 else "", w) for role, t in prompt for i, w in enumerate(t.split())]
        best = 0
        for earlier in seen:
            same = 0
            while same < min(len(tokens), len(earlier)) and tokens[same] == earlier[same]:
                same += 1
            best = max(best, same)
        expected.append((len(tokens), min(best, len(tokens) - 1) // BLOCK * BLOCK))
        seen.append(tokens)
    assert [(u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"]) for u in usages] == expected
    assert [(r.prompt_tokens, r.cached_tokens) for r in log] == expected
    total, cached = (sum(x) for x in zip(*expected, strict=True))
    assert cached > total / 2
    assert metrics["vllm:prompt_tokens_total"] == metrics["vllm:prefix_cache_queries_total"] == total
    assert metrics["vllm:prefix_cache_hits_total"] == cached
    assert metrics['vllm:prompt_tokens_by_source_total{source="local_compute"}'] == total - cached
    assert metrics['vllm:prompt_tokens_by_source_total{source="local_cache_hit"}'] == cached


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/flush_cache"])
def test_the_cache_can_be_emptied_and_turned_off(tmp_path, path):
    async def main():
        text = words(200)
        async with simulated(tmp_path) as sim:
            replies = [await sim.chat(text), await sim.chat(text)]
            assert (await sim.request("POST", path)).status == 200
            replies.append(await sim.chat(text))
        async with simulated(tmp_path, cache_tokens=0) as sim:
            replies += [await sim.chat(text), await sim.chat(text)]
        return [r.usage["prompt_tokens_details"]["cached_tokens"] for r in replies]

    assert run(main) == [0, 192, 0, 0, 0]


def test_many_streams_at_once_lose_no_token_and_keep_to_their_order(tmp_path):
    async def main():
        async with simulated(tmp_path, itl_ms=1.0) as sim:
            replies = await asyncio.gather(*(sim.chat("a b", max_completion_tokens=40) for _ in range(60)))
            metrics = await sim.metrics()
        return replies, metrics, sim.log

    replies, metrics, log = run(main)
    # The words of an answer are consecutive in the server's list, so a swap or a loss would show.
    from agentx_engine.sim.stream import answer_words

    place = {w.decode(): i for i, w in enumerate(answer_words())}
    for reply in replies:
        start = place[reply.texts[0]]
        assert [place[t] for t in reply.texts] == [(start + i) % len(place) for i in range(40)]
    assert sum(r.usage["completion_tokens"] for r in replies) == 2400
    assert metrics["vllm:generation_tokens_total"] == 2400
    assert metrics['vllm:request_success_total{finished_reason="length"}'] == 60
    assert metrics["vllm:time_to_first_token_seconds_count"] == 60
    assert metrics['vllm:time_to_first_token_seconds_bucket{le="+Inf"}'] == 60
    assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
    for r in log:
        assert r.arrival_ns <= r.body_ns <= r.admitted_ns <= r.first_token_ns < r.last_token_ns <= r.end_ns
        # Never early: 39 intervals of 1 ms after the first token's deadline, which the token may miss.
        assert r.last_token_ns - r.admitted_ns >= 39_000_000


def test_waiting_prefilling_and_batch_size_follow_the_model(tmp_path):
    """In deadlines: two run, the third waits for an end; prefill is by uncached tokens."""

    async def main():
        async with simulated(
            tmp_path, max_running=2, itl_ms=2.0, prefill_rate=10_000.0, ttft_ms=1.0, itl_slope_us=500.0
        ) as sim:
            tasks = [asyncio.create_task(sim.chat(words(100, i), max_completion_tokens=10)) for i in range(3)]
            await until(lambda: sim.server.engine.metrics.waiting)
            m = await sim.metrics()
            await asyncio.gather(*tasks)
        return m, sim.log

    metrics, log = run(main)
    assert metrics["vllm:num_requests_running"] == 2
    assert metrics["vllm:kv_cache_usage_perc"] == 200 / 4_000_000
    late = max(log, key=lambda r: r.admitted_ns)
    assert late.admitted_ns >= min(r.last_token_ns for r in log if r is not late)
    assert all(r.first_token_ns - r.admitted_ns >= 11_000_000 for r in log)  # 1 ms + 100 tokens at 10/ms
    # At least 9 intervals of 2 ms plus 0.5 ms for itself, less what the first token was late.
    assert all(r.last_token_ns - r.admitted_ns >= 11_000_000 + 9 * 2_500_000 for r in log)


def test_shared_prefill_is_one_after_the_other(tmp_path):
    async def main():
        async with simulated(tmp_path, prefill_shared=True, prefill_rate=10_000.0) as sim:
            await asyncio.gather(*(sim.chat(words(100, i), max_completion_tokens=1) for i in range(4)))
        return sim.log

    log = run(main)
    begin = min(r.admitted_ns for r in log)
    firsts = sorted(r.first_token_ns for r in log)
    assert all(t - begin >= (i + 1) * 10_000_000 for i, t in enumerate(firsts))


def test_several_tokens_per_event_and_reasoning_first(tmp_path):
    async def main():
        async with simulated(tmp_path, tokens_per_event=4, reasoning_tokens=6) as sim:
            return await sim.chat("a", max_completion_tokens=17)

    reply = run(main)
    deltas = [e["choices"][0]["delta"] for e in reply.events if e["choices"]][1:]
    sizes = [(k, len(v.split())) for d in deltas for k, v in d.items()]
    assert sizes == [
        ("reasoning_content", 4),
        ("reasoning_content", 2),
        *[("content", 4)] * 2,
        ("content", 3),
    ]
    assert reply.usage["completion_tokens"] == 17
    assert reply.usage["completion_tokens_details"] == {"reasoning_tokens": 6}


def test_requests_that_are_refused(tmp_path):
    async def main():
        async with simulated(tmp_path, max_model_len=20) as sim:
            path = "/v1/chat/completions"
            return {
                "model": await sim.chat("a", model="other"),
                "context": await sim.chat(words(18)),
                "fits": await sim.chat(words(16)),
                "json": await sim.request("POST", path, b"{nope"),
                "utf8": await sim.request("POST", path, b'{"messages":[{"role":"user","content":"\xff"}]}'),
                "type": await sim.request("POST", path, {"messages": "x"}),
                "empty": await sim.chat(),
                "limit": await sim.chat("a", max_completion_tokens=0),
                "path": await sim.request("GET", "/v1/nothing"),
                "method": await sim.request("GET", path),
            }, sim.log

    replies, log = run(main)
    assert {k: r.status for k, r in replies.items()} == {
        "model": 404,
        "context": 400,
        "fits": 200,
        "json": 400,
        "utf8": 400,
        "type": 400,
        "empty": 400,
        "limit": 400,
        "path": 404,
        "method": 405,
    }
    errors = {k: r.json["error"]["message"] for k, r in replies.items() if r.status != 200}
    assert errors["model"] == "The model `other` does not exist."
    assert "maximum context length is 20 tokens" in errors["context"]
    assert "22 tokens (18 in the messages, 4 in the completion)" in errors["context"]
    assert "messages" in errors["type"]
    assert [r.ended for r in log].count("refused") == 7
    assert {r.status for r in log if r.ended == "refused"} == {400, 404}


def test_an_old_protocol_gets_no_stream_but_an_answer(tmp_path):
    async def main():
        replies = []
        async with simulated(tmp_path) as sim:
            for stream in (True, False):
                reader, writer = await sim.open()
                request = encode("POST", "/v1/chat/completions", chat_body("a", stream=stream))
                writer.write(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
                replies.append((await read_reply(reader)).status)
        return replies

    assert run(main) == [505, 200]


def test_models_health_version(tmp_path):
    async def main():
        async with simulated(tmp_path, model=("a", "b"), max_model_len=4096) as sim:
            return [await sim.request("GET", p) for p in ("/v1/models", "/health", "/version")]

    models, health, version = run(main)
    assert [(m["id"], m["max_model_len"]) for m in models.json["data"]] == [("a", 4096), ("b", 4096)]
    assert (health.status, health.body) == (200, b"")
    assert version.json["version"].startswith("agentx-engine-sim ")


def test_the_key_guards_v1_only(tmp_path):
    async def main():
        async with simulated(tmp_path, api_key="hunter2") as sim:
            return [
                (await sim.request("GET", path, headers=header)).status
                for path in ("/v1/models", "/health", "/metrics")
                for header in ("", "Authorization: Bearer wrong\r\n", "Authorization: Bearer hunter2\r\n")
            ]

    assert run(main) == [401, 401, 200, 200, 200, 200, 200, 200, 200]


@pytest.mark.parametrize("status", [500, 503])
def test_injected_statuses_are_seeded(tmp_path, status):
    async def main():
        async with simulated(tmp_path, error_rate=0.5, error_as=str(status), seed=3) as sim:
            replies = [await sim.chat("a", max_completion_tokens=1) for _ in range(20)]
        return [r.status for r in replies], sim.log

    first, log = run(main)
    (tmp_path / "requests.jsonl").unlink()
    again, _ = run(main)
    assert first == again
    assert set(first) == {200, status}
    assert [r.status for r in log] == first
    assert [r.error for r in log if r.status == status] == ["simulated failure"] * first.count(status)


def test_an_error_event_in_a_good_stream(tmp_path):
    async def main():
        async with simulated(tmp_path, error_rate=1.0, error_as="event") as sim:
            reply = await sim.chat("a", max_completion_tokens=10)
            whole = await sim.chat("a", max_completion_tokens=10, stream=False)
            metrics = await sim.metrics()
        return reply, whole, metrics, sim.log

    reply, whole, metrics, log = run(main)
    assert (reply.status, reply.complete, reply.data[-1]) == (200, True, "[DONE]")
    assert reply.events[-1]["error"]["code"] == 500
    assert len(reply.texts) == 5 and reply.finish_reason is None
    assert whole.status == 500
    assert [(r.ended, r.status, r.completion_tokens) for r in log] == [("error", 200, 5), ("refused", 500, 5)]
    assert metrics['vllm:request_success_total{finished_reason="error"}'] == 2


def test_a_stall_delays_but_loses_nothing(tmp_path):
    async def main():
        async with simulated(tmp_path, stall_rate=1.0, stall_ms=40.0) as sim:
            reply = await sim.chat("a", max_completion_tokens=20)
        return reply, sim.log[0]

    reply, record = run(main)
    assert len(reply.texts) == 20
    assert record.last_token_ns - record.admitted_ns >= 40_000_000


@pytest.mark.parametrize("moment", ["waiting", "prefill", "decode"])
def test_a_client_that_leaves_ends_its_generation(tmp_path, moment):
    async def main():
        slow = {"prefill": {"ttft_ms": 60_000.0}, "decode": {"itl_ms": 5.0}, "waiting": {"max_running": 1}}
        async with simulated(tmp_path, **{"itl_ms": 5.0} | slow[moment]) as sim:
            if moment == "waiting":
                _, blocker = await sim.open()
                body = chat_body("a", max_completion_tokens=100_000)
                blocker.write(encode("POST", "/v1/chat/completions", body))
                await until(lambda: sim.server.engine.metrics.running)
            reader, writer = await sim.open()
            writer.write(
                encode("POST", "/v1/chat/completions", chat_body("a b", max_completion_tokens=100_000))
            )
            await reader.readuntil(b'"role"')
            if moment == "decode":
                await reader.readuntil(b'"content":" ')
            writer.close()
            await until(lambda: any(r.prompt_tokens == 2 for r in sim.log))
            if moment == "waiting":
                blocker.close()
            await until(lambda: not sim.server.engine.metrics.running)
            generated = (await sim.metrics())["vllm:generation_tokens_total"]
            await asyncio.sleep(0.02)
            later = await sim.metrics()
        return [r for r in sim.log if r.prompt_tokens == 2], generated, later

    (record,), generated, later = run(main)
    assert (record.ended, record.cut, record.status) == ("client", True, 200)
    assert (record.completion_tokens > 0) == (moment == "decode")
    assert (record.admitted_ns is None) == (moment == "waiting")
    assert later["vllm:generation_tokens_total"] == generated
    assert later['vllm:request_success_total{finished_reason="abort"}'] >= 1
    assert later["vllm:kv_cache_usage_perc"] == later["vllm:num_requests_waiting"] == 0


def test_a_reader_that_does_not_read_holds_its_stream_back_and_no_other(tmp_path):
    async def main():
        async with simulated(tmp_path, itl_ms=0.001) as sim:
            slow = socket.create_connection(("127.0.0.1", sim.port))
            slow.sendall(encode("POST", "/v1/chat/completions", chat_body("a", max_completion_tokens=60_000)))
            slow.setblocking(False)
            await until(lambda: sim.server.engine._running)
            (held,) = sim.server.engine._running
            await until(lambda: held.blocked)
            other = await sim.chat("b", max_completion_tokens=100)
            assert held.stream.unsent() < (1 << 20) + 64 * 1024
            reader = asyncio.StreamReader(limit=1 << 27)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader), slow
            )
            reply = await read_reply(reader)
        return other, reply, sim.log

    other, reply, log = run(main)
    assert len(other.texts) == 100
    assert reply.complete and len(reply.texts) == 60_000
    assert log[0].blocked > 0 and log[1].blocked == 0


def test_a_stop_cuts_what_is_open_and_says_so(tmp_path):
    async def main():
        async with simulated(tmp_path, itl_ms=5.0) as sim:
            reader, writer = await sim.open()
            writer.write(encode("POST", "/v1/chat/completions", chat_body("a", max_completion_tokens=10_000)))
            await reader.readuntil(b'"content":" ')
            await sim.server.stop()
            rest = await asyncio.gather(reader.read(), return_exceptions=True)
        return rest[0], sim.log

    rest, log = run(main)
    assert isinstance(rest, ConnectionError) or not rest.endswith(b"0\r\n\r\n")
    assert [(r.ended, r.cut) for r in log] == [("shutdown", False)]


def test_the_log_knows_headers_roles_limits_and_connections(tmp_path):
    async def main():
        async with simulated(tmp_path) as sim:
            reader, writer = await sim.open()
            for i in range(2):
                body = chat_body(("system", "s"), "u", ("assistant", "a"), "u", max_completion_tokens=2 + i)
                headers = f"x-request-id: r{i}\r\nX-CORRELATION-ID: c\r\n"
                writer.write(encode("POST", "/v1/chat/completions", body, headers))
                await read_reply(reader)
            await sim.chat("x", ignore_eos=None, max_completion_tokens=None, max_tokens=1, stream=None)
        return sim.log

    a, b, c = run(main)
    assert (a.request_id, a.correlation_id, b.request_id) == ("r0", "c", "r1")
    assert a.roles == {"system": 1, "user": 2, "assistant": 1}
    assert (a.max_tokens, b.max_tokens, c.max_tokens) == (2, 3, 1)
    assert (a.ignore_eos, c.ignore_eos, a.stream, c.stream) == (True, False, True, False)
    assert a.peer_port == b.peer_port != c.peer_port
    assert [r.number for r in (a, b, c)] == [0, 1, 2]
    assert c.request_id is None


def test_big_bodies_are_parsed_beside_running_streams(tmp_path):
    """A body above the inline bound goes through the worker thread and counts the same."""

    async def main():
        async with simulated(tmp_path, itl_ms=1.0) as sim:
            small = asyncio.create_task(sim.chat("a", max_completion_tokens=100))
            big = await asyncio.gather(*(sim.chat(words(50_000)) for _ in range(3)))
            again = await sim.chat(words(50_000))
            return await small, big, again

    small, big, again = run(main)
    assert len(small.texts) == 100
    assert {r.usage["prompt_tokens"] for r in big} == {50_000}
    assert (
        again.usage["prompt_tokens_details"]["cached_tokens"] == 50_000 // 64 * 64 - (50_000 % 64 == 0) * 64
    )


def test_content_parts_and_unknown_fields_are_accepted(tmp_path):
    async def main():
        async with simulated(tmp_path) as sim:
            body = chat_body("x", temperature=0.1, tools=[{"type": "function"}])
            body["messages"] = [
                {
                    "role": "system",
                    "content": [{"type": "text", "text": "a b"}, {"type": "text", "text": "c"}],
                },
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
                {"role": "tool", "content": "d", "tool_call_id": "1"},
            ]
            return await sim.request("POST", "/v1/chat/completions", body)

    assert run(main).usage["prompt_tokens"] == 4


def test_metrics_page_is_the_text_format(tmp_path):
    async def main():
        async with simulated(tmp_path, model=('we"ird\\',)) as sim:
            await sim.chat("a", model='we"ird\\')
            return await sim.request("GET", "/metrics")

    reply = run(main)
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = reply.body.decode().splitlines()
    kinds = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    for name, kind in kinds.items():
        assert name.endswith("_total") == (kind == "counter")
    for line in lines:
        if line.startswith("#"):
            continue
        name, _, rest = line.partition("{")
        assert '{engine="0",model_name="we\\"ird\\\\"' in line
        family = next(n for n in (name, name.rpartition("_")[0]) if n in kinds)
        assert (kinds[family] == "histogram") == (family != name)
        float(rest.rpartition(" ")[2])
    buckets = [line for line in lines if line.startswith("vllm:time_to_first_token_seconds_bucket")]
    counts = [float(line.rpartition(" ")[2]) for line in buckets]
    assert counts == sorted(counts) and counts[-1] == 1 and 'le="+Inf"' in buckets[-1]


def test_answers_are_json_whatever_the_model_is_called(tmp_path):
    name = 'a"b\\u0000\x00é'

    async def main():
        async with simulated(tmp_path, model=(name,)) as sim:
            return await sim.chat("a", model=name)

    reply = run(main)
    assert {e["model"] for e in reply.events} == {name} and len(reply.texts) == 4
    assert json.loads(reply.data[0])["model"] == name
