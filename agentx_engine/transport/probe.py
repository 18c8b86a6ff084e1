"""What a server does with the requests of a run, found out with a few tiny ones.

`probe` sends the same short streamed request twice and looks at three things that servers differ in:
whether they count tokens in the stream, whether they say how many were cached, and whether `ignore_eos`
makes answers as long as asked. `measure_template` sends prompts of known words and finds what the chat
template adds to them.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import cycle, islice
from typing import Any, Literal

import msgspec
import numpy as np

from agentx_engine.errors import PreflightError
from agentx_engine.transport.control import Answer, ControlClient
from agentx_engine.transport.endpoint import Endpoint

LimitField = Literal["max_completion_tokens", "max_tokens"]

_PROBE_WORDS = 640  # ten blocks of 64 tokens; more than any server's block
_PROBE_TOKENS = 24
_TIMEOUT_S = 120.0


class Support(enum.StrEnum):
    """YES and NO are what the server did; REJECTED: it refused the field; UNKNOWN: nothing to tell by."""

    YES = "yes"
    NO = "no"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


class ProbeReport(msgspec.Struct, kw_only=True):
    """What two identical short requests showed.

    `cached_tokens` is the second request's count, None if none was reported (which is not 0).
    `hints` are sentences for the user: what is missing and which server flag gives it.
    """

    usage: Support
    cached: Support
    ignore_eos: Support
    limit_field: LimitField
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    hints: list[str] = []


class StreamSummary(msgspec.Struct):
    """The parts of a finished stream that a probe looks at."""

    events: int = 0
    content_events: int = 0
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: str | None = None
    done: bool = False


def read_stream(text: str) -> StreamSummary:
    """Summarises a complete chat-completions event stream. Lines of any kind and data of several lines
    are read as the standard has it; data that is no JSON object is skipped."""
    summary = StreamSummary()
    data: list[str] = []
    for line in [*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            _read_event("\n".join(data), summary)
            data = []
    return summary


def _read_event(data: str, summary: StreamSummary) -> None:
    if data.strip() == "[DONE]":
        summary.done = True
        return
    try:
        event = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return
    if not isinstance(event, dict):
        return
    summary.events += 1
    if error := event.get("error"):
        message = error.get("message") if isinstance(error, dict) else error
        summary.error = summary.error or str(message or error)
    if isinstance(usage := event.get("usage"), dict):
        summary.usage = usage
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return
    summary.finish_reason = choices[0].get("finish_reason") or summary.finish_reason
    delta = choices[0].get("delta")
    if isinstance(delta, dict) and any(
        delta.get(k) for k in ("content", "reasoning_content", "reasoning", "tool_calls")
    ):
        summary.content_events += 1


def _count(usage: Mapping[str, Any] | None, *path: str) -> int | None:
    value: Any = usage
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


async def probe(
    client: ControlClient,
    endpoint: Endpoint,
    model: str,
    *,
    window: int | None = None,
    limit_field: LimitField = "max_completion_tokens",
    extra_body: Mapping[str, Any] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> ProbeReport:
    """Sends two short streamed requests, or a few more if the server refuses a field.

    Raises PreflightError if the server does not stream an answer, in its own words.
    """
    words = _PROBE_WORDS if window is None else max(8, min(_PROBE_WORDS, window // 2 - _PROBE_TOKENS))
    # A fresh start, so that no earlier probe's blocks are hit by the first request.
    filler = " ".join([secrets.token_hex(8), *islice(cycle(_pool("words.txt")), words)])
    prompt = f"{filler}\n\nReply with the single word yes."
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": prompt}],
        "model": model,
        "stream": True,
        limit_field: _PROBE_TOKENS,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        **_extra(extra_body),
    }
    rejected: set[str] = set()
    first = await _accepted(client, endpoint, fields, rejected, timeout_s)
    used: LimitField = "max_tokens" if "max_tokens" in fields else "max_completion_tokens"
    second = read_stream((await _answered(client, endpoint, fields, timeout_s)).text)

    report = ProbeReport(
        usage=Support.YES if first.usage else Support.NO,
        cached=Support.UNKNOWN,
        ignore_eos=Support.UNKNOWN,
        limit_field=used,
        prompt_tokens=_count(first.usage, "prompt_tokens"),
        completion_tokens=_count(first.usage, "completion_tokens"),
        cached_tokens=_count(second.usage, "prompt_tokens_details", "cached_tokens"),
        finish_reason=first.finish_reason,
    )
    _judge_usage(report, rejected)
    _judge_eos(report, first, rejected, fields)
    if used != limit_field:
        report.hints.append(f"{limit_field} is refused by this server; give --max-tokens-field {used}")
    return report


async def _accepted(
    client: ControlClient, endpoint: Endpoint, fields: dict[str, Any], rejected: set[str], timeout_s: float
) -> StreamSummary:
    """Sends `fields`, leaving out one by one those that the server names in a refusal."""
    while True:
        answer = await client.post(endpoint.chat_url, fields, timeout_s)
        if answer.ok:
            return _stream(answer, endpoint)
        named = [f for f in ("ignore_eos", "stream_options") if f in fields and f in answer.text]
        limit, other = ("max_tokens", "max_completion_tokens")
        if limit not in fields:
            limit, other = other, limit
        # A refusal of one names the other as what to use instead, or only itself.
        swap = other not in rejected and (limit in answer.text or other in answer.text)
        if answer.status not in (400, 422) or not (named or swap):
            raise _refused(answer, endpoint)
        for name in named:
            del fields[name]
            rejected.add(name)
        if swap and not named:
            rejected.add(limit)
            fields[other] = fields.pop(limit)


async def _answered(
    client: ControlClient, endpoint: Endpoint, body: Mapping[str, Any], timeout_s: float
) -> Answer:
    answer = await client.post(endpoint.chat_url, body, timeout_s)
    if not answer.ok:
        raise _refused(answer, endpoint)
    return answer


def _refused(answer: Answer, endpoint: Endpoint) -> PreflightError:
    advice = {
        401: "; give the server's key with --api-key",
        403: "; the key (--api-key) has no right to this",
        404: "; check --model and --endpoint-path",
    }.get(answer.status, "")
    return PreflightError(
        f"{endpoint.chat_url}: a short probe was refused with status {answer.status}: {answer.said()}{advice}"
    )


def _stream(answer: Answer, endpoint: Endpoint) -> StreamSummary:
    if answer.content_type != "text/event-stream":
        raise PreflightError(
            f"{endpoint.chat_url}: the probe asked for a stream and got {answer.content_type or 'no type'}: "
            f"{answer.said()}. Without streaming there are no token times to measure"
        )
    stream = read_stream(answer.text)
    if stream.error is not None:
        raise PreflightError(f"{endpoint.chat_url}: the probe's stream held an error: {stream.error}")
    if stream.content_events == 0:
        raise PreflightError(
            f"{endpoint.chat_url}: the probe's stream held no text, reasoning or tool call "
            f"in {stream.events} events"
        )
    return stream


def _judge_usage(report: ProbeReport, rejected: set[str]) -> None:
    hints = report.hints
    if "stream_options" in rejected:
        report.usage = Support.REJECTED
        hints.append("stream_options is refused, so the server counts no tokens in its streams")
    elif report.usage is Support.NO:
        hints.append(
            "no usage in the stream although stream_options.include_usage asked for it: input, output and "
            "cached tokens will be unknown (a proxy in between may drop it)"
        )
    if report.usage is not Support.YES:
        return
    if report.cached_tokens is None:
        report.cached = Support.NO
        hints.append(
            "cached tokens are not reported for a repeated prompt (vLLM: --enable-prompt-tokens-details, "
            "SGLang: --enable-cache-report; both leave the count out also where nothing was cached)"
        )
        return
    report.cached = Support.YES
    if report.cached_tokens == 0:
        hints.append(
            "a repeated prompt was reported with 0 cached tokens: prefix caching is off (vLLM: "
            "--enable-prefix-caching, SGLang: without --disable-radix-cache), or the two requests "
            "reached different workers"
        )


def _judge_eos(
    report: ProbeReport, stream: StreamSummary, rejected: set[str], fields: Mapping[str, Any]
) -> None:
    if "ignore_eos" in rejected:
        report.ignore_eos = Support.REJECTED
        report.hints.append(
            "ignore_eos is refused: answers will be as long as the model likes, not as recorded; "
            "give --no-ignore-eos"
        )
        return
    if not fields.get("ignore_eos"):
        return  # switched off by the user
    produced = report.completion_tokens
    if stream.finish_reason == "stop" or (produced is not None and produced < _PROBE_TOKENS):
        report.ignore_eos = Support.NO
        report.hints.append(
            "ignore_eos has no effect: an answer ended by itself before its limit, so answers will be "
            "shorter than recorded"
        )
    elif stream.finish_reason == "length":
        report.ignore_eos = Support.YES
    if produced is not None and produced > _PROBE_TOKENS:
        report.hints.append(
            f"{report.limit_field} has no effect: {produced} tokens came where {_PROBE_TOKENS} was the limit"
        )


class TemplateReport(msgspec.Struct, kw_only=True):
    """Tokens that the server counts beyond the words of a prompt.

    A prompt of s system, u user and a assistant messages costs
    ``base + s * system + u * user + a * assistant`` on top of its words, and `marker` more if its first
    user message begins with a cache-bust marker (mean over several; least and most beside it).

    `fit`: this held exactly for every prompt that was tried. If not, `reason` says what did not, and
    the numbers are the nearest. `separate`: base and user could be told apart; otherwise (the server
    takes only alternating roles) they are exact for alternating prompts only. None = not measured,
    because the server refused every prompt with that role.
    """

    fit: bool
    reason: str | None = None
    base: int = 0
    system: int | None = None
    user: int = 0
    assistant: int | None = None
    separate: bool = True
    marker: float = 0.0
    marker_min: int = 0
    marker_max: int = 0
    words_exact: bool = True
    probes: int = 0

    def overhead(self, system: int, user: int, assistant: int) -> int:
        """The template's tokens for a prompt with so many messages of each role, without the marker."""
        per_role = system * (self.system or 0) + user * self.user + assistant * (self.assistant or 0)
        return self.base + per_role


