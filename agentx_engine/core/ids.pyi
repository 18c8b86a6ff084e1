"""Lists of block hash ids: from the JSON bytes of a trace file to int32 arrays."""

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

class IdsError(ValueError):
    """A list of ids is not `[integer, ...]` with integers in 0 .. 2^31-1."""

    reason: str
    offset: int
    """Byte at fault, counted from the start of what was parsed."""

    def __init__(self, reason: str, offset: int) -> None: ...

def parse_ids(raw: Buffer) -> NDArray[np.int32]:
    """Ids of a JSON list, from bytes, memoryview, `msgspec.Raw` or any other contiguous buffer.

    IdsError for anything but a list of integers in 0 .. 2^31-1; white space is allowed.
    """

def common_prefix(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """Number of leading ids that both lists share. ValueError for arrays that are not contiguous int32."""
