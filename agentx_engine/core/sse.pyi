"""Incremental parser of server-sent events (WHATWG HTML, 9.2.6) without I/O: the one that the reactor
runs, bound for tests and for embedding."""

from typing import NamedTuple, final

class Event(NamedTuple):
    #: the `event` field, empty if there was none, at most 63 bytes
    name: bytes
    #: the `data` lines, joined with LF
    data: bytes

@final
class SseParser:
    """One stream's parser. Not thread-safe. `max_event` bounds the data of one event, in bytes."""

    def __new__(cls, max_event: int = 16_777_216) -> SseParser: ...
    def feed(self, data: bytes) -> list[Event]:
        """The events that end in `data`. Once an event is too large, no more come until `reset`.
        MemoryError if the buffer cannot grow."""

    def feed_each(self, data: bytes, piece: int) -> list[Event]:
        """As feeding `data` in pieces of `piece` bytes one after the other, in one loop without the GIL.
        ValueError if `piece` is below 1."""

    def eof(self) -> list[Event]:
        """The stream ended: at most one event, whose blank line did not come."""

    def reset(self) -> None:
        """Ready for another stream; the buffer is kept."""

    @property
    def too_large(self) -> bool:
        """The last `feed` met an event longer than `max_event`."""

    @property
    def events(self) -> int:
        """Events so far."""

    @property
    def borrowed(self) -> int:
        """Events of `feed` so far that lay whole in the fed bytes and were not copied by the parser."""

    @property
    def comments(self) -> int:
        """Comment lines so far."""

    @property
    def capacity(self) -> int:
        """Bytes of the buffer for events that come in pieces; 0 until there was one."""

def bench(data: bytes, n: int) -> int:
    """Feeds `data` (whole events) `n` times in one loop without the GIL; the time taken, in ns."""
