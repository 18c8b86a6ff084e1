"""The flags of `replay` and what they resolve to."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentx_engine.cli.parser import (
    Parser,
    UsageError,
    context,
    count,
    header,
    json_object,
    path_of_url,
    seconds,
    seconds_or_zero,
    secret,
    whole,
)

API_KEY_VARIABLE = "OPENAI_API_KEY"

# Without --url: small enough to be done within a minute.
DEMO_CONCURRENCY = 8
DEMO_DURATION_S = 25.0
DEMO_GRACE_S = 10.0


class ReplaySettings(msgspec.Struct, kw_only=True):
    """One run, as asked for. Times in seconds; None = off or automatic."""

    urls: list[str]
    model: list[str]
    corpus: str | None
    concurrency: int
    duration_s: float | None
    grace_s: float
    request_count: int | None
    seed: int
    content_seed: int
    run_id: str | None
    cache_bust: str
    compat: str | None
    max_context: int | Literal["auto"] | None
    entries: int | None
    api_key: str | None
    headers: list[tuple[str, str]]
    extra_body: dict[str, Any]
    endpoint_path: str | None
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"]
    ignore_eos: bool
    fail_on_short: bool
    wait_ready_s: float
    probe: bool
    reset_cache: bool
    connections: str
    reconnect: bool
    quickack: bool
    connect_timeout_s: float
    first_byte_timeout_s: float | None
    idle_timeout_s: float | None
    total_timeout_s: float | None
    out: str | None
    json_output: bool
    ui: str

    @property
    def simulated(self) -> bool:
        """No server was named: the run brings its own."""
        return not self.urls


def build_parser(prog: str, epilog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Replays recorded agent sessions against an OpenAI-compatible server and measures every\n"
        "token. Without --url it starts a simulated server of its own, without --corpus it makes a small\n"
        "synthetic one, so that `agentx-engine replay` alone is a complete run of about half a minute.",
        epilog=epilog,
        usage=f"{prog} [--url URL ...] [--corpus PATH] [options]",
    )
    g = parser.add_argument_group("server")
    g.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        help="base URL, for example http://127.0.0.1:8000; again for more servers (sessions take turns)",
    )
    g.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="served model name (default: the only one that is served); again to map several",
    )
    g.add_argument(
        "--api-key", type=secret, metavar="KEY", help=f"default: ${API_KEY_VARIABLE}; never written to a file"
    )
    g.add_argument(
        "--header",
        action="append",
        default=[],
        type=header,
        metavar="'K: V'",
        help="on every request; again for more",
    )
    g.add_argument("--endpoint-path", type=path_of_url, metavar="P", help="default: /v1/chat/completions")
    g.add_argument(
        "--wait-ready",
        type=seconds_or_zero,
        default=0.0,
        metavar="S",
        help="wait so long for the server (default 0)",
    )
    g.add_argument(
        "--reset-cache",
        action="store_true",
        help="empty the server's prefix cache before the run, where it offers that",
    )
    g.add_argument("--no-probe", action="store_true", help="send no requests before the run")

    g = parser.add_argument_group("load")
    g.add_argument(
        "--corpus", metavar="PATH", help="folder, .json or .jsonl file of traces, also .gz and .zst"
    )
    g.add_argument(
        "--concurrency",
        type=count,
        metavar="N",
        help=f"live sessions, subagents not counted (default 64; {DEMO_CONCURRENCY} without --url)",
    )
    g.add_argument(
        "--duration",
        type=seconds,
        metavar="S",
        help=f"nothing is sent after it (default 600, {DEMO_DURATION_S:g} without --url, "
        "none with --request-count)",
    )
    g.add_argument(
        "--grace",
        type=seconds_or_zero,
        metavar="S",
        help=f"time for requests in flight at the end (default 30; {DEMO_GRACE_S:g} without --url)",
    )
    g.add_argument("--request-count", type=count, metavar="N", help="nothing is sent after N requests")
    g.add_argument(
        "--max-context",
        type=context,
        metavar="N",
        help="leave out traces that need more tokens; auto: what the server states",
    )
    g.add_argument("--entries", type=count, metavar="N", help="only the first N traces (default: all)")
    g.add_argument("--seed", type=whole, default=42, metavar="N", help="of the schedule (default 42)")
    g.add_argument(
        "--content-seed", type=whole, default=42, metavar="N", help="of the prompts' words (default 42)"
    )
    g.add_argument(
        "--run-id", metavar="X", help="reproduces the bytes of an earlier run (default: a fresh one)"
    )
    g.add_argument(
        "--cache-bust",
        choices=("first-turn-prefix", "none"),
        default="first-turn-prefix",
        help="marker that keeps sessions apart in the prefix cache (default first-turn-prefix)",
    )
    g.add_argument(
        "--compat", choices=("harness",), help="harness: agentx-harness 1.0.12, known faults included"
    )

    g = parser.add_argument_group("requests")
    g.add_argument(
        "--extra-body", type=json_object, default={}, metavar="JSON", help="more members of the body"
    )
    g.add_argument(
        "--max-tokens-field",
        choices=("max_completion_tokens", "max_tokens"),
        default="max_completion_tokens",
        metavar="F",
        help="max_completion_tokens (default) or max_tokens",
    )
    g.add_argument("--no-ignore-eos", action="store_true", help="let the model stop by itself")
    g.add_argument(
        "--fail-on-short", action="store_true", help="an answer shorter than recorded is a failure"
    )

    g = parser.add_argument_group("connections")
    g.add_argument(
        "--connections",
        choices=("pooled", "session", "request"),
        default="pooled",
        help="keep-alive pool (default), one per session, or one per request",
    )
    g.add_argument(
        "--no-reconnect", action="store_true", help="never resend on a fresh socket what a stale one refused"
    )
    g.add_argument("--quickack", action="store_true", help="set TCP_QUICKACK")
    g.add_argument("--connect-timeout", type=seconds, default=10.0, metavar="S", help="default 10")
    g.add_argument("--first-byte-timeout", type=seconds, metavar="S", help="default: off")
    g.add_argument(
        "--idle-timeout", type=seconds, metavar="S", help="longest pause between bytes (default: off)"
    )
    g.add_argument("--total-timeout", type=seconds, metavar="S", help="default: off")

    g = parser.add_argument_group("output")
    g.add_argument("--out", metavar="RUN", help="new or empty folder (default: agentx-runs/<date>-<id>)")
    g.add_argument(
        "--json", action="store_true", help="print summary.json on stdout, everything else on stderr"
    )
    g.add_argument(
        "--ui", choices=("auto", "plain", "rich", "none"), default="auto", help="live progress (default auto)"
    )
    return parser


def resolve(args: argparse.Namespace, environment: dict[str, str] | None = None) -> ReplaySettings:
    """Defaults that depend on other flags, and combinations that cannot be. UsageError names the flag."""
    env = dict(os.environ) if environment is None else environment
    demo = not args.url
    duration: float | None = args.duration
    if duration is None and args.request_count is None:
        duration = DEMO_DURATION_S if demo else 600.0
    if demo:
        for flag, value in (
            ("--api-key", args.api_key),
            ("--endpoint-path", args.endpoint_path),
            ("--header", args.header),
        ):
            if value:
                raise UsageError(f"{flag}: needs --url (the simulated server takes none)")
    if args.fail_on_short and (args.no_ignore_eos or args.extra_body.get("ignore_eos") is False):
        raise UsageError(
            "--fail-on-short: with --no-ignore-eos a short answer is the model's choice; use one of the two"
        )
    if args.corpus is not None and not Path(args.corpus).exists():
        raise UsageError(f"--corpus: {args.corpus} does not exist")
    api_key = args.api_key
    if api_key is None and not demo and not any(n.lower() == "authorization" for n, _ in args.header):
        api_key = env.get(API_KEY_VARIABLE, "").strip() or None
    if args.content_seed >= 2**64:
        raise UsageError(f"--content-seed: {args.content_seed} is not below 2^64")
    return ReplaySettings(
        urls=args.url,
        model=args.model,
        corpus=args.corpus,
        concurrency=args.concurrency or (DEMO_CONCURRENCY if demo else 64),
        duration_s=duration,
        grace_s=args.grace if args.grace is not None else (DEMO_GRACE_S if demo else 30.0),
        request_count=args.request_count,
        seed=args.seed,
        content_seed=args.content_seed,
        run_id=args.run_id,
        cache_bust=args.cache_bust,
        compat=args.compat,
        max_context=args.max_context,
        entries=args.entries,
        api_key=api_key,
        headers=args.header,
        extra_body=args.extra_body,
        endpoint_path=args.endpoint_path,
        max_tokens_field=args.max_tokens_field,
        ignore_eos=not args.no_ignore_eos,
        fail_on_short=args.fail_on_short,
        wait_ready_s=args.wait_ready,
        probe=not args.no_probe,
        reset_cache=args.reset_cache,
        connections=args.connections,
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
