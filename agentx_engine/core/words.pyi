"""Prompt text of exactly counted words from a counter-based generator. The same bytes everywhere."""

from collections.abc import Sequence
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

@final
class WordPool:
    """Two lists of words, of 1 to 7 bytes each: `first` for the first word of a run, `words` for the rest.

    ValueError where a list is empty or a word has another length. Runs of 4,096 words and more are
    made with the GIL released.
    """

    def __new__(cls, words: Sequence[str], first: Sequence[str]) -> Self: ...
    def fill(self, key: int, n: int) -> bytes:
        """The first n words of the run `key`, each with a space in front of it."""

    def blocks(self, seed: int, scope: int, ids: NDArray[np.int32], block_size: int) -> bytes:
        """The joined texts of blocks: for each id, `block_size` words of run `words_key(seed, scope, id)`."""

def words_key(seed: int, scope: int, id: int) -> int:
    """Key of a run, from three unsigned 64-bit numbers; each of them matters in every bit."""
