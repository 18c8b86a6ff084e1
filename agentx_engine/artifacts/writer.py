"""Lines to files, without ever making the scheduler wait.

The scheduler's thread encodes a line (some tens of microseconds) and appends it to a queue; a thread of
its own writes. That thread does nothing but move bytes: encoding there would take the interpreter lock from
the scheduler for milliseconds at a time, a write gives it away. One producer and one consumer, so the queue
needs no lock: each side counts its own bytes. When the disk is slower than the run, the queue fills and
further lines are dropped, counted and reported; the load is never held back.

Files hold whole lines at every instant that a reader can see, except between two writes of a line longer than
the kernel takes at once; after a failed write the file is cut back to its last whole line.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

QUEUE_BYTES = 64 << 20
BATCH_BYTES = 256 << 10
FLUSH_S = 0.25


class WriterReport(msgspec.Struct):
    """What became of the lines."""

    written: int = 0
    dropped: int = 0  # the queue was full
    lost: int = 0  # the write failed
    error: str | None = None  # of the first failed write
    unfinished: int = 0  # still queued when the writer was given up
    queue_peak_bytes: int = 0

    @property
    def complete(self) -> bool:
        return not (self.dropped or self.lost or self.unfinished)


class LineWriter:
    """Appends lines to files of one folder; `put` belongs to one thread, files are made at their first line.

    OSError from the constructor if a file of `create` cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        create: tuple[str, ...] = (),
        *,
        queue_bytes: int = QUEUE_BYTES,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self._folder = folder
        self._limit = queue_bytes
        self._write = write
        self._queue: deque[tuple[str, bytes]] = deque()
        self._put_bytes = 0  # written by the producer only
        self._taken_bytes = 0  # written by the consumer only
        self._report = WriterReport()
        self._files: dict[str, int] = {}
        self._wake = threading.Event()
        self._closing = False
        for name in create:
            self._open(name)
        self._thread = threading.Thread(target=self._run, name="agentx-writer", daemon=True)
        self._thread.start()

    def put(self, name: str, line: bytes) -> bool:
        """Queues a line (with its line feed) for the file `name`. False if it was dropped."""
        pending = self._put_bytes - self._taken_bytes + len(line)
        if pending > self._limit:
            self._report.dropped += 1
            return False
        self._put_bytes += len(line)
        self._queue.append((name, line))
        self._report.queue_peak_bytes = max(self._report.queue_peak_bytes, pending)
        if pending > BATCH_BYTES:
            self._wake.set()
        return True

    @property
    def report(self) -> WriterReport:
        return self._report

    def close(self, timeout_s: float = 30.0) -> WriterReport:
        """Writes what is queued and closes the files; after `timeout_s` the rest is given up, and counted."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._report.unfinished = len(self._queue) or 1
        return self._report

    def _open(self, name: str) -> int:
        fd = self._files.get(name)
        if fd is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            fd = self._files[name] = os.open(self._folder / name, flags, 0o644)
        return fd

    def _run(self) -> None:
        while True:
            closing = self._closing  # read before draining: what is queued before close is written
            while batch := self._take():
                for name, lines in batch.items():
                    self._append(name, lines)
            if closing:
                break
            self._wake.wait(FLUSH_S)
            self._wake.clear()
        for fd in self._files.values():
            with contextlib.suppress(OSError):  # pipes and devices cannot be synced
                os.fsync(fd)
            os.close(fd)

    def _take(self) -> dict[str, list[bytes]]:
        batch: dict[str, list[bytes]] = {}
        size = 0
        while self._queue and size < BATCH_BYTES:
            name, line = self._queue.popleft()
            batch.setdefault(name, []).append(line)
            size += len(line)
        self._taken_bytes += size
        return batch

    def _append(self, name: str, lines: list[bytes]) -> None:
        data = b"".join(lines)
        start = done = 0
        fd = -1
        try:
            fd = self._open(name)
            start = os.fstat(fd).st_size
            while done < len(data):
                done += self._write(fd, data[done:] if done else data)
            self._report.written += len(lines)
        except OSError as error:
            whole = data.rfind(b"\n", 0, done) + 1
            if fd >= 0 and done > whole:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, start + whole)
            kept = data.count(b"\n", 0, whole)
            self._report.written += kept
            self._report.lost += len(lines) - kept
            if self._report.error is None:
                self._report.error = f"{self._folder / name}: {error.strerror or error}"
