"""The word pool against one tokenizer: checked, and rebuilt from its vocabulary where words fail.

Prompts are counted without a tokenizer, because every word of the pool, with its space, is one token. The
pool that ships was checked for the common vocabularies. `--tokenizer` checks it for the one that the server
uses, and replaces the words which that vocabulary lacks, in their place, by words of its own.

What is checked, always by encoding and never by reading the vocabulary:

* a word with a space in front of it is one token, at the start of a text and after a line break, in which
  the headers of many templates end;
* a first word is one token also without the space, in both places, since many templates trim;
* the token is the word's own: where unknown words share one token, prompts would be counted rightly and be
  all the same;
* in sequences, each word is that same token: no token reaches over a space. That holds for *all* sequences
  if the tokenizer splits text into words before it looks for tokens, or if no entry of its vocabulary has
  a space behind a letter. Otherwise (vocabularies with tokens of several words) it is tried on sequences,
  and words that were not themselves in one of them are replaced.

Some tokenizers put a token of their own in front of a text that begins with a space. That is one for a text,
whatever its words, and belongs to the template's overhead.

The result depends on the tokenizer file and the shipped lists alone. The package `tokenizers` is optional
and is imported when a tokenizer is loaded.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import re
from collections import deque
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from agentx_engine.core.words import WordPool
from agentx_engine.errors import UserError
from agentx_engine.prompt.pool import read_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MIN_WORDS: Final = 2_048
MIN_FIRST: Final = 1_000
FILE: Final = "tokenizer.json"
# Where the files of other formats are found; none of them says how text is split and normalised.
OTHER_FILES: Final = ("tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model")

# Signs that stand for a space in vocabularies: byte-level, SentencePiece, and the space itself.
_SPACES: Final = "Ġ▁ "
_CANDIDATE: Final = re.compile(f"[{_SPACES}]?([a-z]{{3,7}})")
_SPANNING: Final = re.compile(f"[A-Za-z][{_SPACES}]")

_CHUNK: Final = 4_096  # candidates that are encoded at a time
_ROUNDS: Final = 4  # sequences tried where words are known to be independent
_ROUNDS_DEPENDENT: Final = 64  # and where they are not
_REPAIRS: Final = 8  # how often words may be replaced because of sequences


class Encoding(Protocol):
    """What the package `tokenizers` makes of a text."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def offsets(self) -> list[tuple[int, int]]: ...


class Tokenizer(Protocol):
    """The part of `tokenizers.Tokenizer` that is used here."""

    @property
    def normalizer(self) -> Any: ...
    @property
    def pre_tokenizer(self) -> Any: ...
    def encode(self, sequence: str, *, add_special_tokens: bool) -> Encoding: ...
    def decode(self, ids: list[int]) -> str: ...
    def encode_batch(self, input: list[str], *, add_special_tokens: bool) -> list[Encoding]: ...
    def get_vocab(self) -> dict[str, int]: ...
    def get_vocab_size(self) -> int: ...
    def no_padding(self) -> None: ...
    def no_truncation(self) -> None: ...


class PoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the shipped pool. Counts are words.

    tokenizer, sha256: the file and its digest. failed: words of the shipped list that are not one token with
    this tokenizer; replaced: how many of them another word stands for. first_*: the same of the first words.
    independent: no token reaches over two words, in any sequence; False: only tried. start_tokens: tokens
    that the tokenizer puts before a text which begins with a space. pool_sha256: identity of the two lists.
    """

    tokenizer: str
    sha256: str
    vocabulary: int
    words: int
    failed: int
    replaced: int
    first: int
    first_failed: int
    first_replaced: int
    independent: bool
    start_tokens: int
    pool_sha256: str

    def __str__(self) -> str:
        """A sentence for the user."""
        if not self.failed and not self.first_failed:
            done = f"all {self.words:,} words are one token each"
        else:
            done = (
                f"{self.failed:,} of {self.words:,} words are not one token and were replaced "
                f"(first words: {self.first_failed:,} of {self.first + self._first_lost:,} failed, "
                f"{self.first:,} in use)"
            )
        tried = "" if self.independent else "; words that stand together were tried, not proved"
        return f"{self.tokenizer}: {done}{tried}"

    @property
    def _first_lost(self) -> int:
        return self.first_failed - self.first_replaced


class FittedPool(msgspec.Struct, frozen=True):
    """Words that are one token each with a tokenizer, and how they were found."""

    words: tuple[str, ...]
    first: tuple[str, ...]
    report: PoolReport

    def pool(self) -> WordPool:
        return WordPool(self.words, self.first)


def find_tokenizer(path: Path) -> Path:
    """The tokenizer.json that `path`, a folder or the file itself, stands for. UserError if there is none."""
    try:
        is_file, present = path.is_file(), path.exists()
        others = [name for name in OTHER_FILES if (path / name).is_file()]
        found = (path / FILE).is_file()
    except OSError as error:
        raise UserError(f"--tokenizer: {path} cannot be read: {error.strerror}") from error
    if not present:
        raise UserError(
            f"--tokenizer: {path} is not there. Give a local folder with a {FILE}, or that file; the engine "
            "downloads nothing."
        )
    if found:
        return path / FILE
    if is_file and path.suffix == ".json" and path.name not in OTHER_FILES:
        return path
    if is_file:
        raise UserError(f"--tokenizer: {path}: a {FILE} of the package tokenizers is expected. {_CONVERT}")
    if others:
        raise UserError(
            f"--tokenizer: {path} has no {FILE}, and {', '.join(others)} does not say enough. {_CONVERT}"
        )
    raise UserError(
        f"--tokenizer: {path} has no {FILE}. It lies beside the model's weights; fetch it from there."
    )


_CONVERT: Final = (
    "transformers writes it: AutoTokenizer.from_pretrained(MODEL, use_fast=True).save_pretrained(FOLDER)."
)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a folder or file, without truncation or padding.

    UserError: it is not there, is of another format, is broken, or the package `tokenizers` is not installed.
    """
    file = find_tokenizer(path)
    try:
        package = importlib.import_module("tokenizers")
    except ImportError as error:
        raise UserError(
            f"--tokenizer: the package tokenizers cannot be imported ({error}). "
            "Install it: pip install 'agentx-engine[tokenizer]'. Without --tokenizer it is not needed."
        ) from error
    try:
        tokenizer: Tokenizer = package.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises nothing more special
        raise UserError(f"--tokenizer: {file} cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def fit_pool(
    path: str | Path,
    words: Sequence[str] | None = None,
    first: Sequence[str] | None = None,
    *,
    min_words: int = MIN_WORDS,
    min_first: int = MIN_FIRST,
) -> FittedPool:
    """A pool whose words are one token each with the tokenizer at `path`.

    `words` and `first` are the lists to start from, those that ship by default. What fails is replaced in its
    place, so that a pool changes as little as may be. UserError: as `load_tokenizer`, or the vocabulary has
    too few words.
    """
    path = Path(path)
    file = find_tokenizer(path)
    tokenizer = load_tokenizer(path)
    words = _shipped("words.txt") if words is None else words
    first = _shipped("words-first.txt") if first is None else first
    fit = _Fit(tokenizer, words, first)
    fit.settle()
    for kind, found, least in (("word", fit.words, min_words), ("first word", fit.first, min_first)):
        if len(found) < least:
            raise UserError(
                f"--tokenizer: {file}: {len(found):,} {kind}s were found that are one token; {least:,} are "
                "needed. Prompts of exactly counted tokens cannot be made from this vocabulary. Without "
                "--tokenizer they have as many words as were recorded tokens, whatever the server counts."
            )
    report = PoolReport(
        tokenizer=str(file),
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        vocabulary=tokenizer.get_vocab_size(),
        words=len(fit.words),
        failed=len(set(words) - set(fit.words)),
        replaced=len(set(fit.words) - set(words)),
        first=len(fit.first),
        first_failed=len(set(first) - set(fit.first)),
        first_replaced=len(set(fit.first) - set(first)),
        independent=fit.check.independent,
        start_tokens=fit.check.start_tokens,
        pool_sha256=hashlib.sha256("\n".join([*fit.words, "", *fit.first]).encode()).hexdigest(),
    )
    return FittedPool(tuple(fit.words), tuple(fit.first), report)


def _shipped(name: str) -> Sequence[str]:
    with resources.as_file(resources.files("agentx_engine") / "data" / name) as path:
        return read_words(path)


