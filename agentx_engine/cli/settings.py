"""What the flags of `replay` resolve to: what was given, then the scenario's values, then our defaults."""

from __future__ import annotations

import os
import secrets
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentx_engine.cli.flags import (
    API_KEY_VARIABLE,
    DEMO_CONCURRENCY,
    DEMO_DURATION_S,
    DEMO_GRACE_S,
    REFUSED,
)
from agentx_engine.cli.parser import UsageError, secret
from agentx_engine.errors import UserError
from agentx_engine.scenario import SETTINGS, Applied, apply, draw_seed, scenario_named
from agentx_engine.scenario.vocabulary import LOCAL

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping


class ReplaySettings(msgspec.Struct, kw_only=True):
    """One run, as asked for. Times in seconds; None = off or automatic.

    start_ratios: where in their sessions lanes begin; None: at the first turn. applied: the scenario that
    filled these in, for the verdict on the run.
    """

    urls: list[str]
    model: list[str]
    corpus: str | None
    scenario: str | None
    applied: Applied | None
    compat: str | None
    concurrency: int
    duration_s: float | None
    grace_s: float
    request_count: int | None
    seed: int
    content_seed: int
    run_id: str | None
    cache_bust: str
    max_context: int | Literal["auto"] | None
    max_request_tokens: int | None
    max_output_tokens: int | None
    entries: int | None
    system_idle_gap_cap_s: float | None
    trace_idle_gap_cap_s: float | None
    start_ratios: tuple[float, float] | None
    warmup_requests_per_lane: int
    warmup_duration_s: float | None
    warmup_grace_s: float | None
    burst_phase_starts: bool
    failed_request_threshold: float | None
    fail_fast: bool
    fail_on_short: bool
    require_client_ok: bool
    api_key: str | None
    headers: list[tuple[str, str]]
    extra_body: dict[str, Any]
    endpoint_path: str | None
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"]
    ignore_eos: bool
    tokenizer: str | None
    isl: Literal["text", "wire"]
    wait_ready_s: float
    probe: bool
    reset_cache: bool
    connections: str
    reconnect: bool
    quickack: bool
    tcp_user_timeout_ms: int | None
    connect_timeout_s: float
    first_byte_timeout_s: float | None
    idle_timeout_s: float | None
    total_timeout_s: float | None
    out: str | None
    json_output: bool
    ui: str
    stats_interval_s: float

    @property
    def simulated(self) -> bool:
        """No server was named: the run brings its own."""
        return not self.urls

    @property
    def as_harness(self) -> bool:
        """Whether sessions go on as the official harness lets them: a child loses the pause before it, and
        whoever waits for a dead stream waits on.
        """
        return self.scenario is not None or self.compat == "harness"

    @property
    def warms(self) -> bool:
        return (
            self.start_ratios is not None
            or self.warmup_requests_per_lane > 0
            or self.warmup_duration_s is not None
        )


def resolve(
    args: argparse.Namespace,
    environment: Mapping[str, str] | None = None,
    random_bits: Callable[[int], int] = secrets.randbits,
) -> ReplaySettings:
    """The settings of a run. UsageError names every flag that breaks the scenario's rules, or the flags of a
    combination that cannot be.
    """
    env = os.environ if environment is None else environment
    demo = not args.url
    given = {name: value for name, value in vars(args).items() if name in SETTINGS and name != "loader"}
    if args.corpus is not None:
        given["loader"] = LOCAL
    if args.no_ignore_eos or "ignore_eos" in args.extra_body:
        given["ignore_eos"] = args.extra_body.get("ignore_eos", False)
    applied = None if args.scenario is None else apply(scenario_named(args.scenario), given)
    _refuse(args, applied)
    values: dict[str, Any] = _defaults(demo, given) | (given if applied is None else applied.effective)
    if applied is not None:
        values["seed"] = draw_seed(values, random_bits)
    values["start_ratios"] = _start_ratios(values)
    _check(args, values, demo)
    api_key = args.api_key
    headers = values["headers"]
    if api_key is None and not demo and not any(n.lower() == "authorization" for n, _ in headers):
        api_key = _key_of(env)
    taken = set(ReplaySettings.__struct_fields__)
    return ReplaySettings(
        **{name: value for name, value in values.items() if name in taken and name != "ignore_eos"},
        urls=args.url,
        corpus=args.corpus,
        scenario=args.scenario,
        applied=applied,
        compat=args.compat,
        content_seed=args.content_seed,
        run_id=args.run_id,
        max_request_tokens=args.max_request_tokens,
        api_key=api_key,
        extra_body=args.extra_body,
        endpoint_path=args.endpoint_path,
        max_tokens_field=args.max_tokens_field,
        ignore_eos=not args.no_ignore_eos,
        fail_on_short=args.fail_on_short,
        require_client_ok=args.require_client_ok,
        isl=args.isl,
        wait_ready_s=args.wait_ready,
        probe=not args.no_probe,
        reset_cache=args.reset_cache,
        reconnect=not args.no_reconnect,
        quickack=args.quickack,
        connect_timeout_s=args.connect_timeout,
        first_byte_timeout_s=args.first_byte_timeout,
        idle_timeout_s=args.idle_timeout,
        total_timeout_s=args.total_timeout,
        out=args.out,
        json_output=args.json,
        ui=args.ui,
    )


