"""agentx-engine: finds the command, imports its module, turns errors into messages and exit codes.

Nothing but the standard library's argparse is imported until a command runs, so that `--help` is quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from agentx_engine.errors import UserError

OK, UNUSABLE, USAGE, NOT_READY, CLIENT_ERROR, INTERRUPTED = 0, 1, 2, 3, 4, 130

EXIT_CODES = """\
exit status:
  0    done
  1    the run finished but is not usable: nothing succeeded, too much failed, records could not be written,
       a scenario's coverage was not reached, or this client was the limit (--require-client-ok)
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
    argv = list(sys.argv[1:] if argv is None else argv)
    prog = "agentx-engine" + (f" {argv[0]}" if argv and argv[0] in COMMANDS else "")
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as leave:  # argparse after --help
        return leave.code if isinstance(leave.code, int) else OK
    except ModuleNotFoundError as error:
        what = error.name or str(error)
        if what.startswith("agentx_engine.core."):
            what = f"the compiled core ({what}); nothing is measured without it, so install with a C compiler"
        print(f"{prog}: error: the installation is incomplete, there is no {what}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _mute(sys.stdout)
        return OK
    except Exception:  # noqa: BLE001 - whatever gets here is our own defect, and is shown as one
        import traceback

        traceback.print_exc()
        print(
            f"{prog}: this is a defect of agentx-engine, please report it with the lines above",
            file=sys.stderr,
        )
        return CLIENT_ERROR


def _mute(stream: TextIO) -> None:
    """Keeps the interpreter from failing again at exit, when it flushes a pipe whose reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
