"""Child processes: the truth server, the bare client, simulated servers.

They never run in the client's process, whose cores and interpreter they would take. What a child must
not do is outlive a client that was killed and go on loading its core, so:

- it runs in a session of its own (a Ctrl-C at the terminal reaches the client alone, which then stops
  its children in order), and the whole process group is killed if it does not stop;
- the kernel kills it when its parent dies (`die_with_parent`, PR_SET_PDEATHSIG). The kernel means the
  *thread* that started the child: start children from a thread that lives as long as they shall,
  which is why `spawn` is apart from `wait_ready`, the part that may run in a worker thread.

Protocol: a child says what it has to say in lines of JSON on stdout. A server prints
`{"event": "ready", "port": N}` once it listens; the last line of any child is its result. Everything
for a human goes to stderr, whose end is quoted when the child fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from typing import IO, Any, Self

from agentx_engine.errors import UserError

PARENT_VARIABLE = "AGENTX_PARENT_PID"
"""Tells a child who its parent was when it was started."""

_PR_SET_PDEATHSIG = 1
_STDERR_TAIL_BYTES = 4096


class ChildError(UserError):
    """A child process could not be started, or ended when it should not have. Quotes its stderr."""

    exit_code = 3


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent dies; call it first thing in a child.

    Does nothing in a process that was not started by `Child`, so that the same program can be run by hand.
    """
    expected = os.environ.pop(PARENT_VARIABLE, None)
    if expected is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    # The parent may have died before the call; a signal for that will never come.
    if os.getppid() != int(expected):
        os._exit(1)


