"""agentx-engine: finds the command, imports its module, turns errors into messages and exit codes.

Nothing but the standard library's argparse is imported until a command runs, so that `--help` is quick.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from agentx_engine.cli import streams
from agentx_engine.errors import UserError

OK, UNUSABLE, USAGE, NOT_READY, CLIENT_ERROR, INTERRUPTED = 0, 1, 2, 3, 4, 130

EXIT_CODES = """\
exit status:
  0    done
  1    the run finished but is not usable: nothing succeeded, more failed than --failed-request-threshold
       allows (off by default), records could not be written, a scenario's coverage was not reached, or this
       client was the limit (--require-client-ok); or stdout could not be written
  2    usage or input error
  3    the server is not ready, or is not what the run needs
  4    client error: a defect of agentx-engine
  130  interrupted
"""

# Name -> module under agentx_engine.cli, one line of help.
COMMANDS = {
    "replay": ("replay", "replay recorded agent sessions against a server and measure every token"),
    "sim": ("sim", "run a simulated inference server"),
    "corpus": ("corpus", "look into trace files, or make synthetic ones"),
    "plan": ("plan", "show what a run would do, without a server"),
    "bench": ("bench", "measure this host and this client"),
}


def _help() -> str:
    lines = [f"  {name:<8} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: agentx-engine COMMAND [options]",
            "       agentx-engine COMMAND --help",
            "       agentx-engine --version",
            "",
            "Replays recorded coding-agent sessions against OpenAI-compatible inference servers.",
            "",
            "commands:",
            *lines,
            "",
            "`agentx-engine replay` alone runs half a minute against a simulated server.",
            "",
            EXIT_CODES.rstrip(),
        ]
    )


def _run(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return OK if argv else USAGE
    if argv[0] in ("-V", "--version", "version"):
        from agentx_engine.cli.version import version_text

        print(version_text())
        return OK
    name = argv[0]
    if name not in COMMANDS:
        from agentx_engine.cli.parser import UsageError, hint

        what = "flag" if name.startswith("-") else "command"
        known = ["--help", "--version"] if what == "flag" else list(COMMANDS)
        raise UsageError(f"unknown {what} {name}{hint(name, known)} (see agentx-engine --help)")
    module = importlib.import_module(f"agentx_engine.cli.{COMMANDS[name][0]}")
    code: int = module.main(list(argv[1:]))
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (default: sys.argv) and returns its exit status."""
    own = argv is None
    try:
        streams.occupy_closed()
        if own:
            streams.watch_stdout()
        return _guarded(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if own:
            _leave()


def _leave() -> None:
    """Nothing is left to interrupt: a signal now would only show where the interpreter was at its exit."""
    import contextlib
    import signal

    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _guarded(argv: list[str]) -> int:
    """Errors and interruptions as messages and exit statuses."""
    prog = "agentx-engine" + (f" {argv[0]}" if argv and argv[0] in COMMANDS else "")
    code, trace = _status(argv, prog)
    unwritten = streams.failure(sys.stdout)
    if unwritten is not None:
        streams.mute(sys.stdout)
        if isinstance(unwritten, BrokenPipeError):  # whoever reads has seen enough
            return OK if trace is not None else code
        streams.complain(f"{prog}: error: stdout cannot be written: {unwritten.strerror or unwritten}")
        return code if trace is None and code != OK else UNUSABLE
    if trace is not None:
        streams.complain(
            f"{trace}{prog}: this is a defect of agentx-engine, please report it with the lines above"
        )
    return code


def _status(argv: Sequence[str], prog: str) -> tuple[int, str | None]:
    """The exit status, and the traceback of what may be our own defect, or stdout's fault."""
    try:
        return _run(argv), None
    except UserError as error:
        streams.complain(f"{prog}: error: {error}")
        return error.exit_code, None
    except SystemExit as leave:  # argparse after --help
        return leave.code if isinstance(leave.code, int) else OK, None
    except ModuleNotFoundError as error:
        what = error.name or str(error)
        if what.startswith("agentx_engine.core."):
            what = f"the compiled core ({what}); nothing is measured without it, so install with a C compiler"
        streams.complain(f"{prog}: error: the installation is incomplete, there is no {what}")
        return USAGE, None
    except Exception as error:  # noqa: BLE001 - whatever gets here is our own defect, and is shown as one
        if _interrupted(error):
            return INTERRUPTED, None
        import traceback

        return CLIENT_ERROR, traceback.format_exc()


def _interrupted(error: BaseException | None) -> bool:
    """Whether a Ctrl-C is behind an error: a module that is being imported may make another one of it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    sys.exit(main())