class _Check:
    """Questions about words, answered by encoding them."""

    def __init__(self, tokenizer: Tokenizer, sample: Sequence[str]) -> None:
        """`sample`: words by which to see how text is split."""
        self._tokenizer = tokenizer
        self._tokens: dict[str, int] = {}  # of words that are one token with their space
        self._break = len(tokenizer.encode("\n", add_special_tokens=False).ids)
        self._start_tokens: int | None = None
        self.independent = self._splits(sample) or not any(map(_SPANNING.search, tokenizer.get_vocab()))

    @property
    def start_tokens(self) -> int:
        """Tokens in front of a text that begins with a space."""
        return self._start_tokens or 0

    def spaced(self, words: Sequence[str]) -> set[str]:
        """Those that are one token with a space in front of them."""
        own = self._own(words, [f"\n {word}" for word in words], 1 + self._break)
        alone = self._encode([f" {word}" for word in words])
        if self._start_tokens is None and own:
            self._start_tokens = min(len(a) for w, a in zip(words, alone, strict=True) if w in own) - 1
        good = {
            word: own[word]
            for word, ids in zip(words, alone, strict=True)
            if word in own and len(ids) == 1 + self.start_tokens and ids[-1] == own[word]
        }
        self._tokens |= good
        return set(good)

    def bare(self, words: Sequence[str]) -> set[str]:
        """Those that are one token without a space."""
        alone = self._own(words, list(words), 1)
        behind = self._own(words, [f"\n{word}" for word in words], 1 + self._break)
        return set(alone) & set(behind)

    def _own(self, words: Sequence[str], texts: list[str], count: int) -> dict[str, int]:
        """The last token of each text, where the text has `count` tokens and that last one says the word."""
        last = (
            (word, ids[-1]) for word, ids in zip(words, self._encode(texts), strict=True) if len(ids) == count
        )
        return {word: token for word, token in last if self._tokenizer.decode([token]).strip() == word}

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return [e.ids for e in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def _splits(self, words: Sequence[str]) -> bool:
        """Whether the tokenizer takes text apart into words before it looks for tokens."""
        tokenizer = self._tokenizer
        if tokenizer.pre_tokenizer is None:
            return False
        text = "".join(f" {word}" for word in words)
        if tokenizer.normalizer is not None:
            text = tokenizer.normalizer.normalize_str(text)
        pieces = [piece.lstrip(_SPACES) for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        return [piece for piece in pieces if piece] == list(words)

    def strays(self, words: Sequence[str]) -> set[str]:
        """Words, each of them `spaced`, that are not their own token in one of the sequences tried."""
        rng, order = random.Random(0), list(words)
        found: set[str] = set()
        for _ in range(_ROUNDS if self.independent else _ROUNDS_DEPENDENT):
            rng.shuffle(order)
            text = "".join(f" {word}" for word in order)
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            if encoding.ids[self.start_tokens :] != [self._tokens[word] for word in order]:
                found |= self._misplaced(order, encoding)
        return found

    def _misplaced(self, order: Sequence[str], encoding: Encoding) -> set[str]:
        """The words of a sequence that are not exactly their own token."""
        word_at = [k for k, word in enumerate(order) for _ in range(len(word) + 1)]
        tokens: list[list[int]] = [[] for _ in order]
        shared: set[int] = set()
        pairs = list(zip(encoding.ids, encoding.offsets, strict=True))[self.start_tokens :]
        for token, (start, end) in pairs:
            covered = sorted(set(word_at[start:end]))
            for k in covered:
                tokens[k].append(token)
            if len(covered) > 1:
                shared.update(covered)
        return {word for k, word in enumerate(order) if k in shared or tokens[k] != [self._tokens[word]]}


class _Fit:
    """Replaces what fails until nothing does, or the vocabulary is used up."""

    def __init__(self, tokenizer: Tokenizer, words: Sequence[str], first: Sequence[str]) -> None:
        self.check = _Check(tokenizer, words)
        self.words = list(words)
        self.first = list(first)
        self._candidates = _candidates(tokenizer)
        self._tried = (frozenset(words), frozenset(first))
        self._spare_words: deque[str] = deque()
        self._spare_first: deque[str] = deque()

    def settle(self) -> None:
        good = self.check.spaced(self._in_use())
        self._repair(self.words, good, self._spare_words)
        self._repair(self.first, good & self.check.bare(self.first), self._spare_first)
        repairs = 0
        while strays := self.check.strays(self._in_use()):
            repairs += 1
            for words, spare in ((self.words, self._spare_words), (self.first, self._spare_first)):
                self._repair(words, set(words) - strays, spare if repairs <= _REPAIRS else None)

    def _in_use(self) -> list[str]:
        return list(dict.fromkeys([*self.words, *self.first]))

    def _repair(self, words: list[str], good: set[str], spare: deque[str] | None) -> None:
        """Puts a spare word in the place of each that is not good; drops it where there is none."""
        holes = [k for k, word in enumerate(words) if word not in good]
        if spare is not None:
            while len(spare) < len(holes) and self._restock():
                pass
        for k in holes:
            words[k] = spare.popleft() if spare else ""
        words[:] = filter(None, words)

    def _restock(self) -> bool:
        """Tries more words of the vocabulary; False if there are no more."""
        chunk = next(self._candidates, None)
        if chunk is None:
            return False
        spaced, bare = self.check.spaced(chunk), self.check.bare(chunk)
        words, first = self._tried
        self._spare_words += [w for w in chunk if w in spaced and w not in words]
        self._spare_first += [w for w in chunk if w in spaced and w in bare and w not in first]
        return True


def _candidates(tokenizer: Tokenizer) -> Iterator[list[str]]:
    """Words of the vocabulary in chunks, those with small ids first; ids mostly follow frequency."""
    matches = ((token, _CANDIDATE.fullmatch(entry)) for entry, token in tokenizer.get_vocab().items())
    found = sorted((token, match[1]) for token, match in matches if match is not None)
    words = list(dict.fromkeys(word for _, word in found))
    for at in range(0, len(words), _CHUNK):
        yield words[at : at + _CHUNK]
