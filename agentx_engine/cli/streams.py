"""The standard streams of the process, as they may be: closed, full, or without a reader.

A descriptor below 3 that is free would be taken by the next socket or file, which would then receive what is
meant for people (and libuv refuses to live with it). So closed ones are occupied first, in a way that keeps
them closed to see: reading stdin and writing stdout go on to fail. Only stderr swallows what it is given,
since a message that nobody can read needs no error of its own.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys

TYPE_CHECKING = False  # typing itself costs more than --help does
if TYPE_CHECKING:
    from typing import TextIO

_MODES = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)


def occupy_closed() -> None:
    """Opens /dev/null on those of the descriptors 0 to 2 that are closed; before anything else is opened."""
    for fd, mode in enumerate(_MODES):
        try:
            os.fstat(fd)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            null = os.open(os.devnull, mode)  # the lowest free number, which is `fd`
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
    if sys.stderr is None:  # as Python has it for a stream that was closed when it started
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as we do


class _Watched(io.FileIO):
    """Remembers that it could not be written: buffers above may have lost what they were given since."""

    error: OSError | None = None

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


def watch_stdout() -> None:
    """Makes stdout one whose `failure` is known, and which takes any character: one that the encoding lacks,
    or half of one in the name of a file, is written as its escape.
    """
    given = sys.stdout
    raw = _Watched(1, "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8" if given is None else given.encoding,
        errors="backslashreplace",
        line_buffering=raw.isatty(),
        write_through=isinstance(given, io.TextIOWrapper) and given.write_through,
    )


def complain(text: str) -> None:
    """A line for people on stderr; one that cannot be written is no reason to fail."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        mute(sys.stderr)


def failure(stream: TextIO) -> OSError | None:
    """What keeps `stream` from being written, after writing out what it still holds."""
    try:
        stream.flush()
    except OSError as error:
        return error
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.error if isinstance(raw, _Watched) else None


def mute(stream: TextIO) -> None:
    """Keeps the interpreter from failing again at exit, when it flushes a stream that cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()
