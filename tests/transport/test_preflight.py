"""Checks before a run: against servers that lack, refuse or garble something."""

import asyncio
import contextlib
import json

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from support.bad_server import MODELS, answer, raw_serving, serving, sse, token, usage
from support.simulated import simulated

from agentx_engine.errors import PreflightError, UserError
from agentx_engine.transport import preflight as pf
from agentx_engine.transport.control import ControlClient, Unreachable
from agentx_engine.transport.endpoint import Endpoint, parse_base_url
from agentx_engine.transport.preflight import ModelInfo, Support
from agentx_engine.transport.probe import read_stream

CHAT = "POST /v1/chat/completions"
KEY = "sk-hunter2-0123456789"


def run(main, *args, **kwargs):
    async def bounded():
        async with asyncio.timeout(60):
            return await main(*args, **kwargs)

    return asyncio.run(bounded())


def error_of(main, *args) -> str:
    with pytest.raises(PreflightError) as e:
        run(main, *args)
    return str(e.value)


async def probed(chat, **kwargs):
    async with serving({CHAT: chat}) as endpoint, ControlClient() as client:
        return await pf.probe(client, endpoint, "m", **kwargs)


# --- readiness ---------------------------------------------------------------------------------------


def test_a_server_that_comes_up_late_is_waited_for():
    """Nothing listens; then an error status; then an empty list; then a model."""

    async def main():
        states = [answer("starting", 503), answer({"data": []}), answer(MODELS)]
        seen = []

        async def models(request):
            seen.append(request.path)
            return await states[min(len(seen) - 1, 2)](request)

        async with serving({}) as free:
            pass
        async with ControlClient() as client:
            waiting = asyncio.create_task(pf.wait_ready(client, [free], 30))
            await asyncio.sleep(0.15)
            assert not waiting.done()
            async with serving({"GET /v1/models": models}, port=free.port):
                return await waiting, seen

    (waited,), seen = run(main)
    assert len(seen) == 3 and waited > 0


def test_the_error_says_what_was_last_seen():
    async def nothing_listens():
        async with serving({}) as free:
            pass
        async with ControlClient() as client:
            await pf.wait_ready(client, [free], 0)

    async def never(route):
        async with serving({"GET /v1/models": route}) as endpoint, ControlClient() as client:
            await pf.wait_ready(client, [endpoint], 0.05)

    said = error_of(nothing_listens)
    assert "Connection refused" in said and "--wait-ready 600" in said
    assert "answered 503: loading the weights" in error_of(
        never, answer({"error": "loading the weights"}, 503)
    )
    assert "lists no model yet" in error_of(never, answer({"data": []}))


def test_one_of_two_servers_missing_is_named_and_nobody_hangs():
    async def main():
        async with serving({}) as gone:
            pass
        async with serving({}) as there, ControlClient() as client:
            await pf.wait_ready(client, [there, gone], 0.05)
        return gone

    with pytest.raises(PreflightError, match="not ready"):
        run(main)


def test_without_a_model_list_health_decides():
    async def main(routes):
        missing = {"GET /v1/models": answer({"detail": "Not Found"}, 404)}
        async with serving(missing | routes) as endpoint, ControlClient() as client:
            await pf.wait_ready(client, [endpoint], 0)
            return await pf.fetch_models(client, endpoint)

    assert run(main, {"GET /health": answer("")}) is None
    assert run(main, {}) is None
    assert "/health answered 503" in error_of(main, {"GET /health": answer("", 503)})


def test_a_wrong_key_is_not_waited_for(tmp_path):
    async def main():
        async with simulated(tmp_path, api_key=KEY) as sim, ControlClient(api_key="sk-wrong") as client:
            endpoint = parse_base_url(f"127.0.0.1:{sim.port}")
            await pf.wait_ready(client, [endpoint], 60)

    async def bare():
        async with serving({"GET /v1/models": answer("", 401)}) as endpoint, ControlClient() as client:
            await pf.wait_ready(client, [endpoint], 60)

    assert "--api-key" in error_of(bare)
    said = error_of(main)
    assert "status 401" in said and "sk-wrong" not in said and KEY not in said


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"", "closed the connection"),
        (b"SSH-2.0-OpenSSH_9\r\n", "127.0.0.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "127.0.0.1"),
    ],
)
def test_what_is_no_http_is_an_error_and_no_traceback(reply, said):
    async def main():
        async with raw_serving(reply) as endpoint, ControlClient() as client:
            await pf.wait_ready(client, [endpoint], 0)

    assert said in error_of(main)


