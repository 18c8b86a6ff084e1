"""What is shown while a run goes on, without disturbing it.

The loop reads a few counters and formats a few lines (about 0.4 ms with rich, twice a second). A thread of
its own writes them, since a terminal that is held (Ctrl-S) or a pipe whose reader is slow would otherwise
stop the load; frames that find the thread still busy are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

import msgspec

if TYPE_CHECKING:
    from rich.live import Live

RICH_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 5.0
WINDOW_S = 10.0
MAX_PENDING = 8


class Printer(io.TextIOBase):
    """A text stream that never blocks its writer. What `flush` finds buffered becomes one frame."""

    def __init__(self, target: TextIO) -> None:
        super().__init__()
        self._fd = target.fileno()
        self._buffer: list[str] = []
        self._frames: deque[bytes] = deque()
        self._wake = threading.Event()
        self._closing = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="agentx-display", daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, text: str) -> int:
        self._buffer.append(text)
        return len(text)

    def flush(self) -> None:
        if not self._buffer:
            return
        frame = "".join(self._buffer).encode("utf-8", "replace")
        self._buffer.clear()
        if len(self._frames) >= MAX_PENDING:
            self.dropped += 1
            return
        self._frames.append(frame)
        self._wake.set()

    def finish(self, timeout_s: float = 2.0) -> None:
        """Writes what is queued and ends the thread; gives up on a target that does not take it."""
        self.flush()
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            closing = self._closing
            while self._frames:
                data = self._frames.popleft()
                with contextlib.suppress(OSError):  # the reader has gone: the run goes on without a display
                    while data:
                        data = data[os.write(self._fd, data) :]
            if closing:
                return
            self._wake.wait()
            self._wake.clear()


class View(msgspec.Struct):
    """What the display shows. Counts since the start; `tokens` is the number of output tokens so far."""

    elapsed_s: float = 0.0
    total_s: float | None = None
    state: str = "preparing"
    lanes: int = 0
    lanes_idle: int = 0
    in_flight: int = 0
    finished: int = 0
    failed: dict[str, int] = msgspec.field(default_factory=dict)
    tokens: int = 0
    ttft_p50_ms: float | None = None
    trees_started: int = 0
    trees_finished: int = 0
    dropped_records: int = 0


class Rates:
    """Requests and tokens per second over the last `WINDOW_S`."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def update(self, view: View) -> tuple[float | None, float | None]:
        self._seen.append((view.elapsed_s, view.finished, view.tokens))
        while len(self._seen) > 2 and self._seen[1][0] <= view.elapsed_s - WINDOW_S:
            self._seen.popleft()
        t0, finished, tokens = self._seen[0]
        seconds = view.elapsed_s - t0
        if seconds <= 0:
            return None, None
        return (view.finished - finished) / seconds, (view.tokens - tokens) / seconds


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _failures(view: View) -> str:
    total = sum(view.failed.values())
    kinds = ", ".join(
        f"{kind} {n:,}" for kind, n in sorted(view.failed.items(), key=lambda item: -item[1])[:4]
    )
    return f"{total:,}" + (f" ({kinds})" if kinds else "")


def plain_line(view: View, rates: tuple[float | None, float | None]) -> str:
    """One line, about 100 columns."""
    total = "" if view.total_s is None else f"/{view.total_s:.0f}"
    return (
        f"{view.elapsed_s:7.1f}{total} s  {view.state:<9} lanes {view.lanes:,} ({view.lanes_idle:,} idle)"
        f"  in flight {view.in_flight:,}  finished {view.finished:,}  failed {_failures(view)}"
        f"  {_number(rates[0])} req/s  {_number(rates[1], 0)} out tok/s"
        f"  TTFT p50 {_number(view.ttft_p50_ms)} ms  trees {view.trees_finished:,}/{view.trees_started:,}"
        + (f"  RECORDS DROPPED {view.dropped_records:,}" if view.dropped_records else "")
    )


def frame(view: View, rates: tuple[float | None, float | None]) -> str:
    """Four lines of at most 79 columns."""
    total = "" if view.total_s is None else f" of {view.total_s:,.0f}"
    dropped = f"   RECORDS DROPPED {view.dropped_records:,}" if view.dropped_records else ""
    lines = [
        f"{view.state:<10} {view.elapsed_s:,.1f}{total} s",
        f"lanes      {view.lanes:>8,} live  {view.lanes_idle:>8,} idle   in flight {view.in_flight:>8,}   "
        f"trees {view.trees_finished:,}/{view.trees_started:,}",
        f"requests   {view.finished:>8,} done  {_number(rates[0]):>8}/s      "
        f"output {_number(rates[1], 0):>11} tok/s   TTFT p50 {_number(view.ttft_p50_ms)} ms",
        f"failed     {_failures(view)}{dropped}",
    ]
    return "\n".join(line[:98] for line in lines)


class Progress:
    """Shows `read()` again and again; `async with` it around the run."""

    def __init__(
        self, mode: str, target: TextIO, read: Callable[[], View], plain_interval_s: float = PLAIN_INTERVAL_S
    ) -> None:
        """`mode`: plain, rich or none (see `choose`)."""
        self._mode = mode
        self._interval_s = RICH_INTERVAL_S if mode == "rich" else plain_interval_s
        self._read = read
        self._rates = Rates()
        self._task: asyncio.Task[None] | None = None
        self._live: Live | None = None
        self._printer = Printer(target) if mode != "none" else None

    async def __aenter__(self) -> Progress:
        if self._printer is None:
            return self
        if self._mode == "rich":
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._printer, force_terminal=True)  # type: ignore[arg-type]
            self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False,
                              redirect_stderr=False)  # fmt: skip
            self._live.start()
        self._task = asyncio.get_running_loop().create_task(self._show())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._live is not None:
            self._live.stop()
        if self._printer is not None:
            self._printer.finish()

    def say(self, text: str) -> None:
        """A line above the display."""
        if self._printer is None:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            self._printer.write(text + "\n")
        self._printer.flush()

    def show_once(self) -> None:
        view = self._read()
        rates = self._rates.update(view)
        if self._live is not None:
            from rich.text import Text

            # One Text, since a rich Table of the same content costs twenty times as much.
            self._live.update(Text(frame(view, rates), no_wrap=True), refresh=True)
        elif self._printer is not None:
            self._printer.write(plain_line(view, rates) + "\n")
        if self._printer is not None:
            self._printer.flush()

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            self.show_once()


def choose(ui: str, target: TextIO) -> str:
    """`auto` is rich on a terminal that can move its cursor, else plain."""
    if ui != "auto":
        return ui
    return "rich" if target.isatty() and os.environ.get("TERM", "dumb") != "dumb" else "plain"
