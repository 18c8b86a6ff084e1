"""The words that prompts are made of.

Every word of `data/words.txt`, with a space in front of it, is one token in each tokenizer that the list
was checked for (o200k, cl100k, p50k, DeepSeek, the older Claude tokenizer), alone and in any sequence. The
words of `data/words-first.txt` are one token without the space too, for the start of a message, where
many chat templates trim. So n words are n tokens, and prompts are counted without a tokenizer.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from agentx_engine.core.words import WordPool
from agentx_engine.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_WORD = 7  # bytes: a word and its space fill one 8-byte slot of csrc/words


@cache
def default_pool() -> WordPool:
    """The pool that ships with the engine."""
    data = resources.files("agentx_engine") / "data"
    with resources.as_file(data / "words.txt") as words, resources.as_file(data / "words-first.txt") as first:
        return load_pool(words, first)


def load_pool(words: Path, first: Path) -> WordPool:
    """A pool from two files of one word per line.

    A word has 1 to 7 ASCII letters, so that it needs no escaping in JSON. UserError names the file and
    line of a word that does not, or that stands there twice.
    """
    return WordPool(read_words(words), read_words(first))


def read_words(path: Path) -> Sequence[str]:
    """The words of one file, in file order. UserError as for `load_pool`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the word list cannot be read: {error}") from error
    seen: dict[str, int] = {}
    for number, word in enumerate(lines, 1):
        if not (1 <= len(word) <= MAX_WORD and word.isascii() and word.isalpha()):
            raise UserError(f"{path}, line {number}: {word!r} is not a word of 1 to {MAX_WORD} ASCII letters")
        if word in seen:
            raise UserError(f"{path}, line {number}: {word!r} stands already in line {seen[word]}")
        seen[word] = number
    if not seen:
        raise UserError(f"{path}: the word list is empty; one word per line is expected")
    return lines
