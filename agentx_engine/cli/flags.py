"""The flags of `replay`.

A flag that a scenario may fill in has the name of its setting (`scenario.vocabulary`) and no default here:
what the user did not give is absent from the namespace, which is another thing than `off`. `settings.resolve`
fills in what is left. Flags of modes that this engine does not have are known, so that they are refused by
name and not as a typo.
"""

from __future__ import annotations

import argparse
from typing import Final

from agentx_engine.cli.parser import (
    Parser,
    context,
    count,
    header,
    json_object,
    lanes,
    number_from,
    or_off,
    path,
    path_of_url,
    per_lane,
    seconds,
    seconds_or_zero,
    secret,
    seed,
    share,
    tokens,
)

API_KEY_VARIABLE: Final = "OPENAI_API_KEY"
MAX_MS: Final = 2**31 - 1  # an int of the kernel
SCENARIOS: Final = ("agentx", "inferencex-agentx-mvp")

# Without --url: small enough to be done within a minute.
DEMO_CONCURRENCY: Final = 8
DEMO_DURATION_S: Final = 25.0
DEMO_GRACE_S: Final = 10.0

# Known so that they can be refused by name: setting, flags, and whether a value follows.
REFUSED: Final = (
    ("request_rate", ("--request-rate",)),
    ("arrival_pattern", ("--arrival-pattern",)),
    ("user_centric_rate", ("--user-centric-rate",)),
    ("fixed_schedule", ("--fixed-schedule",)),
    ("adaptive_scale", ("--adaptive-scale",)),
    ("ignore_trace_delays", ("--ignore-trace-delays",)),
    ("inter_turn_delay_cap_s", ("--inter-turn-delay-cap", "--inter-turn-delay-cap-seconds")),
    ("sweep", ("--sweep",)),
    ("synthesis_max_isl", ("--synthesis-max-isl",)),
    ("streaming", ("--no-streaming",)),
)


def build_parser(prog: str, epilog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Replays recorded agent sessions against an OpenAI-compatible server and measures every\n"
        "token. Without --url it starts a simulated server of its own, without --corpus it makes a small\n"
        "synthetic one, so that `agentx-engine replay` alone is a complete run of about half a minute.",
        epilog=epilog,
        usage=f"{prog} [--url URL ...] [--corpus PATH] [options]",
        argument_default=argparse.SUPPRESS,
    )
    _server(parser)
    _rules(parser)
    _load(parser)
    _warmup(parser)
    _requests(parser)
    _failures(parser)
    _connections(parser)
    _output(parser)
    for name, flags in REFUSED:
        parser.add_argument(*flags, dest=name, nargs="?", const=name != "streaming", help=argparse.SUPPRESS)
    return parser


def _server(parser: Parser) -> None:
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
        metavar="NAME",
        help="served model name (default: the only one that is served); again to map several",
    )
    g.add_argument(
        "--api-key",
        type=secret,
        default=None,
        metavar="KEY",
        help=f"default: ${API_KEY_VARIABLE}; never written to a file",
    )
    g.add_argument(
        "--header",
        dest="headers",
        action="append",
        type=header,
        metavar="'K: V'",
        help="on every request; again for more",
    )
    g.add_argument(
        "--endpoint-path", type=path_of_url, default=None, metavar="P", help="default: /v1/chat/completions"
    )
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
        default=False,
        help="empty the server's prefix cache before the run, where it offers that",
    )
    g.add_argument("--no-probe", action="store_true", default=False, help="send no requests before the run")


def _rules(parser: Parser) -> None:
    g = parser.add_argument_group("rules (docs/agentx.md)")
    g.add_argument(
        "--scenario",
        choices=SCENARIOS,
        default=None,
        help="a named rule set: fills in what is not given, refuses what breaks its rules",
    )
    g.add_argument(
        "--unsafe-override",
        action="store_true",
        help="run against the rules; the result is then marked submission_valid = false",
    )
    g.add_argument(
        "--compat",
        choices=("harness",),
        default=None,
        help="harness: read recordings as agentx-harness 1.0.12 does, known faults included",
    )