def test_a_server_that_does_not_answer_is_given_up():
    async def main():
        async def silent(_):
            await asyncio.sleep(30)

        async with serving({"GET /slow": silent}) as endpoint, ControlClient() as client:
            await client.get(endpoint.url("/slow"), timeout_s=0.05)

    with pytest.raises(Unreachable, match=r"no answer within 0\.05 s"):
        run(main)


# --- models, versions, context -----------------------------------------------------------------------

E = Endpoint("h", 1)


def test_a_model_that_is_not_served_lists_what_is():
    served = [ModelInfo("a"), ModelInfo("b", 10)]
    assert pf.check_model(E, served, "b") == ModelInfo("b", 10)
    with pytest.raises(PreflightError, match=r"'c' is not served; served: a, b"):
        pf.check_model(E, served, "c")
    many = [ModelInfo(f"m{i}") for i in range(30)]
    with pytest.raises(PreflightError, match=r"m9 and 20 more"):
        pf.check_model(E, many, "c")
    with pytest.raises(PreflightError, match="served: none"):
        pf.check_model(E, [], "c")


def test_without_a_name_the_only_model_is_taken():
    assert pf.check_model(E, [ModelInfo("a", 7)], None) == ModelInfo("a", 7)
    with pytest.raises(PreflightError, match=r"2 models are served \(a, b\); name one with --model"):
        pf.check_model(E, [ModelInfo("a"), ModelInfo("b")], None)
    with pytest.raises(PreflightError, match="no model is served"):
        pf.check_model(E, [], None)
    assert pf.check_model(E, None, "x") == ModelInfo("x")
    with pytest.raises(PreflightError, match="does not list its models"):
        pf.check_model(E, None, None)


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        ({"id": "m", "max_model_len": 8192}, 8192),
        ({"id": "m", "context_window": 1024}, 1024),
        ({"id": "m", "max_model_len": None, "context_length": 5}, 5),
        ({"id": "m"}, None),
        ({"id": "m", "max_model_len": "8192"}, None),
        ({"id": "m", "max_model_len": 0}, None),
    ],
)
def test_the_window_is_what_is_stated(entry, window):
    async def main():
        listed = {"data": [entry, {"no": "id"}, 7]}
        async with serving({"GET /v1/models": answer(listed)}) as endpoint, ControlClient() as client:
            return await pf.fetch_models(client, endpoint)

    models = run(main)
    assert [(m.id, m.max_model_len) for m in models] == [("m", window)]
    assert pf.context_window(models) == window


@pytest.mark.parametrize(
    "route", [answer("<html>hi</html>", content_type="text/html"), answer([1]), answer({}, 500)]
)
def test_what_is_no_model_list_is_an_error(route):
    async def main():
        async with serving({"GET /v1/models": route}) as endpoint, ControlClient() as client:
            await pf.fetch_models(client, endpoint)

    assert "no list of models but status" in error_of(main)


def test_versions():
    async def main(routes):
        async with serving(routes) as endpoint, ControlClient() as client:
            found = await pf.fetch_version(client, endpoint)
            return found.engine, found.version

    assert run(main, {"GET /version": answer({"version": "0.11.0"})}) == ("vllm", "0.11.0")
    assert run(main, {"GET /get_server_info": answer({"version": "0.5.2"})}) == ("sglang", "0.5.2")
    assert run(main, {}) == (None, None)
    assert run(main, {"GET /version": answer("garbage"), "GET /get_server_info": answer({}, 500)}) == (
        None,
        None,
    )
    assert run(main, {"GET /version": answer({"version": "sim 1"})}) == (None, "sim 1")


def test_the_corpus_fits_or_the_refusal_says_what_to_do():
    check = pf.check_context
    assert check(1000, 1000, None) == pf.ContextDecision()
    assert check(None, 10**6, None) == pf.ContextDecision()
    refused = check(1000, 1001, None)
    assert refused.limit is None
    for part in ("up to 1001 tokens", "context window is 1000", "--max-context auto", "at least 1001"):
        assert part in refused.refusal
    assert check(1000, 1001, "auto") == pf.ContextDecision(limit=1000)
    assert check(1000, 900, "auto") == pf.ContextDecision(limit=None)
    assert check(1000, 1000, "auto", overhead=20) == pf.ContextDecision(limit=980)
    assert "20 go to template" in check(1000, 990, None, overhead=20).refusal
    assert "does not state" in check(None, 5, "auto").refusal
    assert "leaves nothing" in check(10, 5, "auto", overhead=10).refusal
    assert check(1000, 5000, 800) == pf.ContextDecision(limit=800)
    assert check(1000, 700, 800) == pf.ContextDecision(limit=None)
    assert "--max-context 2000 lets requests of up to 2000" in check(1000, 5000, 2000).refusal
    assert "up to 1500 tokens" in check(1000, 1500, 2000).refusal
    assert check(None, 5000, 2000) == pf.ContextDecision(limit=2000)


