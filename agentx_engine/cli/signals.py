"""The signals that end a run in order: what was measured is written, and the exit status says so."""

from __future__ import annotations

import signal


def stop_signals() -> list[signal.Signals]:
    """Ctrl-C, a polite kill, and a terminal that has gone, unless nohup made the process deaf to that."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers
