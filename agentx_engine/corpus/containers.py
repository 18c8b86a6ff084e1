"""Where the traces of a corpus stand: one table of file forms, each turned into a list of places.

Nothing is decoded here. A .jsonl file is mapped and its line ends are found at memchr speed; of each trace
only the first few kilobytes are looked at, for the id. Mapped pages are given back as the scan goes, so that
a corpus of gigabytes does not count as memory in use.

Traces are later read with `pread`, not through the mapping: a file that shrinks under a running load must
be an error message, not a bus error, and a trace's memory must go when the trace goes.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agentx_engine.corpus.decode import ID_PREFIX_BYTES, decode_id, leading_id
from agentx_engine.corpus.explain import foreign
from agentx_engine.corpus.unpack import COMPRESSIONS, unpacked
from agentx_engine.errors import CorpusError

_SCAN_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"


class Stored(NamedTuple):
    """A plain file that holds traces, as it was when it was indexed."""

    file: Path  # what is read: the user's file or its unpacked copy
    shown: str  # the user's path of it
    name: str  # the last part of that, without .gz or .zst
    bytes: int
    mtime_ns: int


class Place(NamedTuple):
    """One trace: `length` bytes at `offset` of a file."""

    stored: Stored
    offset: int
    length: int
    line: int | None  # 1-based, None where the file is one trace

    @property
    def where(self) -> str:
        return self.stored.shown if self.line is None else f"{self.stored.shown} line {self.line}"


def _one_trace(stored: Stored) -> list[Place]:
    with stored.file.open("rb") as file:
        skip = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
    return [Place(stored, skip, stored.bytes - skip, None)]


def _trace_per_line(stored: Stored) -> list[Place]:
    places: list[Place] = []
    with stored.file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        if hasattr(mmap, "MADV_SEQUENTIAL"):
            mapped.madvise(mmap.MADV_SEQUENTIAL)
        start = len(_BOM) if mapped[: len(_BOM)] == _BOM else 0
        line = 1
        for base in range(0, stored.bytes, _SCAN_BYTES):
            limit = min(base + _SCAN_BYTES, stored.bytes)
            at = max(start, base)
            while (end := mapped.find(b"\n", at, limit)) >= 0:
                if not _blank(mapped, start, end):
                    places.append(Place(stored, start, end - start, line))
                line += 1
                start = at = end + 1
            mapped.madvise(mmap.MADV_DONTNEED, base, limit - base)
        if not _blank(mapped, start, stored.bytes):
            places.append(Place(stored, start, stored.bytes - start, line))
    return places


def _blank(mapped: mmap.mmap, start: int, end: int) -> bool:
    return end - start <= ID_PREFIX_BYTES and not mapped[start:end].strip()


FORMS: dict[str, Callable[[Stored], list[Place]]] = {".json": _one_trace, ".jsonl": _trace_per_line}

_KNOWN = ", ".join(form + packing for form in FORMS for packing in ("", *COMPRESSIONS))


def _form(name: str) -> str | None:
    """The key in FORMS for a file name, compression set aside; None if the name has no known ending."""
    path = Path(name.lower())
    suffix = Path(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix
    return suffix if suffix in FORMS else None


def find_places(path: Path) -> list[Place]:
    """The traces of a file, or of the one-trace files of a folder in name order. Raises CorpusError."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return [p for file in _files_of(path) for p in _places_of(file, ".json")]
        form = _form(path.name)
        if stat.S_ISREG(mode) and form is None:
            raise CorpusError(
                f"{path}: the name does not tell the form of the file. Known endings: {_KNOWN}; or give a "
                "folder of .json files."
            )
        return _places_of(path, form or "")
    except FileNotFoundError:
        raise CorpusError(
            f"{path}: no such file or folder. Give a .json or .jsonl file or a folder."
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:  # a name with a NUL byte
        raise CorpusError(f"{str(path)!r}: not a usable file name: {error}") from None


def _files_of(folder: Path) -> list[Path]:
    files = sorted(
        (
            f
            for f in folder.iterdir()
            if _form(f.name) == ".json" and not f.name.startswith(".") and not f.is_dir()
        ),
        key=lambda f: f.name,
    )
    if not files:
        lines = sorted(f.name for f in folder.iterdir() if _form(f.name) == ".jsonl")
        hint = (
            f"It holds {lines[0]}: give that file."
            if lines
            else "A folder is read as one trace per .json file; files in subfolders are not looked for."
        )
        raise CorpusError(f"{folder}: no .json file in this folder. {hint}")
    return files


def _places_of(path: Path, form: str) -> list[Place]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CorpusError(f"{path}: not a regular file. Traces are read from files and folders only.")
        packed = path.suffix.lower() in COMPRESSIONS
        plain = unpacked(path) if packed else path
        status = plain.stat()
        name = path.stem if packed else path.name
        stored = Stored(plain, str(path), name, status.st_size, status.st_mtime_ns)
        if not status.st_size:
            raise CorpusError(f"{path}: the file is empty. Fetch it again, or remove it.")
        return FORMS[form](stored)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> CorpusError:
    return CorpusError(
        f"{path}: cannot be read: {error.strerror or error}. Check the path and its permissions."
    )


def read(place: Place, limit: int | None = None) -> bytes:
    """The bytes of a trace, or its first `limit`. Raises CorpusError if the file is no longer as indexed."""
    stored = place.stored
    length = place.length if limit is None else min(limit, place.length)
    try:
        handle = os.open(stored.file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            same = (status.st_size, status.st_mtime_ns) == (stored.bytes, stored.mtime_ns)
            data = os.pread(handle, length, place.offset) if same else b""
            while same and 0 < len(data) < length:  # one call moves at most 2 GiB
                more = os.pread(handle, length - len(data), place.offset + len(data))
                same = bool(more)
                data += more
        finally:
            os.close(handle)
    except OSError as error:
        raise _unreadable(stored.file, error) from None
    if not same or len(data) != length:
        raise CorpusError(
            f"{place.where}: the file has changed since the corpus was opened. Do not write to a corpus in "
            "use; start again."
        )
    return data


def trace_id(place: Place) -> str:
    """The id of the trace, from its first bytes where possible. Raises CorpusError if it is no trace."""
    head = read(place, ID_PREFIX_BYTES)
    if (words := foreign(head)) is not None:
        raise CorpusError(f"{place.where}: {words}")
    return leading_id(head) or decode_id(read(place), place.where)