@given(
    st.none() | st.integers(1, 100),
    st.integers(1, 100),
    st.none() | st.just("auto") | st.integers(1, 100),
    st.integers(0, 20),
)
def test_what_is_let_through_always_fits(window, peak, max_context, overhead):
    decision = pf.check_context(window, peak, max_context, overhead)
    if decision.refusal is None and window is not None:
        largest = peak if decision.limit is None else min(peak, decision.limit)
        assert largest + overhead <= window


# --- probe -------------------------------------------------------------------------------------------


def test_a_server_that_has_everything(tmp_path):
    async def main():
        async with simulated(tmp_path, stop_probability=1.0) as sim, ControlClient() as client:
            endpoint = parse_base_url(f"127.0.0.1:{sim.port}")
            return await pf.probe(client, endpoint, "simulated"), sim.log

    report, log = run(main)
    assert (report.usage, report.cached, report.ignore_eos) == (Support.YES,) * 3
    assert report.hints == [] and report.limit_field == "max_completion_tokens"
    assert [r.cached_tokens for r in log] == [0, report.cached_tokens] and report.cached_tokens >= 512
    assert report.prompt_tokens == log[0].prompt_tokens > 512


def test_two_probes_of_one_server_do_not_hit_each_other(tmp_path):
    async def main():
        async with simulated(tmp_path) as sim, ControlClient() as client:
            endpoint = parse_base_url(f"127.0.0.1:{sim.port}")
            for _ in range(2):
                await pf.probe(client, endpoint, "simulated")
            return [r.cached_tokens for r in sim.log]

    a, b, c, d = run(main)
    assert a == c == 0 and b == d > 0


@pytest.mark.parametrize(
    ("options", "field", "value", "said"),
    [
        ({"no_usage": True}, "usage", Support.NO, "no usage in the stream"),
        ({"no_usage": True}, "cached", Support.UNKNOWN, "no usage"),
        ({"no_cached_tokens": True}, "cached", Support.NO, "--enable-prompt-tokens-details"),
        ({"no_cached_tokens": True}, "cached", Support.NO, "--enable-cache-report"),
        ({"cache_tokens": 0}, "cached", Support.YES, "prefix caching is off"),
        (
            {"no_ignore_eos": True, "stop_probability": 1.0},
            "ignore_eos",
            Support.NO,
            "ignore_eos has no effect",
        ),
    ],
)
def test_what_is_missing_is_named_with_the_flag_that_gives_it(tmp_path, options, field, value, said):
    async def main():
        async with simulated(tmp_path, **options) as sim, ControlClient() as client:
            return await pf.probe(client, parse_base_url(f"127.0.0.1:{sim.port}"), "simulated")

    report = run(main)
    assert getattr(report, field) is value
    assert any(said in hint for hint in report.hints)
    if field == "cached" and value is not Support.YES:
        assert report.cached_tokens is None  # not reported is not 0


def test_a_small_window_gets_a_small_probe(tmp_path):
    async def main():
        async with simulated(tmp_path, max_model_len=400) as sim, ControlClient() as client:
            return await pf.probe(client, parse_base_url(f"127.0.0.1:{sim.port}"), "simulated", window=400)

    assert run(main).prompt_tokens < 300


def picky(*refused, good=None):
    """Refuses bodies that have one of the fields, as strict servers do, naming the first."""
    accepted = good or sse(token("a"), token("b", "length"), usage())
    bodies = []

    async def chat(request):
        body = await request.json()
        bodies.append(body)
        for field in refused:
            if field in body:
                message = f"Unrecognized request argument supplied: {field}"
                return await answer({"error": {"message": message}}, 400)(request)
        return await accepted(request)

    return chat, bodies