def _key_of(environment: Mapping[str, str]) -> str | None:
    key = environment.get(API_KEY_VARIABLE, "").strip()
    try:
        return secret(key) if key else None
    except ArgumentTypeError as error:
        raise UsageError(f"${API_KEY_VARIABLE}: {error}") from None


def _defaults(demo: bool, given: Mapping[str, object]) -> dict[str, Any]:
    """Values of settings which neither the user nor a scenario gives, by the vocabulary's names."""
    duration_s = DEMO_DURATION_S if demo else 600.0
    return {
        "model": [],
        "headers": [],
        "concurrency": DEMO_CONCURRENCY if demo else 64,
        "duration_s": None if given.get("request_count") is not None else duration_s,
        "grace_s": DEMO_GRACE_S if demo else 30.0,
        "request_count": None,
        "seed": 42,
        "cache_bust": "first-turn-prefix",
        "max_context": None,
        "max_output_tokens": None,
        "entries": None,
        "system_idle_gap_cap_s": None,
        "trace_idle_gap_cap_s": None,
        "warmup_requests_per_lane": None,
        "warmup_duration_s": None,
        "warmup_grace_s": 1800.0,
        "burst_phase_starts": False,
        "failed_request_threshold": None,
        "fail_fast": False,
        "tokenizer": None,
        "connections": "pooled",
        "tcp_user_timeout_ms": None,
        "stats_interval_s": 5.0,
    }


def _refuse(args: argparse.Namespace, applied: Applied | None) -> None:
    """UsageError for everything that keeps the run from starting by rule, all of it at once."""
    if applied is not None and applied.refusal is not None:
        raise UsageError(applied.refusal)
    flags = [names[0] for name, names in REFUSED if name in args]
    if flags:
        what = "does not exist" if len(flags) == 1 else "do not exist"
        raise UsageError(
            f"{', '.join(flags)}: {what} here; this engine replays recordings, streamed, at their own times"
        )


def _start_ratios(values: dict[str, Any]) -> tuple[float, float] | None:
    low, high = values.get("trajectory_start_min_ratio"), values.get("trajectory_start_max_ratio")
    if low is None and high is None:
        return None
    ratios = (0.0 if low is None else low, 1.0 if high is None else high)
    if ratios[0] > ratios[1]:
        raise UsageError(
            f"--trajectory-start-min-ratio: {ratios[0]:g} lies behind --trajectory-start-max-ratio "
            f"{ratios[1]:g}"
        )
    return ratios


def _check(args: argparse.Namespace, values: dict[str, Any], demo: bool) -> None:
    """UsageError for combinations that cannot be."""
    if demo:
        for flag, value in (
            ("--api-key", args.api_key),
            ("--endpoint-path", args.endpoint_path),
            ("--header", values["headers"]),
        ):
            if value:
                raise UsageError(f"{flag}: needs --url (the simulated server takes none)")
    if args.fail_on_short and (args.no_ignore_eos or args.extra_body.get("ignore_eos") is False):
        raise UsageError(
            "--fail-on-short: with --no-ignore-eos a short answer is the model's choice; use one of the two"
        )
    if args.corpus is not None and not Path(args.corpus).exists():
        raise UsageError(f"--corpus: {args.corpus} does not exist")
    if args.isl == "wire" and args.no_probe:
        raise UsageError("--isl wire: the server's chat template has to be measured; leave --no-probe out")
    values["warmup_requests_per_lane"] = values["warmup_requests_per_lane"] or 0
    if values["warmup_requests_per_lane"] and values["warmup_duration_s"] is not None:
        raise UsageError("--warmup-duration / --warmup-requests-per-lane: must not both be given")
    if args.extra_body:
        from agentx_engine.prompt.body import check_extra

        try:
            check_extra(args.extra_body)
        except UserError as error:
            raise UsageError(f"--extra-body: {error}") from None
    warms = values["start_ratios"] or values["warmup_requests_per_lane"] or values["warmup_duration_s"]
    for field in ("max_completion_tokens", "max_tokens"):
        if warms and field in args.extra_body:
            raise UsageError(
                f"--extra-body: {field} would replace the one token of warmup requests too; "
                "--max-output-tokens caps the others"
            )
