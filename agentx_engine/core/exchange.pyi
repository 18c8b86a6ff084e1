from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentx_engine.core.hdr import Histogram
from agentx_engine.core.rope import Rope

class Exchange:
    """One request and its response.

    `head` is the request line and the header fields with the empty line, `body` what follows. An
    exchange is used once. Between `Reactor.submit` and its return from `Reactor.pop` it belongs to the
    reactor's thread: everything but `tag` raises RuntimeError then.

    All times are CLOCK_MONOTONIC ns; None = absent. The meaning of each stamp is in docs/metrics.md.
    """

    head: bytes
    body: Rope | None
    tag: Any
    """For the owner."""

    def __init__(
        self,
        head: bytes,
        body: Rope | None = None,
        *,
        due_ns: int = 0,
        max_tokens: int = 0,
        session: int = 0,
        endpoint: int = 0,
        reactive: bool = False,
        keep_user_ns: bool = False,
        keep_sent_ns: bool = False,
        tag: object = None,
    ) -> None: ...
    def feed(
        self,
        data: bytes | bytearray | memoryview,
        stamp_ns: int,
        *,
        since_ns: int | None = None,
        user_ns: int | None = None,
        kernel: bool = True,
        cut: bool = False,
    ) -> tuple[Literal["more", "end", "fail"], int]:
        """Feeds the bytes of one read; returns the state and how many bytes belonged to the response.

        `stamp_ns` is the arrival of the newest byte, `since_ns` a time before which none of them arrived.
        `cut`: more was there than the read could take, so that `stamp_ns` may be that of later bytes.
        """

    def closed(self, error: int = 0) -> None:
        """The peer closed (0) or the socket failed (an errno)."""

    def finish(self, now_ns: int) -> None:
        """Judges what arrived: sets `outcome`."""

    def feed_repeatedly(self, data: bytes | bytearray | memoryview, times: int, histogram: Histogram) -> int:
        """Bench: feeds the same bytes as `times` reads, each with a clock read and a histogram record,
        without the GIL. Returns the ns taken. Stops early where the response ends."""

    @property
    def outcome(self) -> str: ...
    @property
    def stamps(self) -> tuple[int | None, ...]:
        """due, armed, conn_ready, first_sent, last_sent, ack, first_event, first_content, first_text,
        last_content, last_event, end."""

    @property
    def usage(self) -> tuple[int | None, int | None, int | None, int | None] | None:
        """prompt, completion, cached, reasoning tokens of the last non-empty usage; None without one."""

    @property
    def status(self) -> int | None: ...
    @property
    def content_type(self) -> str: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def error(self) -> str | None:
        """What went wrong, in the server's or the kernel's words, at most 4 KiB of them."""

    @property
    def error_type(self) -> str | None:
        """The server's error type or code, else the errno's name."""

    @property
    def closing(self) -> Literal["framed", "fin", "reset", "ours"]: ...
    @property
    def connect_ns(self) -> int | None: ...
    @property
    def flags(self) -> tuple[bool, bool, bool, int]:
        """reused, drained, kernel_stamps, reconnects."""

    @property
    def counts(self) -> tuple[int, int, int, int, int, int]:
        """reads, events, content_events, coalesced_events, bytes_in, bytes_out."""

    @property
    def token_ns(self) -> NDArray[np.int64]:
        """Stamp of each content event, a copy."""

    @property
    def token_slack_ns(self) -> NDArray[np.uint32]:
        """For each content event 0 (exact) or the width of the interval in which it arrived."""

    @property
    def token_user_ns(self) -> NDArray[np.int64] | None:
        """User-space time of each content event, with keep_user_ns."""

    @property
    def token_sent_ns(self) -> NDArray[np.int64] | None:
        """The metronome's send stamp of each content event (-1 = none), with keep_sent_ns."""
