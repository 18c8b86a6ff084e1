"""agentx-engine bench: can this host drive my server?"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from agentx_engine.cli.parser import Parser, count, seconds

if TYPE_CHECKING:
    import asyncio

    from agentx_engine.bench.settings import BenchSettings

PROG = "agentx-engine bench"
DEFAULT_DURATION_S = 10.0
DEFAULT_STEP_S = 3.0
MIN_DURATION_S = 0.5
DESCRIPTION = """\
Measures the engine on this host, without your server: streams of tokens come from a truth server on a core
of its own, which writes the time of each send into the token. Prints what was received of what was offered,
CPU per event beside that of the least possible client (the floor), the error of every time stamp, how late
requests were sent, and the verdict that a replay of the same load would get.
"""
EXAMPLES = """\
examples:
  agentx-engine bench                                  100 streams of 100 tokens/s
  agentx-engine bench --streams 1000 --rate 50 --body-kb 500
  agentx-engine bench --find-limit --streams 500       how far this host goes

exit status: 0 measured (also if the verdict is `limited`), 1 limited and --require-client-ok, 2 usage error,
130 interrupted (what was measured is printed)
"""


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number is expected, not {text!r}") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"a number above 0 is expected, not {text}")
    return value


def build_parser() -> Parser:
    parser = Parser(prog=PROG, description=DESCRIPTION, epilog=EXAMPLES)
    option = parser.add_argument
    option("--streams", type=count, default=100, metavar="N", help="answers at a time; default 100")
    option(
        "--rate", type=_positive, default=100.0, metavar="R", help="tokens per second of each; default 100"
    )
    option(
        "--duration",
        type=seconds,
        metavar="T",
        help=f"seconds measured; default {DEFAULT_DURATION_S:g}, "
        f"with --find-limit {DEFAULT_STEP_S:g} for each step",
    )
    option("--events-per-write", type=count, default=1, metavar="K", help="events in one send of the server")
    option("--burst", type=count, default=1, metavar="W", help="sends of the server at a time")
    option("--body-kb", type=_positive, default=2.0, metavar="B", help="size of a request's body; default 2")
    option("--io-threads", type=count, default=1, metavar="T", help="reactor threads; default 1")
    option("--tokens", type=count, default=444, metavar="N", help="tokens of an answer; default 444")
    option("--no-floor", action="store_true", help="do not run the bare client for comparison")
    option(
        "--find-limit",
        action="store_true",
        help="search the highest rate and the most sessions at which the verdict is ok",
    )
    option("--require-client-ok", action="store_true", help="exit with status 1 if the verdict is limited")
    option("--json", action="store_true", help="print JSON")
    return parser


def main(argv: list[str]) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    duration = args.duration or (DEFAULT_STEP_S if args.find_limit else DEFAULT_DURATION_S)
    if duration < MIN_DURATION_S:
        parser.error(f"--duration: at least {MIN_DURATION_S:g} s are needed")
    _check(parser, args)
    import uvloop

    from agentx_engine.bench.settings import BenchSettings

    settings = BenchSettings(
        streams=args.streams,
        rate=args.rate,
        duration_s=duration,
        events_per_write=args.events_per_write,
        burst=args.burst,
        body_kb=args.body_kb,
        io_threads=args.io_threads,
        tokens=args.tokens,
        floor=not args.no_floor,
    )
    return uvloop.run(_run(settings, args))


def _check(parser: Parser, args: argparse.Namespace) -> None:
    """The bounds of the truth server."""
    for flag, value, low, high in (
        ("--rate", args.rate, 0.01, 1_000_000),
        ("--tokens", args.tokens, 1, 10_000_000),
        ("--events-per-write", args.events_per_write, 1, 1024),
        ("--burst", args.burst, 1, 1024),
        ("--body-kb", args.body_kb, 0.25, 100_000),
        ("--io-threads", args.io_threads, 1, 256),
        ("--streams", args.streams, 1, 1_000_000),
    ):
        if not low <= value <= high:
            parser.error(f"{flag}: between {low:,} and {high:,} are possible, not {value:g}")


async def _run(settings: BenchSettings, args: argparse.Namespace) -> int:
    import asyncio

    from agentx_engine.bench.measure import Interrupted
    from agentx_engine.cli.signals import stop_signals

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    handled = stop_signals()
    for number in handled:
        loop.add_signal_handler(number, stop.set)
    try:
        return await (_limits if args.find_limit else _once)(settings, args, stop)
    except Interrupted:
        print(f"{PROG}: interrupted before anything was measured", file=sys.stderr)
        return 130
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_json(value: Any) -> None:
    from agentx_engine.artifacts.folder import pretty

    sys.stdout.write(pretty(value).decode())


def _one_core_note() -> None:
    from agentx_engine.bench.settings import choose_cores

    if choose_cores().shared:
        _say(
            "note: this process may use one core only, so the truth server runs on the client's. The verdict "
            "says what this host can do; costs and errors are not the client's alone"
        )


async def _once(settings: BenchSettings, args: argparse.Namespace, stop: asyncio.Event) -> int:
    from agentx_engine.bench.measure import estimate_s, measure
    from agentx_engine.bench.render import render

    _one_core_note()
    _say(f"about {estimate_s(settings):.0f} s; Ctrl-C ends early")
    result = await measure(settings, stop=stop, say=_say)
    if args.json:
        _print_json(result)
    else:
        print(render(result))
    if result.interrupted:
        return 130
    return 1 if args.require_client_ok and not result.verdict.ok else 0


async def _limits(settings: BenchSettings, args: argparse.Namespace, stop: asyncio.Event) -> int:
    from agentx_engine.bench.limit import find_limit, longest_s
    from agentx_engine.bench.render import render_limits

    _one_core_note()
    _say(f"at most {longest_s(settings) / 60:.0f} minutes, usually a third of that; Ctrl-C ends early")
    limits = await find_limit(settings, stop=stop, say=_say)
    if args.json:
        _print_json(limits)
    else:
        print(render_limits(limits))
    if limits.interrupted:
        return 130
    found = limits.rate is not None and limits.rate.best and limits.sessions and limits.sessions.best
    return 1 if args.require_client_ok and not found else 0
