"""Immutable lists of byte segments: request bodies that are sent without being joined."""

from collections.abc import Iterable
from typing import Self, final

@final
class Rope:
    """Segments in order; keeps them alive. Empty segments are dropped.

    Its length is in bytes. TypeError for a segment that is not bytes.
    """

    def __new__(cls, segments: Iterable[bytes] = ()) -> Self: ...
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes:
        """The joined segments, a copy."""

    @property
    def segments(self) -> tuple[bytes, ...]: ...
    def windows(self, max_iov: int = 128, max_bytes: int = 262144, step: int = 0) -> list[list[bytes]]:
        """What a sender sees: the vectors of each write, at most `max_iov` and `max_bytes` per write.

        Each write takes all that it is offered, or only `step` bytes where step > 0. For tests.
        ValueError for max_iov outside 1 to 1024 or max_bytes < 1.
        """

@final
class RopeBuilder:
    """A growing list of segments that can be cut back and frozen into ropes.

    Its length is the number of segments (empty ones are not stored).
    """

    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Sum of the segments' lengths."""

    def append(self, segment: bytes) -> None: ...
    def truncate(self, segments: int) -> None:
        """Keeps the first `segments` segments."""

    def snapshot(self, prefix: bytes = b"", suffix: bytes = b"") -> Rope:
        """A rope of prefix, the segments as they are now, and suffix.

        Linear in the number of segments, without work in Python per segment.
        """