# The first five fix the four unknowns; the others must then agree. "uu" and "suu" tell base from user.
_SHAPES = ("u", "su", "uau", "uauau", "uu", "suau", "suauauau", "suu")
_ROLES = {"s": "system", "u": "user", "a": "assistant"}
_SHORT, _LONG = 8, 72  # words per message


async def measure_template(
    client: ControlClient,
    endpoint: Endpoint,
    model: str,
    *,
    markers: Sequence[str] = (
        "[rid:0123456789ab]\n\n",
        "[rid:f3d86c0a41e7]\n\n",
        "[rid:90b1ffc2d5a4]\n\n",
        "[rid:7ae52163c8d0]\n\n",
    ),
    first_words: Sequence[str] | None = None,
    words: Sequence[str] | None = None,
    limit_field: LimitField = "max_completion_tokens",
    extra_body: Mapping[str, Any] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> TemplateReport:
    """Measures the chat template with about a dozen prompts of a few words and one token of answer.

    `first_words` and `words` are the pool that prompts are made of (default: the engine's own). Raises
    PreflightError if the server reports no usage or refuses the plainest prompt.
    """
    pool = list(words or _pool("words.txt"))
    first_pool = list(first_words or _pool("words-first.txt"))
    probes = 0

    def text(seed: int, count: int) -> str:
        rest = islice(cycle(pool), seed * 97 % len(pool), None)
        return " ".join([first_pool[seed * 53 % len(first_pool)], *islice(rest, count - 1)])

    async def extra_tokens(shape: str, count: int = _SHORT, marker: str = "") -> int | None:
        """The server's count minus the words, or None if it refuses this sequence of roles."""
        nonlocal probes
        messages = [{"role": _ROLES[r], "content": text(i, count)} for i, r in enumerate(shape)]
        if marker:
            messages[shape.index("u")]["content"] = marker + messages[shape.index("u")]["content"]
        body = {"messages": messages, "model": model, limit_field: 1, **_extra(extra_body), "stream": False}
        answer = await client.post(endpoint.chat_url, body, timeout_s)
        probes += 1
        if answer.status in (400, 422, 500) and shape != "u":
            return None
        if not answer.ok:
            raise _refused(answer, endpoint)
        reply = answer.json()
        counted = _count(reply if isinstance(reply, dict) else None, "usage", "prompt_tokens")
        if counted is None:
            raise PreflightError(
                f"{endpoint.chat_url}: the chat template's tokens cannot be measured, since the server "
                "reports no prompt_tokens"
            )
        return counted - len(shape) * count

    measured: dict[str, int] = {}
    for shape in _SHAPES:
        extra = await extra_tokens(shape)
        if extra is not None:
            measured[shape] = extra
    report = _fit(measured)

    longer = await extra_tokens("u", _LONG)
    if longer != measured["u"]:
        report.fit = report.words_exact = False
        off = 0 if longer is None else longer - measured["u"]
        report.reason = (
            f"{_LONG - _SHORT} more words gave {_LONG - _SHORT + off} more tokens: the words are not one "
            "token each in this model's tokenizer"
        )
    costs = [
        m - measured["u"] for marker in markers if (m := await extra_tokens("u", marker=marker)) is not None
    ]
    if costs:
        report.marker, report.marker_min, report.marker_max = float(np.mean(costs)), min(costs), max(costs)
    report.probes = probes
    return report


def _fit(measured: Mapping[str, int]) -> TemplateReport:
    """Least squares over the measured shapes; exact if the template is a sum over messages."""
    shapes = list(measured)
    counts = np.array([[1, *(shape.count(r) for r in "sua")] for shape in shapes], dtype=float)
    extra = np.array([measured[shape] for shape in shapes], dtype=float)
    solution = np.linalg.lstsq(counts, extra, rcond=None)[0]
    separate = any("uu" in shape for shape in shapes)
    base, system, user, assistant = (round(x) for x in solution)
    if not separate:
        # Only base + user and user + assistant are known. Any split is exact for prompts that alternate;
        # this one charges the least to the base without a negative part.
        together, pair = round(solution[0] + solution[2]), round(solution[2] + solution[3])
        user = max(0, min(together, (pair + 1) // 2))
        base, assistant = together - user, pair - user
    report = TemplateReport(
        fit=True,
        base=base,
        user=user,
        system=system if any("s" in s for s in shapes) else None,
        assistant=assistant if any("a" in s for s in shapes) else None,
        separate=separate,
    )
    for shape in shapes:
        expected = report.overhead(*(shape.count(r) for r in "sua"))
        if expected != measured[shape]:
            roles = ", ".join(_ROLES[r] for r in shape)
            report.fit = False
            report.reason = (
                f"the template is no sum over messages: ({roles}) costs {measured[shape]} tokens where the "
                f"others make {expected} likely"
            )
            break
    return report


def _extra(extra_body: Mapping[str, Any] | None) -> dict[str, Any]:
    """The user's members of the body, without those that make the probe what it is."""
    own = {"messages", "model", "stream", "max_tokens", "max_completion_tokens", "min_tokens", "n"}
    return {k: v for k, v in (extra_body or {}).items() if k not in own}


def _pool(name: str) -> list[str]:
    return (resources.files("agentx_engine") / "data" / name).read_text("utf-8").split()
