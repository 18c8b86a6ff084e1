"""Scanner of one stream event of an OpenAI-compatible chat completion: what is in it, without building
anything. The definition of each flag is csrc/chunk.h."""

import enum
from typing import NamedTuple, final

class Flag(enum.IntFlag):
    TEXT = 1
    REASONING = 2
    TOOL = 4
    FINISH = 8
    USAGE = 16
    ERROR = 32
    DONE = 64
    MALFORMED = 128

class Finish(enum.IntEnum):
    NONE = 0
    STOP = 1
    LENGTH = 2
    TOOL_CALLS = 3
    CONTENT_FILTER = 4
    OTHER = 5

#: Levels of nesting that are read; a deeper event is MALFORMED.
MAX_DEPTH: int

class Chunk(NamedTuple):
    """What one event says. Counts are tokens; None = absent, null, negative or not an integer."""

    flags: Flag
    finish: Finish
    prompt: int | None
    completion: int | None
    cached: int | None
    reasoning: int | None
    #: raw JSON text, escapes not undone; the whole event where an error has no message
    error_message: bytes
    #: error.type, else error.code where that is a string
    error_type: bytes
    error_code: int | None
    #: the metronome's own keys: nanoseconds, and a counter
    sent_ns: int | None
    seq: int | None

def scan_chunk(data: bytes, event_name: bytes = b"") -> Chunk:
    """Scans the data of one event, whose `event` field was `event_name`."""

@final
class ChunkScanner:
    """Scans the events of one stream: as `scan_chunk`, faster where events are alike. Not thread-safe."""

    def __new__(cls) -> ChunkScanner: ...
    def scan(self, data: bytes, event_name: bytes = b"") -> Chunk: ...
    @property
    def recalled(self) -> int:
        """Events so far that needed no scan of their own."""

def masks(data: bytes, at: int) -> tuple[int, int, int, int, int]:
    """For tests of the byte searches. Bit i of each mask stands for data[at + i], 64 at most: where a JSON
    string may end (vectors, words), line ends (vectors, words); last, the position of the first line end
    from `at` on. IndexError if `at` is outside."""

def bench(data: bytes, n: int) -> int:
    """Scans `data` `n` times in one loop without the GIL; the time taken, in ns."""

def bench_next(events: list[bytes], n: int) -> int:
    """Scans `n` events, `events` (at most 64) in turn, as one stream; the time taken, in ns."""

def bench_memscan(data: bytes, n: int) -> int:
    """The least that any parser does, `n` times: memmem for `data: `, memchr for the line end behind it.
    The time taken, in ns."""