def test_fields_that_are_refused_are_left_out_and_reported():
    chat, bodies = picky("ignore_eos", "max_completion_tokens", "stream_options")
    report = run(probed, chat)
    assert (report.ignore_eos, report.usage, report.limit_field) == (
        Support.REJECTED,
        Support.REJECTED,
        "max_tokens",
    )
    assert len(bodies) == 5  # three refusals, then twice the same
    assert bodies[-1] == bodies[-2] and bodies[-1]["max_tokens"] == 24
    text = " ".join(report.hints)
    assert "--no-ignore-eos" in text and "--max-tokens-field max_tokens" in text
    assert "stream_options is refused" in text


def test_the_other_name_of_the_limit_is_tried_once_each_way():
    chat, _ = picky("max_tokens")
    assert run(probed, chat, limit_field="max_tokens").limit_field == "max_completion_tokens"
    chat, bodies = picky("max_tokens", "max_completion_tokens")
    assert "Unrecognized request argument" in error_of(probed, chat)
    assert len(bodies) == 2


def test_the_users_members_of_the_body_are_sent_but_do_not_break_the_probe():
    chat, bodies = picky()
    extra = {"temperature": 0.5, "ignore_eos": False, "model": "x", "stream": False, "max_tokens": 9}
    report = run(probed, chat, extra_body=extra)
    assert bodies[0]["temperature"] == 0.5 and bodies[0]["ignore_eos"] is False
    assert bodies[0]["model"] == "m" and bodies[0]["stream"] is True and "max_tokens" not in bodies[0]
    assert report.ignore_eos is Support.UNKNOWN


@pytest.mark.parametrize(
    ("route", "said"),
    [
        (answer({"error": {"message": "out of memory"}}, 500), "status 500: out of memory"),
        (answer({"detail": "Not Found"}, 404), "--endpoint-path"),
        (answer("x" * 10_000, 502), "status 502: x"),
        (answer("", 500), r"(empty body)"),
        (answer(token("a")), "asked for a stream and got application/json"),
        (sse({"error": {"message": "overloaded", "code": 529}}), "held an error: overloaded"),
        (sse(token("a"), {"error": "late"}), "held an error: late"),
        (sse(), "no text, reasoning or tool call in 0 events"),
        (sse(usage()), "no text, reasoning or tool call in 1 events"),
        (sse(token("a"), {"choices": None, "error": None}, end=""), None),
    ],
)
def test_a_probe_that_fails_says_so_in_the_servers_words(route, said):
    if said is None:
        assert run(probed, route).usage is Support.NO
        return
    message = error_of(probed, route)
    assert said in message and len(message) < 700


def test_an_output_limit_without_effect_is_noticed():
    report = run(probed, sse(token("a", "length"), usage(completion=500)))
    assert any("max_completion_tokens has no effect: 500 tokens" in h for h in report.hints)


def test_streams_of_other_forms_are_read():
    text = (
        ': ping\n\nevent: x\r\ndata:{"choices":\r\ndata: [{"delta":{"reasoning":"r"}}]}\r\n\r\n'
        "data: null\n\ndata: nope\n\n"
        'data: {"choices":[{"delta":{"tool_calls":[{}]},"finish_reason":"stop"}]}\n\n'
        'data: {"usage":{"prompt_tokens":1}}\n\ndata: {"usage":null}\n\ndata: [DONE]'
    )
    s = read_stream(text)
    assert (s.events, s.content_events, s.finish_reason, s.usage, s.done) == (
        4,
        2,
        "stop",
        {"prompt_tokens": 1},
        True,
    )


# --- chat template -----------------------------------------------------------------------------------


async def measured(tmp_path, **options):
    async with simulated(tmp_path, **options) as sim, ControlClient() as client:
        return await pf.measure_template(client, parse_base_url(f"127.0.0.1:{sim.port}"), "simulated")


def test_a_template_that_is_a_sum_is_found_exactly(tmp_path):
    report = run(measured, tmp_path, template_overhead=pf_template(fixed=3, system=4, user=5, assistant=7))
    assert (report.base, report.system, report.user, report.assistant) == (3, 4, 5, 7)
    assert report.fit and report.separate and report.words_exact and report.reason is None
    assert (report.marker, report.marker_min, report.marker_max) == (1.0, 1, 1)
    assert report.overhead(1, 3, 2) == 3 + 4 + 15 + 14
    assert report.probes < 20


def pf_template(**tokens):
    from agentx_engine.sim.model import TemplateTokens

    return TemplateTokens(**tokens)


