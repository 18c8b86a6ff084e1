"""Command line of the simulated server: flags, the ready line, a clean end on SIGTERM or SIGINT.

Once the socket listens, one line of JSON goes to stdout, ``{"event":"ready","port":N,...}``; a parent
that asked for port 0 learns the port from it. Everything for people goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from agentx_engine.errors import UserError

if TYPE_CHECKING:
    from agentx_engine.sim.model import SimOptions

API_KEY_VARIABLE = "AGENTX_SIM_API_KEY"

# A thread that holds the interpreter gives it up after this long when another wants it (default 5 ms):
# the bound on what one piece of Python code on the worker thread can do to a token's instant.
_SWITCH_INTERVAL_S = 0.0005


# Beyond these, times in nanoseconds and sums of tokens would leave 64 bits.
_MAX_REAL = 1e9  # 11 days of milliseconds
_MAX_TOKENS = 10**12


def _number(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a number, not {text[:40]!r}") from None
        if not low <= value <= high:
            most = high if kind is int else f"{high:g}"
            raise argparse.ArgumentTypeError(f"expected {low} to {most}, not {text[:40]}")
        return value

    return parse


def _template(text: str) -> str:
    # Checked here for the error, kept as text so that --help needs no heavy import.
    from agentx_engine.sim.model import TemplateTokens

    try:
        TemplateTokens.parse(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None
    return text


class _Parser(argparse.ArgumentParser):
    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        if not arg_string:
            raise argparse.ArgumentError(action, "the value is empty")
        return super()._get_value(action, arg_string)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')} (see {self.prog} --help)")


def build_parser(prog: str = "agentx-engine sim") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog=prog,
        usage="%(prog)s [options]",
        description="A simulated OpenAI-compatible inference server: prefix cache, prefill and decode model, "
        "vLLM's metrics, seeded faults. A token is a word. Nothing is computed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    count, real, share = _number(int, 0, _MAX_TOKENS), _number(float, 0, _MAX_REAL), _number(float, 0, 1)
    positive = _number(int, 1, _MAX_TOKENS)

    g = parser.add_argument_group("server")
    g.add_argument("--host", default="127.0.0.1", help="address to listen on")
    g.add_argument("--port", type=_number(int, 0, 65535), default=0, help="port, 0 for a free one")
    g.add_argument("--model", action="append", metavar="NAME", help="served model name; repeatable")
    g.add_argument("--max-model-len", type=positive, help="context window in tokens: stated and enforced")
    g.add_argument("--api-key", metavar="KEY", help=f"required key of /v1 (or ${API_KEY_VARIABLE})")
    g.add_argument("--keep-alive-s", type=real, default=5.0, help="idle connections are closed after this")
    g.add_argument("--log", metavar="FILE", help="append one line of JSON per request")
    g.add_argument("--seed", type=_number(int, 0, 2**64 - 1), default=0, help="of early stops and faults")

    g = parser.add_argument_group("speed")
    g.add_argument("--ttft-ms", type=real, default=20.0, help="prefill: time of an empty prompt")
    g.add_argument(
        "--prefill-rate", type=_number(float, 1, 1e12), default=100_000.0, help="prefill: uncached tokens/s"
    )
    g.add_argument("--prefill-shared", action="store_true", help="one prefill at a time, in order of arrival")
    g.add_argument("--itl-ms", type=real, default=10.0, help="decode: time per token")
    g.add_argument(
        "--itl-slope-us", type=real, default=0.0, help="decode: more time per token for each stream decoding"
    )
    g.add_argument("--max-running", type=count, default=0, help="others wait; 0 for no limit")

    g = parser.add_argument_group("prefix cache")
    g.add_argument("--block-size", type=positive, default=64, help="tokens per block")
    g.add_argument("--cache-tokens", type=count, default=4_000_000, help="capacity; 0 turns it off")

    g = parser.add_argument_group("answers")
    g.add_argument(
        "--stop-probability",
        type=share,
        default=0.5,
        help="share of answers that end early without ignore_eos",
    )
    g.add_argument("--default-max-tokens", type=positive, default=128, help="limit where a request has none")
    g.add_argument("--tokens-per-event", type=positive, default=1, help="as with speculative decoding")
    g.add_argument("--reasoning-tokens", type=count, default=0, help="first tokens sent as reasoning_content")
    g.add_argument("--no-usage", action="store_true", help="never report usage")
    g.add_argument("--no-cached-tokens", action="store_true", help="usage without cached tokens")
    g.add_argument("--no-ignore-eos", action="store_true", help="ignore_eos has no effect")
    g.add_argument(
        "--template-overhead",
        type=_template,
        default="0",
        metavar="N",
        help="template tokens: N per message, or fixed=A,system=B,user=C,assistant=D,other=E",
    )

    g = parser.add_argument_group("faults, seeded")
    g.add_argument("--error-rate", type=share, default=0.0, help="share of requests that fail")
    g.add_argument(
        "--error-as",
        choices=("500", "503", "event"),
        default="500",
        help="how: HTTP status, or an error event in the middle of a 200 stream",
    )
    g.add_argument("--stall-rate", type=share, default=0.0, help="share of answers that stall once")
    g.add_argument("--stall-ms", type=real, default=1000.0, help="length of a stall")
    return parser


def parse_options(argv: Sequence[str] | None) -> SimOptions:
    """Raises UserError that names a wrong flag."""
    args = vars(build_parser().parse_args(argv))
    from agentx_engine.sim.model import SimOptions, TemplateTokens

    args["model"] = tuple(args["model"] or ("simulated",))
    args["api_key"] = args["api_key"] or os.environ.get(API_KEY_VARIABLE) or None
    args["template_overhead"] = TemplateTokens.parse(args["template_overhead"])
    return SimOptions(**args)


async def _serve(options: SimOptions) -> None:
    from agentx_engine.sim.server import SimServer

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        server = SimServer(options)
    except OSError as e:
        raise UserError(f"--log {options.log}: {e.strerror or e}") from None
    try:
        try:
            port = await server.start()
        except OSError as e:
            where = f"--host {options.host} --port {options.port}"
            raise UserError(f"{where}: cannot listen there: {e.strerror or e}") from None
        # What is alive now lives until the end; a collection that walks it would hold back tokens.
        gc.collect()
        gc.freeze()
        ready = {"event": "ready", "port": port, "host": options.host, "pid": os.getpid()}
        print(json.dumps(ready), flush=True)
        if sys.stderr.isatty():
            host = f"[{options.host}]" if ":" in options.host else options.host
            print(
                f"simulated server on http://{host}:{port}  model {', '.join(options.model)}  "
                f"TTFT {options.ttft_ms:g} ms + prompt at {options.prefill_rate:g} tok/s  "
                f"ITL {options.itl_ms:g} ms\nCtrl-C stops it",
                file=sys.stderr,
            )
        await stop.wait()
    finally:
        await server.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; the exit code. Raises UserError on what the user can mend."""
    options = parse_options(argv)
    import uvloop

    from agentx_engine.sim.process import die_with_parent

    die_with_parent()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    uvloop.run(_serve(options))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(e.exit_code)
