"""What the run cost: CPU and memory of the process, pauses of the garbage collector.

Automatic collection would stop the scheduler for tens of milliseconds at a time (a full collection walks
every object of a corpus). So everything that is alive when a run starts is frozen, automatic collection
is off, and young objects are collected in small portions by `tick`; each pause is recorded.
"""

from __future__ import annotations

import gc
import resource
import time
from typing import Any

from agentx_engine.core.hdr import Histogram
from agentx_engine.metrics.stats import histogram_statistics

YOUNG_S = 1.0  # at most so often is the youngest generation collected
MIDDLE_S = 15.0


class Collector:
    """Takes over garbage collection between `start` and `stop`; `tick` belongs into a quiet moment."""

    def __init__(self) -> None:
        self.pauses = Histogram()
        self._began_ns = 0
        self._young_at = self._middle_at = 0.0

    def start(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        gc.callbacks.append(self._pause)
        self._young_at = self._middle_at = time.monotonic()

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._middle_at >= MIDDLE_S:
            self._middle_at = self._young_at = now
            gc.collect(1)
        elif now - self._young_at >= YOUNG_S:
            self._young_at = now
            gc.collect(0)

    def stop(self) -> None:
        gc.callbacks.remove(self._pause)
        gc.unfreeze()
        gc.enable()

    def _pause(self, phase: str, info: dict[str, int]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._began_ns = now
        else:
            self.pauses.record(now - self._began_ns)

    def result(self) -> dict[str, float] | None:
        return histogram_statistics(self.pauses)


class Usage:
    """Difference of the process's counters between its making and `result`."""

    def __init__(self) -> None:
        self._start = resource.getrusage(resource.RUSAGE_SELF)
        self._wall = time.monotonic()

    def result(self) -> dict[str, Any]:
        now, start = resource.getrusage(resource.RUSAGE_SELF), self._start
        wall = time.monotonic() - self._wall
        cpu = now.ru_utime + now.ru_stime - start.ru_utime - start.ru_stime
        return {
            "wall_s": wall,
            "cpu_s": cpu,
            "cpu_cores": cpu / wall if wall > 0 else None,
            "max_rss_bytes": now.ru_maxrss * 1024,
            "major_faults": now.ru_majflt - start.ru_majflt,
        }
