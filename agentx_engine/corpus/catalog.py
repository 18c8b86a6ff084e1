"""The corpus as the replay sees it: an ordered list of traces, each decoded when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from agentx_engine.corpus.clock import CORRECTION, settle
from agentx_engine.corpus.containers import Place, find_places, read, trace_id
from agentx_engine.corpus.decode import decode_trace
from agentx_engine.corpus.digest import content_digest
from agentx_engine.corpus.filters import requests_of, without_large_requests
from agentx_engine.corpus.hash_ids import request_ids
from agentx_engine.corpus.model import Subagent, Trace
from agentx_engine.errors import CorpusError

OnWarning = Callable[[str], None]


class _Warnings:
    """Shows each kind of oddity once and counts in how many traces it was met."""

    def __init__(self, on_warning: OnWarning | None) -> None:
        self.counts: dict[str, int] = {}
        self._on_warning = on_warning
        self._met: set[tuple[int, str]] = set()

    def meet(self, number: int, kind: str, text: str) -> None:
        if (number, kind) in self._met:
            return
        self._met.add((number, kind))
        first = kind not in self.counts
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if first and self._on_warning is not None:
            self._on_warning(text)


class Corpus:
    """An ordered selection of the traces of a file or folder. Made by `open_corpus`; cheap to hold.

    `path`: what was opened. `ids`: trace ids in order. `dropped`: why traces of the file are not in this
    selection, as {"max_context": 3, "entries": 12}. `max_request_tokens`: requests of more input and output
    are left out of every trace. Decoded traces are not kept: the caller keeps what is alive.
    """

    def __init__(
        self,
        path: Path,
        places: Sequence[Place],
        ids: Sequence[str],
        *,
        compat_harness: bool = False,
        max_request_tokens: int | None = None,
        on_warning: OnWarning | None = None,
    ) -> None:
        self.path = path
        self.max_request_tokens = max_request_tokens
        self.ids: tuple[str, ...] = tuple(ids)
        self.compat_harness = compat_harness
        self.dropped: dict[str, int] = {}
        self._places = tuple(places)
        self._numbers: Sequence[int] = range(len(places))  # positions in the whole corpus
        self._warnings = _Warnings(on_warning)
        self._whole = self
        self._peaks: dict[tuple[int, int | None], int] = {}
        self._left_out: dict[int, int] = {}  # requests, by number of a decoded trace

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return f"<Corpus {str(self.path)!r}, {len(self)} traces>"

    @property
    def warnings(self) -> dict[str, int]:
        """Kinds of oddities met so far in decoded traces, with the number of traces that have them."""
        return dict(self._warnings.counts)

    @property
    def requests_left_out(self) -> int:
        """Requests that `max_request_tokens` took out of the selected traces; decodes those that were not."""
        if self.max_request_tokens is None:
            return 0
        for index, number in enumerate(self._numbers):
            if number not in self._left_out:
                self.trace(index)
        return sum(self._left_out[number] for number in self._numbers)

    @property
    def bytes(self) -> int:
        """Size of the selected traces, unpacked."""
        return sum(self._places[n].length for n in self._numbers)

    def bytes_of(self, index: int) -> int:
        """Size of one trace, unpacked."""
        return self._places[self._numbers[index]].length

    @property
    def digest(self) -> str:
        """Identity of the whole corpus, selected or not: see `corpus.digest`. Slow at first use."""
        return self._whole._digest

    @cached_property
    def _digest(self) -> str:
        files = dict.fromkeys(place.stored for place in self._places)
        return content_digest(files, folder=self.path.is_dir())

    def trace(self, index: int) -> Trace:
        """Decodes a trace. Raises CorpusError that names place and field if it cannot be replayed."""
        number = self._numbers[index]
        place = self._places[number]
        trace = decode_trace(
            read(place), place.where, lambda kind, text: self._warnings.meet(number, kind, text)
        )
        if trace.id != self._whole.ids[number]:
            raise CorpusError(
                f"{place.where}: the trace has two ids, {self._whole.ids[number]!r} and {trace.id!r}. "
                "Remove one."
            )
        self._check_agents(trace)
        settled = settle(trace, compat_harness=self.compat_harness)
        if CORRECTION in settled.corrections:
            self._warnings.meet(
                number,
                CORRECTION,
                f"{place.where}: trace {trace.id!r} stores when subagents ended, not when they started; "
                "their times are set right (--compat harness takes them literally)",
            )
        if self.max_request_tokens is None:
            return settled
        kept = without_large_requests(settled, self.max_request_tokens)
        self._left_out[number] = sum(1 for _ in requests_of(settled)) - sum(1 for _ in requests_of(kept))
        return kept

    def _check_agents(self, trace: Trace) -> None:
        seen: dict[str, int] = {}
        for i, entry in enumerate(trace.requests):
            if not isinstance(entry, Subagent):
                continue
            if entry.agent_id in seen:
                raise CorpusError(
                    f"{trace.source}: trace {trace.id!r}, request {i}: agent_id {entry.agent_id!r} is used "
                    f"by request {seen[entry.agent_id]} too. Give each subagent of a trace its own agent_id."
                )
            seen[entry.agent_id] = i

    def check(self, on_trace: Callable[[int], None] | None = None) -> None:
        """Decodes every selected trace and its ids, so that a broken one is found before a run, not in it.

        `on_trace(index)` is called after each. Raises CorpusError for the first that cannot be replayed.
        """
        for index in range(len(self)):
            trace = self.trace(index)
            for i, entry in enumerate(trace.requests):
                if isinstance(entry, Subagent):
                    for j in range(len(entry.requests)):
                        request_ids(trace, i, j)
                else:
                    request_ids(trace, i)
            if on_trace is not None:
                on_trace(index)

    def peak_tokens(self, index: int, max_output_tokens: int | None = None) -> int:
        """The largest context that the trace needs: prompt plus output limit, over all its requests.

        The root's outputs count as `max(1, min(out, max_output_tokens))`, a subagent's as `max(1, out)`: caps
        do not apply to them (agentx-v1 loading rules). Decodes the trace at first use.
        """
        key = (self._numbers[index], max_output_tokens)
        if key not in self._peaks:
            self._peaks[key] = _peak_tokens(self.trace(index), max_output_tokens)
        return self._peaks[key]

    def select(
        self,
        max_context: int | None = None,
        entries: int | None = None,
        max_output_tokens: int | None = None,
    ) -> Corpus:
        """The first `entries` traces whose `peak_tokens` is at most `max_context`, in order.

        None means no limit. Without `max_context` nothing is decoded. Raises CorpusError if nothing is left.
        """
        if entries is not None and entries < 1:
            raise CorpusError(f"{self.path}: {entries} traces asked for. Ask for at least 1.")
        kept: list[int] = []
        dropped = dict(self.dropped)
        smallest: int | None = None
        for index in range(len(self)):
            if entries is not None and len(kept) == entries:
                dropped["entries"] = dropped.get("entries", 0) + len(self) - index
                break
            if max_context is not None:
                peak = self.peak_tokens(index, max_output_tokens)
                smallest = peak if smallest is None else min(smallest, peak)
                if peak > max_context:
                    dropped["max_context"] = dropped.get("max_context", 0) + 1
                    continue
            kept.append(self._numbers[index])
        if not kept:
            raise CorpusError(
                f"{self.path}: no trace fits a context of {max_context} tokens; the smallest needs "
                f"{smallest}. Raise the context limit or use other traces."
            )
        return self._selection(kept, dropped)

    def _selection(self, numbers: Sequence[int], dropped: dict[str, int]) -> Corpus:
        chosen = Corpus.__new__(Corpus)
        chosen.__dict__.update(self.__dict__)
        chosen.__dict__.pop("_digest", None)
        chosen._numbers = tuple(numbers)
        chosen.ids = tuple(self._whole.ids[n] for n in numbers)
        chosen.dropped = dropped
        return chosen


def _peak_tokens(trace: Trace, cap: int | None) -> int:
    peak = 0
    for entry in trace.requests:
        if isinstance(entry, Subagent):
            for request in entry.requests:
                peak = max(peak, request.in_tokens + max(1, request.out_tokens))
        else:
            out = entry.out_tokens if cap is None else min(entry.out_tokens, cap)
            peak = max(peak, entry.in_tokens + max(1, out))
    return peak


def open_corpus(
    path: str | Path,
    *,
    compat_harness: bool = False,
    max_request_tokens: int | None = None,
    on_warning: OnWarning | None = None,
) -> Corpus:
    """Opens a .json file (one trace), a folder of them, or a .jsonl file (a trace per line); also .gz, .zst.

    Finds the traces and their ids, decodes none. `compat_harness` reads subagent times as the official loader
    does. `max_request_tokens` leaves larger requests out of every trace. `on_warning(text)` is called once
    per kind of oddity, when a trace that has it is decoded. Raises CorpusError: not there, not readable, not
    a trace, no trace, an id used twice.
    """
    path = Path(path)
    places = find_places(path)
    if not places:
        raise CorpusError(f"{path}: holds no trace, only blank lines. Fetch the file again.")
    first: dict[str, Place] = {}
    for place in places:
        name = trace_id(place)
        if (other := first.setdefault(name, place)) is not place:
            raise CorpusError(
                f"{place.where}: trace id {name!r} is already used at {other.where}. Ids name prompts and "
                "conversations and must be unique: remove one of the two or rename it."
            )
    return Corpus(
        path,
        places,
        tuple(first),
        compat_harness=compat_harness,
        max_request_tokens=max_request_tokens,
        on_warning=on_warning,
    )
