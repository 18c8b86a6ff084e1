"""Incremental HTTP/1.1 response parser (RFC 9112) without I/O: the one that the reactor runs, bound for
tests and for embedding. What is refused, and why, is at the head of csrc/http1.h."""

from typing import Literal, NamedTuple, final

class Head(NamedTuple):
    """What a response head says. Texts are the bytes on the wire, truncated to what the engine keeps."""

    status: int
    #: HTTP/1.minor
    minor: int
    #: at most 63 bytes
    reason: bytes
    #: bytes; None if not stated
    content_length: int | None
    chunked: bool
    #: the connection may carry another request (RFC 9112, 9.3)
    keep_alive: bool
    #: a Content-Encoding other than identity
    encoded: bool
    #: lower case, without parameters, at most 95 bytes
    content_type: bytes
    #: at most 255 bytes
    location: bytes

Step = (
    tuple[Literal["head"], Head]
    | tuple[Literal["body"], bytes]
    | tuple[Literal["end"], int]
    | tuple[Literal["fail"], str]
)

@final
class HttpParser:
    """One connection's parser: one message at a time, `reset` between two. Not thread-safe."""

    def __new__(cls) -> HttpParser: ...
    def feed(self, data: bytes) -> list[Step]:
        """What `data` adds: ("head", Head), ("body", bytes without framing), ("end", bytes of `data` that
        were left behind the message), ("fail", what is wrong with the response). Responses with a status
        below 200 are skipped. After "end" and "fail" nothing more is read until `reset`."""

    def eof(self) -> Step:
        """The peer closed: ("end", 0) where that ends the body or the message was complete, else "fail"."""

    def reset(self) -> None:
        """Forgets everything; ready for the next response."""

    @property
    def idle(self) -> bool:
        """No byte of a response has been read."""

    @property
    def keep_alive(self) -> bool:
        """Valid from the head on; False again once the response has failed."""

def bench(head: bytes, body: bytes, n: int) -> int:
    """Parses `head`, then `body` (whole chunks) `n` times in one loop without the GIL;
    the time taken, in ns."""
