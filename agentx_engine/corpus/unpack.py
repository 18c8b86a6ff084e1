"""Compressed corpora: unpacked once into the user's cache folder, then read like plain files.

A cached file is named after the SHA-256 of the compressed bytes, so a moved or touched archive is found
again and a changed one never is. It appears under its name only when it is complete and on disk (written
aside, synced, renamed), whatever happens to this or another process meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from agentx_engine.errors import CorpusError

_CHUNK_BYTES = 1 << 20


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _gzip() -> _Decompressor:
    return zlib.decompressobj(wbits=31)


def _zstd() -> _Decompressor:
    return zstandard.ZstdDecompressor().decompressobj()


COMPRESSIONS: dict[str, Callable[[], _Decompressor]] = {".gz": _gzip, ".zst": _zstd}


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/agentx-engine/corpus, or ~/.cache/... where that is unset or relative."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "agentx-engine" / "corpus"


def unpacked(path: Path) -> Path:
    """The plain file with the content of `path` (.gz or .zst). Raises CorpusError and leaves no half file."""
    inner = path.with_suffix("")
    try:
        with path.open("rb") as packed:
            key = hashlib.file_digest(packed, "sha256").hexdigest()
            target = cache_folder() / f"{inner.stem[:80]}-{key[:32]}{inner.suffix.lower()}"
            if target.is_file():
                return target
            packed.seek(0)
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, _pieces(packed, path))
    except OSError as error:
        raise CorpusError(
            f"{path}: cannot be unpacked to {cache_folder()}: {error.strerror or error}. Make room or choose "
            "another folder with XDG_CACHE_HOME, or unpack the file yourself."
        ) from None
    return target


def replace_file(target: Path, pieces: Iterable[bytes]) -> None:
    """Writes `target` so that it appears, or is replaced, only when it is complete and on disk. OSError."""
    aside = target.with_name(f".writing-{os.getpid()}-{secrets.token_hex(8)}")
    try:
        with aside.open("xb") as out:
            out.writelines(pieces)
            out.flush()
            os.fsync(out.fileno())
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _pieces(packed: BinaryIO, path: Path) -> Iterator[bytes]:
    """The content, member by member: both formats allow several compressed streams in a row."""
    start = COMPRESSIONS[path.suffix.lower()]
    member: _Decompressor | None = None
    members = 0
    try:
        while data := packed.read(_CHUNK_BYTES):
            while data:
                if member is None:
                    if members and not data.strip(b"\0"):
                        break  # padding of tape blocks, which gzip allows after the last member
                    member = start()
                    members += 1
                yield member.decompress(data)
                data = b""
                if member.eof:
                    data, member = member.unused_data, None
    except (zlib.error, zstandard.ZstdError) as error:
        raise CorpusError(
            f"{path}: is not intact {path.suffix.lower()} data: {error}. Fetch it again, or if the name is "
            "wrong give it its right ending."
        ) from None
    if member is not None or not members:
        raise CorpusError(
            f"{path}: the compressed data ends early, after {packed.tell()} bytes. Fetch the file again."
        )