def counting(rule):
    """A server whose prompt_tokens are rule(messages), or a refusal where that is None."""

    async def chat(request):
        body = await request.json()
        assert body["stream"] is False and body["max_completion_tokens"] == 1
        count = rule(body["messages"])
        if count is None:
            return await answer({"error": {"message": "roles must alternate"}}, 400)(request)
        return await answer({"choices": [], "usage": {"prompt_tokens": count}})(request)

    return chat


def words_of(messages):
    return sum(len(m["content"].split()) for m in messages)


def roles_of(messages):
    return "".join(m["role"][0] for m in messages)


async def measured_with(rule):
    async with serving({CHAT: counting(rule)}) as endpoint, ControlClient() as client:
        return await pf.measure_template(client, endpoint, "m")


def test_a_server_that_wants_alternating_roles_is_exact_for_those():
    def rule(messages):
        roles = roles_of(messages)
        if "uu" in roles:
            return None
        return words_of(messages) + 9 + 4 * roles.count("s") + 5 * roles.count("u") + 2 * roles.count("a")

    report = run(measured_with, rule)
    assert report.fit and not report.separate
    for roles in ("u", "su", "uau", "suau", "suauauau"):
        expected = 9 + sum({"s": 4, "u": 5, "a": 2}[r] for r in roles)
        assert report.overhead(*(roles.count(r) for r in "sua")) == expected
    assert min(report.base, report.user, report.assistant) >= 0


def test_a_server_without_system_role_is_measured_without_it():
    def rule(messages):
        return None if "s" in roles_of(messages) else words_of(messages) + 1 + 3 * len(messages)

    report = run(measured_with, rule)
    assert report.fit and report.system is None
    assert (report.base, report.user, report.assistant) == (1, 3, 3)


def test_a_template_that_is_no_sum_is_said_to_be_none():
    def rule(messages):  # as templates that treat the last answer in another way
        return words_of(messages) + 4 * len(messages) + (5 if roles_of(messages).count("a") == 1 else 0)

    report = run(measured_with, rule)
    assert not report.fit and "no sum over messages" in report.reason


def test_words_that_are_not_one_token_each_are_noticed():
    report = run(measured_with, lambda messages: words_of(messages) + words_of(messages) // 10)
    assert not report.fit and not report.words_exact and "not one token each" in report.reason


def test_the_marker_costs_what_it_costs():
    def rule(messages):
        text = messages[0]["content"]
        return words_of(messages) + (8 + text[:17].count("f") if text.startswith("[rid:") else 0)

    report = run(measured_with, rule)
    # One word of the text is the marker itself.
    assert report.marker_min < report.marker < report.marker_max
    assert (report.marker_min, report.marker_max) == (9, 11)


def test_a_server_that_counts_nothing_cannot_be_measured():
    async def main():
        async with serving({CHAT: answer({"choices": []})}) as endpoint, ControlClient() as client:
            await pf.measure_template(client, endpoint, "m")

    assert "reports no prompt_tokens" in error_of(main)


# --- cache reset and the whole -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("routes", "done", "said"),
    [
        ({"POST /reset_prefix_cache": answer("")}, "POST /reset_prefix_cache", None),
        ({"POST /flush_cache": answer("Cache flushed.")}, "POST /flush_cache", None),
        ({}, None, "VLLM_SERVER_DEV_MODE=1"),
        (
            {"POST /flush_cache": answer("requests are running", 400)},
            None,
            "status 400: requests are running",
        ),
    ],
)
def test_cache_reset(routes, done, said):
    async def main():
        async with serving(routes) as endpoint, ControlClient() as client:
            return await pf.reset_cache(client, endpoint)

    if done:
        assert run(main) == done
    else:
        assert said in error_of(main)


def test_the_whole_check_ends_with_an_empty_cache(tmp_path):
    async def main():
        async with (
            simulated(tmp_path, max_model_len=9000, api_key=KEY) as sim,
            ControlClient({"X-Team": "a"}, KEY) as client,
        ):
            endpoints = [parse_base_url(f"http://127.0.0.1:{sim.port}/v1")] * 2
            report = await pf.preflight(client, endpoints, template=True, empty_cache=True)
            return report, len(sim.server.engine.cache), sim.log

    report, cached_blocks, log = run(main)
    assert (report.model, report.context_window, len(report.endpoints)) == ("simulated", 9000, 2)
    assert cached_blocks == 0 and len(report.cache_reset) == 2
    assert report.probe.usage is Support.YES and report.template.fit and report.warnings == []
    assert len(log) == 2 + report.template.probes
    encoded = msgspec.json.encode(report)
    assert msgspec.json.decode(encoded, type=pf.PreflightReport) == report
    assert b"hunter2" not in encoded


