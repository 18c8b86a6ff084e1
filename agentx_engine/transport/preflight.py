"""Checks before any load is sent: is the server there, which model, how much context, what does it report.

A run that would fail, or whose numbers would mean something else than the user thinks, should end here
within seconds and with a sentence that says what to do. Everything found goes into run.json as a
`PreflightReport`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from agentx_engine.errors import PreflightError
from agentx_engine.transport.control import Answer, ControlClient, Unreachable
from agentx_engine.transport.endpoint import Endpoint
from agentx_engine.transport.probe import (
    LimitField,
    ProbeReport,
    Support,
    TemplateReport,
    measure_template,
    probe,
)

__all__ = [
    "ContextDecision",
    "ControlClient",
    "EndpointReport",
    "ModelInfo",
    "PreflightReport",
    "ProbeReport",
    "ServerVersion",
    "Support",
    "TemplateReport",
    "check_context",
    "check_model",
    "context_window",
    "fetch_models",
    "fetch_version",
    "measure_template",
    "preflight",
    "probe",
    "reset_cache",
    "wait_ready",
]

_POLL_FIRST_S, _POLL_MOST_S = 0.1, 1.0
_LISTED_IN_ERRORS = 10
# vLLM and SGLang, then what others call it.
_WINDOW_NAMES = ("max_model_len", "context_window", "context_length")


class ModelInfo(msgspec.Struct, frozen=True):
    """One served model. `max_model_len` is the context window in tokens, None if not stated."""

    id: str
    max_model_len: int | None = None
    root: str | None = None


class ServerVersion(msgspec.Struct, frozen=True):
    """What the server says about itself; None = it does not say."""

    engine: Literal["vllm", "sglang"] | None = None
    version: str | None = None


class EndpointReport(msgspec.Struct, kw_only=True):
    url: str
    chat_url: str
    server: ServerVersion
    models: list[ModelInfo]
    ready_after_s: float


class PreflightReport(msgspec.Struct, kw_only=True):
    """All findings. `context_window` is the smallest of the endpoints that state one.

    `cache_reset` are the calls that emptied the servers' caches, None if it was not asked for.
    """

    model: str
    context_window: int | None
    endpoints: list[EndpointReport]
    probe: ProbeReport | None = None
    template: TemplateReport | None = None
    cache_reset: list[str] | None = None
    warnings: list[str] = []


class ContextDecision(msgspec.Struct, frozen=True):
    """`refusal`: why the run must not start, else None. `limit`: the filter on input + output tokens to
    apply to the corpus, None for none."""

    refusal: str | None = None
    limit: int | None = None


async def wait_ready(client: ControlClient, endpoints: Sequence[Endpoint], seconds: float) -> list[float]:
    """Waits until every endpoint serves a model; returns after how many seconds each did.

    With `seconds` 0 each is asked once. A refused connection, an error status or an empty list of models
    is what a server that still loads its weights looks like, so those are waited for; a refused key is
    not. Raises PreflightError that says what was last seen.
    """
    tasks = [asyncio.create_task(_wait_one(client, e, seconds)) for e in endpoints]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _wait_one(client: ControlClient, endpoint: Endpoint, seconds: float) -> float:
    begin = time.monotonic()
    pause = _POLL_FIRST_S
    while True:
        left = seconds - (time.monotonic() - begin)
        seen = await _not_ready(client, endpoint, min(10.0, max(1.0, left)) if seconds else 10.0)
        waited = time.monotonic() - begin
        if seen is None:
            return waited
        if waited + pause > seconds:
            how_long = f"not ready after {waited:.0f} s" if seconds else "not ready"
            raise PreflightError(
                f"{endpoint}: {how_long}; last seen: {seen}. "
                f"Is the server up? --wait-ready {max(600, 2 * int(seconds))} waits longer"
            )
        await asyncio.sleep(pause)
        pause = min(_POLL_MOST_S, pause * 1.5)


async def _not_ready(client: ControlClient, endpoint: Endpoint, timeout_s: float) -> str | None:
    """What is missing, or None if the endpoint can be used."""
    url = endpoint.origin + endpoint.models_path
    try:
        answer = await client.get(url, timeout_s)
        if answer.ok:
            return None if _models(answer) != [] else f"{url} lists no model yet"
        if answer.status in (401, 403):
            raise _no_key(url, answer)
        if answer.status in (404, 405, 501):
            health = await client.get(endpoint.url("/health"), timeout_s)
            if health.ok or health.status in (404, 405, 501):
                return None
            return f"{endpoint.url('/health')} answered {health.status}: {health.said()}"
        return f"{url} answered {answer.status}: {answer.said()}"
    except Unreachable as e:
        return str(e)


def _no_key(url: str, answer: Answer) -> PreflightError:
    return PreflightError(
        f"{url}: the server refuses the key or wants one (status {answer.status}: {answer.said()}); "
        "give it with --api-key or OPENAI_API_KEY"
    )


def _models(answer: Answer) -> list[ModelInfo] | None:
    """The models of a list answer, None if it is no such list."""
    body = answer.json()
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list):
        return None
    models = []
    for entry in data:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            continue
        windows = [entry.get(name) for name in _WINDOW_NAMES]
        window = next((w for w in windows if isinstance(w, int) and w > 0), None)
        root = entry.get("root")
        models.append(ModelInfo(entry["id"], window, root if isinstance(root, str) else None))
    return models


async def fetch_models(client: ControlClient, endpoint: Endpoint) -> list[ModelInfo] | None:
    """The served models; None if the server has no such list. Raises PreflightError for everything
    else than an answer that means one of these."""
    url = endpoint.origin + endpoint.models_path
    answer = await client.get(url)
    if answer.status in (404, 405, 501):
        return None
    if answer.status in (401, 403):
        raise _no_key(url, answer)
    models = _models(answer) if answer.ok else None
    if models is None:
        raise PreflightError(f"{url}: no list of models but status {answer.status}: {answer.said()}")
    return models


async def fetch_version(client: ControlClient, endpoint: Endpoint) -> ServerVersion:
    """Engine and version as the server states them. Never fails: many servers have no such page."""
    for path, engine in (("/version", "vllm"), ("/get_server_info", "sglang")):
        try:
            answer = await client.get(endpoint.url(path))
        except Unreachable:
            continue
        body = answer.json() if answer.ok else None
        if isinstance(body, dict) and isinstance(body.get("version"), str):
            known = engine == "sglang" or body["version"][:1].isdigit()
            return ServerVersion(engine if known else None, body["version"])  # type: ignore[arg-type]
    return ServerVersion()


def check_model(endpoint: Endpoint, models: Sequence[ModelInfo] | None, name: str | None) -> ModelInfo:
    """The model to ask for: `name` if it is served, without a name the only one that is.

    A server without a list of models is believed to have the one that is named. Raises PreflightError
    that lists what is served.
    """
    if models is None:
        if name is None:
            raise PreflightError(f"{endpoint}: the server does not list its models; name one with --model")
        return ModelInfo(name)
    shown = ", ".join(m.id for m in models[:_LISTED_IN_ERRORS])
    if len(models) > _LISTED_IN_ERRORS:
        shown += f" and {len(models) - _LISTED_IN_ERRORS} more"
    if name is None:
        if len(models) == 1:
            return models[0]
        what = f"{len(models)} models are served ({shown})" if models else "no model is served"
        raise PreflightError(f"{endpoint}: {what}; name one with --model")
    for model in models:
        if model.id == name:
            return model
    raise PreflightError(f"{endpoint}: model {name!r} is not served; served: {shown or 'none'} (--model)")


def context_window(models: Sequence[ModelInfo]) -> int | None:
    """The smallest stated context window, None if none is stated."""
    return min((m.max_model_len for m in models if m.max_model_len is not None), default=None)


def check_context(
    window: int | None, peak: int, max_context: int | Literal["auto"] | None, overhead: int = 0
) -> ContextDecision:
    """Does the corpus fit? All in tokens; a request needs its input and its output.

    `window`: what the server states. `peak`: the largest need in the corpus. `max_context`: the user's
    filter, "auto" for the server's window. `overhead`: what template and marker add to a prompt.
    """
    usable = None if window is None else window - overhead
    added = f" (of which {overhead} go to template and marker)" if overhead else ""
    if max_context == "auto":
        if usable is None:
            return ContextDecision(
                refusal="--max-context auto: the server does not state its context window (max_model_len in "
                "/v1/models); give the number of tokens"
            )
        if usable < 1:
            return ContextDecision(refusal=f"the context window of {window} tokens leaves nothing{added}")
        return ContextDecision(limit=usable if peak > usable else None)
    need = peak if max_context is None else min(peak, max_context)
    if usable is not None and need > usable:
        lower = "--max-context auto leaves out what does not fit"
        serve = f"or serve the model with a window of at least {need + overhead}"
        if max_context is None or peak <= max_context:
            why = f"the corpus has requests of up to {peak} tokens (input and output)"
        else:
            why = f"--max-context {max_context} lets requests of up to {need} tokens through"
        return ContextDecision(
            refusal=f"{why}, but the server's context window is {window}{added}: {lower}, {serve}"
        )
    return ContextDecision(limit=max_context if max_context is not None and peak > max_context else None)


async def reset_cache(client: ControlClient, endpoint: Endpoint) -> str:
    """Empties the server's prefix cache; returns the call that did it.

    Raises PreflightError if the server has neither vLLM's nor SGLang's call, or refuses.
    """
    seen = []
    for path in ("/reset_prefix_cache", "/flush_cache"):
        answer = await client.post(endpoint.url(path), timeout_s=60.0)
        if answer.ok:
            return f"POST {path}"
        if answer.status not in (404, 405):
            raise PreflightError(
                f"{endpoint.url(path)}: the cache was not emptied (status {answer.status}: {answer.said()}); "
                "running requests must have ended"
            )
        seen.append(f"POST {path}: {answer.status}")
    raise PreflightError(
        f"{endpoint}: the server offers no way to empty its prefix cache ({', '.join(seen)}). vLLM has it "
        "when started with VLLM_SERVER_DEV_MODE=1, SGLang always; otherwise restart the server, or leave out "
        "--reset-cache: a fresh run id keeps runs apart"
    )


async def preflight(
    client: ControlClient,
    endpoints: Sequence[Endpoint],
    *,
    model: str | None = None,
    wait_s: float = 0.0,
    send_probe: bool = True,
    template: bool = False,
    empty_cache: bool = False,
    limit_field: LimitField = "max_completion_tokens",
    extra_body: Mapping[str, Any] | None = None,
    words: Sequence[str] | None = None,
    first_words: Sequence[str] | None = None,
) -> PreflightReport:
    """Everything above in order, for all endpoints; probes only the first. Raises PreflightError.

    `words` and `first_words`: the pool of the prompts, where it is not the engine's own.

    A template that cannot be measured is a warning, with `template` None in the report. The cache is
    emptied last, so that the probes leave nothing in it.
    """
    ready = await wait_ready(client, endpoints, wait_s)
    reports: list[EndpointReport] = []
    chosen: list[ModelInfo] = []
    for endpoint, after_s in zip(endpoints, ready, strict=True):
        models = await fetch_models(client, endpoint)
        found = check_model(endpoint, models, model)
        if chosen and found.id != chosen[0].id:
            raise PreflightError(
                f"{endpoint} serves {found.id}, {endpoints[0]} serves {chosen[0].id}; name one with --model"
            )
        chosen.append(found)
        reports.append(
            EndpointReport(
                url=endpoint.base_url,
                chat_url=endpoint.chat_url,
                server=await fetch_version(client, endpoint),
                models=models or [],
                ready_after_s=round(after_s, 3),
            )
        )
    report = PreflightReport(model=chosen[0].id, context_window=context_window(chosen), endpoints=reports)
    if any(r.server != reports[0].server for r in reports):
        report.warnings.append("the endpoints run different servers or versions")
    if len({m.max_model_len for m in chosen}) > 1:
        report.warnings.append("the endpoints state different context windows; the smallest counts")
    if send_probe:
        report.probe = await probe(
            client,
            endpoints[0],
            report.model,
            window=report.context_window,
            limit_field=limit_field,
            extra_body=extra_body,
        )
        report.warnings += report.probe.hints
    if template:
        try:
            report.template = await measure_template(
                client,
                endpoints[0],
                report.model,
                limit_field=report.probe.limit_field if report.probe else limit_field,
                extra_body=extra_body,
                words=words,
                first_words=first_words,
            )
        except PreflightError as e:
            report.warnings.append(str(e))
        else:
            if report.template.reason is not None:
                report.warnings.append(report.template.reason)
    if empty_cache:
        report.cache_reset = [f"{e} {await reset_cache(client, e)}" for e in endpoints]
    return report
