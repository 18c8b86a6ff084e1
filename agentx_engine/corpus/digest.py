"""The identity of a corpus: SHA-256 over its unpacked content, reproducible with `sha256sum`.

SHA-256 takes 1 to 10 s for 2 GB, depending on the processor: too long to stand before every run. It is
computed when it is first asked for, and remembered for large files as long as size, times and inode are
unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from agentx_engine.corpus.containers import Stored
from agentx_engine.corpus.unpack import cache_folder
from agentx_engine.errors import CorpusError

REMEMBER_FROM_BYTES = 64 << 20


def content_digest(files: Iterable[Stored], *, folder: bool) -> str:
    """ "sha256:" and the hex digits that a shell gives: of one file `sha256sum FILE`; of a folder, in it,
    `LC_ALL=C sha256sum *.json | sha256sum`. Packed files count by their plain content and name.

    Raises CorpusError if a file is no longer readable or has changed. Releases the GIL while it hashes.
    """
    hexes = [(_file_digest(stored), stored.name) for stored in files]
    if not folder:
        return "sha256:" + hexes[0][0]
    listing = "".join(f"{digits}  {name}\n" for digits, name in hexes)
    return "sha256:" + hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()


def _file_digest(stored: Stored) -> str:
    try:
        with stored.file.open("rb") as file:
            status = os.fstat(file.fileno())
            if (status.st_size, status.st_mtime_ns) != (stored.bytes, stored.mtime_ns):
                raise CorpusError(
                    f"{stored.shown}: the file has changed since the corpus was opened. Do not write to a "
                    "corpus in use; start again."
                )
            note = _note(stored.file, status) if stored.bytes >= REMEMBER_FROM_BYTES else None
            if note is not None and (known := _recall(note)):
                return known
            digits = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CorpusError(f"{stored.shown}: cannot be read: {error.strerror or error}.") from None
    if note is not None:
        _remember(note, digits)
    return digits


def _note(file: Path, status: os.stat_result) -> Path:
    key = (os.fsencode(file.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return cache_folder() / f"digest-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}"


def _recall(note: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        digits = note.read_text("ascii")
        if len(bytes.fromhex(digits)) == hashlib.sha256().digest_size:
            return digits
    return None


def _remember(note: Path, digits: str) -> None:
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, not results
        note.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(prefix=".digest-", dir=note.parent)
        with open(handle, "w", encoding="ascii") as out:  # noqa: PTH123 - a descriptor, not a path
            out.write(digits)
        Path(aside).replace(note)