def test_endpoints_must_serve_the_same_and_differences_are_warned_of():
    def models(name, window):
        return {"GET /v1/models": answer({"data": [{"id": name, "max_model_len": window}]})}

    async def main(a, b, version="1.0"):
        routes = models(*b) | {"GET /version": answer({"version": version})}
        async with serving(models(*a)) as one, serving(routes) as two, ControlClient() as client:
            return await pf.preflight(client, [one, two], send_probe=False)

    assert "name one with --model" in error_of(main, ("a", 100), ("b", 100))
    report = run(main, ("a", 100), ("a", 50))
    assert report.context_window == 50
    assert len(report.warnings) == 2 and "smallest counts" in " ".join(report.warnings)


def test_a_template_that_cannot_be_measured_is_a_warning(tmp_path):
    async def main():
        async with simulated(tmp_path, no_usage=True) as sim, ControlClient() as client:
            return await pf.preflight(client, [parse_base_url(f"127.0.0.1:{sim.port}")], template=True)

    report = run(main)
    assert report.template is None and any("template" in w for w in report.warnings)


# --- secrets -----------------------------------------------------------------------------------------


def echo(status):
    """Repeats every header in its answer, as some gateways do in errors."""

    async def handler(request):
        return web.json_response({"error": {"message": json.dumps(dict(request.headers))}}, status=status)

    return handler


@pytest.mark.parametrize("status", [400, 401, 403, 500])
@pytest.mark.parametrize("where", ["models", "chat", "reset"])
def test_a_key_that_the_server_repeats_is_not_shown(status, where):
    routes = {
        "models": {"GET /v1/models": echo(status)},
        "chat": {CHAT: echo(status)},
        "reset": {"POST /reset_prefix_cache": echo(status), CHAT: sse(token("a", "length"), usage())},
    }[where]
    headers = {"X-Api-Key": "other-secret-value", "Cookie": "session=cookie-secret", "X-Team": "visible-team"}

    async def main():
        async with serving(routes) as endpoint, ControlClient(headers, KEY) as client:
            assert KEY not in repr(client)
            await pf.preflight(client, [endpoint], empty_cache=True)

    with pytest.raises(PreflightError) as e:
        run(main)
    shown = f"{e.value!r} {e.value}"
    for secret in ("hunter2", "other-secret-value", "cookie-secret"):
        assert secret not in shown
    assert "***" in shown and "visible-team" in shown
    assert e.value.__cause__ is None and e.value.__context__ is None


def test_the_key_is_sent_as_a_bearer_token_and_headers_as_given():
    async def main():
        seen = []

        async def models(request):
            seen.append({k: request.headers.get(k) for k in ("Authorization", "X-Team")})
            return await answer(MODELS)(request)

        async with serving({"GET /v1/models": models}) as endpoint:
            async with ControlClient({"X-Team": "t"}, KEY) as client:
                await pf.fetch_models(client, endpoint)
            async with ControlClient() as client:
                await pf.fetch_models(client, endpoint)
        return seen

    assert run(main) == [
        {"Authorization": f"Bearer {KEY}", "X-Team": "t"},
        {"Authorization": None, "X-Team": None},
    ]


def test_a_header_that_cannot_be_one_is_the_users_error_without_its_value():
    for headers, key in (({"X-A": "hunter2\r\nX-B: y"}, None), ({}, "hunter2\n")):
        with pytest.raises(UserError) as e:
            ControlClient(headers, key)
        assert "hunter2" not in str(e.value)


def test_no_proxy_of_the_environment_is_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def main():
        async with serving({}) as endpoint, ControlClient() as client:
            return await pf.fetch_models(client, endpoint)

    assert [m.id for m in run(main)] == ["m"]


def test_an_endless_answer_is_cut():
    async def main():
        async def endless(request):
            response = web.StreamResponse()
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):
                for _ in range(64):
                    await response.write(b"x" * (1 << 20))
            return response

        async with serving({"GET /big": endless}) as endpoint, ControlClient() as client:
            return await client.get(endpoint.url("/big"))

    assert len(run(main).text) == 8 << 20
