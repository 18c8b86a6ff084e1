"""Runs one vector through an incremental parser in every way that a network may cut it.

A parser without I/O must not care where its input was cut. `check_splits` feeds the same bytes whole, cut
at every position, byte by byte and in small even pieces, and wants the same result each time; `results`
of a stream that is several vectors behind one another are checked by the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

#: Above this size a vector is cut at about this many positions instead of at all.
EVERY_CUT = 600


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def splits(data: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """(label, pieces) for every cut of `data`; the pieces always add up to it."""
    yield "whole", [data]
    step = max(1, len(data) // EVERY_CUT)
    for cut in range(0, len(data) + 1, step):
        yield f"cut at {cut}", [data[:cut], data[cut:]]
    if step == 1:
        for cut in range(len(data)):
            yield f"one byte alone at {cut}", [data[:cut], data[cut : cut + 1], data[cut + 1 :]]
    for size in (1, 2, 3, 7, 64):
        yield f"pieces of {size}", pieces_of(data, size)


def check_splits(run: Callable[[Sequence[bytes]], T], data: bytes, expected: T) -> None:
    """Assert that `run` returns `expected` for every split of `data`."""
    for label, pieces in splits(data):
        got = run(pieces)
        assert got == expected, f"{label}: {got!r} is not {expected!r}"
