"""Server-sent events after the letter of WHATWG HTML 9.2.6, slow and plain, to hold the C parser against.

Two deviations, the same as the engine's: the end of the stream delivers an event that has a `data` field
(a field whose colon arrived, or a line that ended), and an event name keeps its first 63 bytes.
"""

from __future__ import annotations

import re

#: A line and its end; the last line may have none.
LINE = re.compile(rb"([^\r\n]*)(\r\n|\r|\n|\Z)", re.DOTALL)


def parse(stream: bytes, *, at_end: bool = True) -> tuple[list[tuple[bytes, bytes]], int]:
    """All (name, data) of a whole stream, and the number of comment lines."""
    events: list[tuple[bytes, bytes]] = []
    comments = 0
    name = b""
    data: list[bytes] = []
    at = 3 if stream.startswith(b"\xef\xbb\xbf") else 0
    while at < len(stream):
        match = LINE.match(stream, at)
        assert match
        line, end = match.groups()
        at = match.end()
        if not line:
            if data:
                events.append((name[:63], b"\n".join(data)))
            name, data = b"", []
            continue
        if line.startswith(b":"):
            comments += 1
            continue
        field, colon, value = line.partition(b":")
        if not end and not colon:
            break  # cut off inside a field name
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    if at_end and data:
        events.append((name[:63], b"\n".join(data)))
    return events, comments