def _load(parser: Parser) -> None:
    g = parser.add_argument_group("load")
    g.add_argument(
        "--corpus",
        type=path,
        default=None,
        metavar="PATH",
        help="folder, .json or .jsonl file of traces, also .gz and .zst",
    )
    g.add_argument(
        "--concurrency",
        type=lanes,
        metavar="N",
        help=f"live sessions, subagents not counted (default 64; {DEMO_CONCURRENCY} without --url)",
    )
    g.add_argument(
        "--duration",
        dest="duration_s",
        type=seconds,
        metavar="S",
        help=f"nothing is sent after it (default 600, {DEMO_DURATION_S:g} without --url, "
        "none with --request-count)",
    )
    g.add_argument(
        "--grace",
        dest="grace_s",
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
    g.add_argument(
        "--max-request-tokens",
        type=tokens,
        default=None,
        metavar="N",
        help="leave out requests of more input and output tokens; 256000: as the published _256k corpora",
    )
    g.add_argument(
        "--entries", type=or_off(count, "all"), metavar="N", help="only the first N traces (default: all)"
    )
    g.add_argument("--seed", type=seed, metavar="N", help="of the schedule (default 42)")
    g.add_argument(
        "--content-seed", type=seed, default=42, metavar="N", help="of the prompts' words (default 42)"
    )
    g.add_argument(
        "--run-id",
        default=None,
        metavar="X",
        help="reproduces the bytes of an earlier run (default: a fresh one)",
    )
    g.add_argument(
        "--cache-bust",
        choices=("first-turn-prefix", "none"),
        help="marker that keeps sessions apart in the prefix cache (default first-turn-prefix)",
    )
    g.add_argument(
        "--system-idle-gap-cap",
        dest="system_idle_gap_cap_s",
        type=or_off(seconds),
        metavar="S",
        help="bring everything forward when nothing was in flight for so long (default off)",
    )
    g.add_argument(
        "--trace-idle-gap-cap",
        dest="trace_idle_gap_cap_s",
        type=or_off(seconds),
        metavar="S",
        help="bring one session forward when it was idle for so long (default off)",
    )


def _warmup(parser: Parser) -> None:
    g = parser.add_argument_group("start and warmup")
    g.add_argument(
        "--trajectory-start-min-ratio",
        type=share,
        metavar="A",
        help="lanes begin in the middle of their sessions, not before this share of them (0 if only B is "
        "given; default: at the first turn)",
    )
    g.add_argument(
        "--trajectory-start-max-ratio",
        type=share,
        metavar="B",
        help="and not behind this one (1 if only A is given)",
    )
    g.add_argument(
        "--warmup-requests-per-lane",
        type=or_off(per_lane),
        metavar="N",
        help="requests of one token before the measured phase, without pauses (default 0)",
    )
    g.add_argument(
        "--warmup-duration",
        dest="warmup_duration_s",
        type=or_off(seconds),
        metavar="S",
        help="the same by time",
    )
    g.add_argument(
        "--warmup-grace-period",
        dest="warmup_grace_s",
        type=or_off(seconds_or_zero),
        metavar="S",
        help="time for the last warmup requests, then the run fails (default 1800)",
    )
    g.add_argument(
        "--burst-phase-starts",
        action="store_true",
        help="all lanes begin a phase at once, not spread as recorded",
    )


def _requests(parser: Parser) -> None:
    g = parser.add_argument_group("requests")
    g.add_argument(
        "--max-output-tokens",
        type=tokens,
        metavar="N",
        help="cap of the root's and hidden agents' outputs; subagents' are never capped",
    )
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
    g.add_argument("--no-ignore-eos", action="store_true", default=False, help="let the model stop by itself")
    g.add_argument(
        "--tokenizer",
        type=path,
        metavar="PATH",
        help="folder or tokenizer.json of the server's tokenizer: checks the words of the prompts and "
        "replaces those that it splits",
    )
    g.add_argument(
        "--isl",
        choices=("text", "wire"),
        default="text",
        help="which count equals the recorded input: the text's (default), or the server's, whose chat "
        "template is then taken out of the text",
    )


def _failures(parser: Parser) -> None:
    g = parser.add_argument_group("failures")
    g.add_argument(
        "--failed-request-threshold",
        type=or_off(share),
        metavar="SHARE",
        help="end the run when more than this share of its requests failed, after max(concurrency, 10) "
        "(default off)",
    )
    g.add_argument("--fail-fast", action="store_true", help="a failed subagent request ends its session")
    g.add_argument(
        "--fail-on-short",
        action="store_true",
        default=False,
        help="an answer shorter than recorded is a failure",
    )
    g.add_argument(
        "--require-client-ok",
        action="store_true",
        default=False,
        help="exit with status 1 if this client was the limit",
    )


def _connections(parser: Parser) -> None:
    g = parser.add_argument_group("connections")
    g.add_argument(
        "--connections",
        choices=("pooled", "session", "request"),
        help="keep-alive pool (default), one per session, or one per request",
    )
    g.add_argument(
        "--no-reconnect",
        action="store_true",
        default=False,
        help="never resend on a fresh socket what a stale one refused",
    )
    g.add_argument("--quickack", action="store_true", default=False, help="set TCP_QUICKACK")
    g.add_argument(
        "--tcp-user-timeout",
        dest="tcp_user_timeout_ms",
        type=or_off(number_from(1, MAX_MS)),
        metavar="MS",
        help="TCP_USER_TIMEOUT: bytes may stay unacknowledged so long (default: the kernel's)",
    )
    g.add_argument("--connect-timeout", type=seconds, default=10.0, metavar="S", help="default 10")
    g.add_argument("--first-byte-timeout", type=seconds, default=None, metavar="S", help="default: off")
    g.add_argument(
        "--idle-timeout",
        type=seconds,
        default=None,
        metavar="S",
        help="longest pause between bytes (default: off)",
    )
    g.add_argument("--total-timeout", type=seconds, default=None, metavar="S", help="default: off")


def _output(parser: Parser) -> None:
    g = parser.add_argument_group("output")
    g.add_argument(
        "--out",
        type=path,
        default=None,
        metavar="RUN",
        help="new or empty folder (default: agentx-runs/<date>-<id>)",
    )
    g.add_argument(
        "--json",
        action="store_true",
        default=False,
        help="print summary.json on stdout, everything else on stderr",
    )
    g.add_argument(
        "--ui", choices=("auto", "plain", "rich", "none"), default="auto", help="live progress (default auto)"
    )
    g.add_argument(
        "--stats-interval",
        dest="stats_interval_s",
        type=seconds,
        metavar="S",
        help="between two lines of plain progress (default 5)",
    )