class Child:
    """`python -P -m module args...` in a session of its own, which ends by itself or is stopped.

    `cpus` pins it (None: wherever the scheduler wants). Use as a context manager, or as an asynchronous
    one, which does not block the loop; leaving it stops the child.
    """

    def __init__(
        self,
        module: str,
        args: Sequence[str] = (),
        *,
        cpus: Collection[int] | None = None,
        stop_timeout_s: float = 5.0,
    ) -> None:
        self.module = module
        self.args = list(args)
        self.cpus = None if cpus is None else frozenset(cpus)
        self.stop_timeout_s = stop_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._output = bytearray()

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.module} has not been started")
        return self._process

    def spawn(self) -> None:
        """Starts the process; returns in milliseconds, before the child has done anything."""
        if self._process is not None:
            raise RuntimeError(f"{self.module} has been started before")
        # A file and not a pipe: nobody has to read it while the child runs.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self.module, *self.args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
            start_new_session=True,
        )
        if self.cpus is not None:
            # From here and not in the child: it has one thread yet, so that all later ones inherit it.
            try:
                os.sched_setaffinity(self.pid, self.cpus)
            except OSError as error:
                self.stop()
                raise ChildError(
                    f"cannot pin {self.module} to cores {sorted(self.cpus)}: {error.strerror}; "
                    f"this process may use {sorted(os.sched_getaffinity(0))}"
                ) from error

    def wait_ready(self) -> None:
        """Returns when the child can be used; blocks. At once for a child that serves nothing."""

    def result(self, timeout_s: float) -> dict[str, Any]:
        """Waits for the child's own end and returns its last line of JSON.

        Raises ChildError if it fails, says nothing, or has not ended after `timeout_s` seconds.
        """
        if not self._wait(timeout_s):
            raise self._error(f"has not ended within {timeout_s:g} s")
        if self._running.returncode != 0:
            raise self._error(f"failed ({_how_ended(self._running.returncode)})")
        last = self._last_line()
        if last is None:
            raise self._error("ended without a result")
        return last

    def stop(self) -> dict[str, Any] | None:
        """Ends the child: SIGTERM, and SIGKILL after `stop_timeout_s`. Returns its last line of JSON
        behind the ready line, if there is one. Does nothing more when called again."""
        process = self._process
        if process is None:
            return None
        if process.returncode is None:
            # Not by Popen's methods: they would reap a child that has just ended, before its output is read.
            os.kill(process.pid, signal.SIGTERM)
            if not self._wait(self.stop_timeout_s):
                os.kill(process.pid, signal.SIGKILL)
                self._wait(None)
        if self._stderr is not None:
            self._stderr.close()
        return self._last_line()

    def stderr_tail(self) -> str:
        """The end of what the child wrote to stderr; empty once stopped."""
        if self._stderr is None or self._stderr.closed:
            return ""
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, end - _STDERR_TAIL_BYTES))
        return self._stderr.read().decode(errors="replace").strip()

    def __enter__(self) -> Self:
        try:
            self.spawn()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self.spawn()  # on the loop's thread, see the head of this module
        ready = asyncio.ensure_future(asyncio.to_thread(self.wait_ready))
        try:
            await asyncio.shield(ready)
        except BaseException:
            if not ready.done():
                # Cancelled. The waiting thread cannot be, but returns when the child is dead.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
                await asyncio.gather(ready, return_exceptions=True)
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.stop)

    def _wait(self, timeout_s: float | None, *, for_line: bool = False) -> bool:
        """Reads what the child prints, until it has ended or, with `for_line`, has printed a line.

        Returns whether that came about in time. Reading goes on meanwhile, so that a full pipe cannot
        hold the child up.
        """
        process, stdout = self._running, self._running.stdout
        deadline = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
        assert stdout is not None
        at_end = stdout.closed
        while not (for_line and b"\n" in self._output):
            if process.returncode is not None:
                return not for_line
            # Not reaped yet: while it is a zombie its number, and so its group's, cannot be another's.
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self._bury()
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if at_end:
                time.sleep(min(left, 0.005))
            elif select.select([stdout], [], [], min(left, 0.05))[0]:
                data = os.read(stdout.fileno(), 65536)
                self._output += data
                at_end = not data
        return True

    def _bury(self) -> None:
        """The child is dead: kills what it has left behind in its group, takes the rest of its output."""
        process, stdout = self._running, self._running.stdout
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert stdout is not None
        # A descendant that left the group may hold the pipe open for ever.
        while select.select([stdout], [], [], 1.0)[0] and (data := os.read(stdout.fileno(), 65536)):
            self._output += data
        stdout.close()
        process.wait()

    def _last_line(self) -> dict[str, Any] | None:
        lines = self._output.strip().splitlines()
        with contextlib.suppress(ValueError, IndexError):
            last = json.loads(lines[-1])
            if isinstance(last, dict):
                return last
        return None

    def _error(self, what: str) -> ChildError:
        tail = self.stderr_tail()
        command = " ".join([self.module, *self.args])
        return ChildError(f"child process `{command}` {what}" + (f"; it wrote:\n{tail}" if tail else ""))


class ChildServer(Child):
    """A child that serves HTTP on loopback; `port` and `url` are valid once it is ready."""

    def __init__(
        self,
        module: str,
        args: Sequence[str] = (),
        *,
        cpus: Collection[int] | None = None,
        ready_timeout_s: float = 20.0,
        stop_timeout_s: float = 5.0,
    ) -> None:
        super().__init__(module, args, cpus=cpus, stop_timeout_s=stop_timeout_s)
        self.ready_timeout_s = ready_timeout_s
        self.port = 0

    @property
    def url(self) -> str:
        if not self.port:
            raise RuntimeError(f"{self.module} is not ready")
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        if not self._wait(self.ready_timeout_s, for_line=True):
            if self._running.returncode is not None:
                raise self._error(f"failed at its start ({_how_ended(self._running.returncode)})")
            raise self._error(f"was not ready within {self.ready_timeout_s:g} s")
        line, _, rest = bytes(self._output).partition(b"\n")
        self._output[:] = rest
        try:
            ready = json.loads(line)
            port = ready["port"] if ready["event"] == "ready" else None
        except (ValueError, KeyError, TypeError):
            port = None
        if not isinstance(port, int):
            raise self._error(f"printed {line[:200]!r} where its ready line was due")
        self.port = port


def _how_ended(returncode: int) -> str:
    if returncode < 0:
        return f"killed by {signal.Signals(-returncode).name}"
    return f"exit status {returncode}"
