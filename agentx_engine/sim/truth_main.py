"""`python -P -m agentx_engine.sim.truth_main metronome|floor ...`: the truth server and the bare client
as processes. Prints JSON lines: the metronome its ready line and, when stopped by SIGTERM or SIGINT,
its statistics; the floor its result."""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agentx_engine.core import truth
from agentx_engine.errors import UserError
from agentx_engine.sim.process import die_with_parent


def _say(line: object) -> None:
    print(json.dumps(line), flush=True)


@contextmanager
def _stop_signals() -> Iterator[int]:
    """A descriptor that becomes readable at SIGTERM or SIGINT, written by the interpreter's C handler:
    Python code does not run while the servers do."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd)
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield read_fd
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        os.close(read_fd)
        os.close(write_fd)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="truth_main", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    show = argparse.ArgumentDefaultsHelpFormatter

    server = commands.add_parser("metronome", help="serve token streams at exact times", formatter_class=show)
    option = server.add_argument
    option("--bind", default="127.0.0.1", help="IPv4 address to listen on")
    option("--port", type=int, default=0, help="0: any free one")
    option(
        "--phase",
        choices=list(truth.PHASES),
        default="natural",
        help="of the streams' ticks",
    )
    option("--ttft-us", type=float, default=20_000, help="request read to first token")
    option("--interval-us", type=float, default=10_000, help="between tokens")
    option("--tokens", type=int, default=200, help="per answer, if the request states no limit")
    option("--event-bytes", type=int, default=230, help="of a token event")
    option("--events-per-write", type=int, default=1, help="events in one send")
    option("--burst", type=int, default=1, help="sends per tick")
    option("--prompt-tokens", type=int, help="in `usage`; default: bytes of the request's body")
    option("--max-body-bytes", type=int, default=4 << 20, help="larger requests get 413")
    option("--send-buffer-bytes", type=int, default=0, help="SO_SNDBUF; 0: the kernel's choice")

    client = commands.add_parser("floor", help="read token streams at the least cost", formatter_class=show)
    option = client.add_argument
    option("--host", default="127.0.0.1", help="IPv4 address of the server")
    option("--port", type=int, required=True)
    option("--streams", type=int, default=1, help="requests in flight")
    option("--tokens", type=int, default=444, help="asked for per answer")
    option("--body-bytes", type=int, default=2000, help="of a request")
    option("--warmup-s", type=float, default=0.0, help="not counted")
    option("--duration-s", type=float, default=10.0, help="counted")
    option("--answers", type=int, default=0, help="end when so many have been read; 0: by duration")
    option("--stamps", choices=list(truth.STAMPS), default="none", help="whose error to measure")
    return parser


def _run(arguments: dict[str, Any]) -> None:
    # As many sockets as the host allows: a limit hit in the middle would distort what is measured.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    command = arguments.pop("command")
    with _stop_signals() as stop_fd:
        if command == "metronome":
            _say(
                truth.run_metronome(
                    stop_fd=stop_fd, ready=lambda port: _say({"event": "ready", "port": port}), **arguments
                )
            )
        else:
            _say(truth.run_floor(stop_fd=stop_fd, **arguments))


def main(argv: Sequence[str] | None = None) -> int:
    die_with_parent()
    arguments = vars(_parser().parse_args(argv))
    where = f"{arguments['command']} on port {arguments['port']}"
    try:
        _run(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except ValueError as error:
        print(f"error: {where}: {error}", file=sys.stderr)
        return UserError.exit_code
    except OSError as error:
        print(f"error: {where}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
