"""Synthetic corpora: what the command line offers where no recorded corpus is at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentx_engine.corpus.sessions import Agent, Call, SessionWriter, plans
from agentx_engine.corpus.shape import PRESETS, Shape
from agentx_engine.corpus.unpack import cache_folder, replace_file
from agentx_engine.errors import CorpusError

MAX_SESSIONS = 1_000_000  # their plans are drawn together, in memory
MAX_SEED = 2**64 - 1


class SynthCounts(msgspec.Struct):
    """What was written."""

    sessions: int = 0
    requests: int = 0
    root_requests: int = 0
    subagents: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    bytes: int = 0


def sessions_json(shape: Shape, sessions: int, seed: int, counts: SynthCounts) -> Iterator[bytes]:
    """The lines of the corpus, one session each; adds to `counts` as it goes."""
    encode = msgspec.json.Encoder().encode
    for index, plan in enumerate(plans(shape, sessions, seed)):
        session = SessionWriter(shape, seed, index, plan).write()
        line = encode(session) + b"\n"
        agents = [e for e in session.requests if isinstance(e, Agent)]
        root = [e for e in session.requests if isinstance(e, Call)]
        calls = [*root, *(c for a in agents for c in a.requests)]
        counts.sessions += 1
        counts.requests += len(calls)
        counts.root_requests += len(root)
        counts.subagents += len(agents)
        counts.input_tokens += sum(c.in_tokens for c in calls)
        counts.output_tokens += sum(c.out for c in calls)
        counts.bytes += len(line)
        yield line


def synthesize(
    sessions: int | None = None,
    seed: int = 0,
    out: str | Path = "synthetic.jsonl",
    *,
    like: str | Shape = "small",
) -> SynthCounts:
    """Writes a synthetic corpus (.jsonl, a session per line) and returns what it holds.

    `sessions`: None takes the preset's number. `like`: a name in `shape.PRESETS`, or a Shape. The same
    arguments give the same bytes. The file appears when it is complete. Raises CorpusError: unknown preset,
    not a .jsonl name, cannot be written.
    """
    path = Path(out)
    shape = PRESETS.get(like) if isinstance(like, str) else like
    if shape is None:
        raise CorpusError(f"there is no preset {like!r}. Known: {', '.join(PRESETS)}.")
    number = shape.sessions if sessions is None else sessions
    if not 1 <= number <= MAX_SESSIONS:
        raise CorpusError(f"{number:,} sessions asked for. Ask for 1 to {MAX_SESSIONS:,}.")
    if not 0 <= seed <= MAX_SEED:
        raise CorpusError(f"the seed is {seed}. Seeds are whole numbers from 0 and below 2^64.")
    if path.suffix.lower() != ".jsonl":
        raise CorpusError(f"{path}: a corpus is written as JSON lines. Choose a name that ends in .jsonl.")
    counts = SynthCounts()
    try:
        replace_file(path, sessions_json(shape, number, seed, counts))
    except OSError as error:
        raise CorpusError(f"{path}: cannot be written: {error.strerror or error}.") from None
    return counts


def default_corpus(folder: str | Path | None = None) -> Path:
    """The path of the corpus that is used when none is named: the preset "small" with seed 0.

    Written to `folder` (default: the user's cache folder) unless it is there. Raises CorpusError.
    """
    counts = SynthCounts()
    lines = list(sessions_json(PRESETS["small"], PRESETS["small"].sessions, 0, counts))
    path = (cache_folder() if folder is None else Path(folder)) / "small-0.jsonl"
    try:
        # An engine that is reading the file must not see it change, so equal content is left alone.
        if not (path.is_file() and path.read_bytes() == b"".join(lines)):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, lines)
    except OSError as error:
        raise CorpusError(
            f"{path}: the built-in corpus cannot be written: {error.strerror or error}. Choose another "
            "folder with XDG_CACHE_HOME, or name a corpus."
        ) from None
    return path


def describe(counts: SynthCounts) -> str:
    """One line for people."""
    return (
        f"{counts.sessions:,} sessions, {counts.requests:,} requests ({counts.root_requests:,} root, "
        f"{counts.subagents:,} subagents), {counts.input_tokens:,} tokens in, {counts.output_tokens:,} out, "
        f"{counts.bytes / 1e6:,.1f} MB"
    )
