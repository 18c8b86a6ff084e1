"""Corpora: time to find the traces, to decode them, and to look into all of them.

Run: python benches/bench_corpus.py [--traces FOLDER] [--mb 512] [--copies 15]

Each figure is the best of a few rounds, page cache warm, with its ratio to a reference of the same run:
reading the same bytes and looking for line ends (scan), msgspec on the whole text (decode), reading the bytes
(validate). `--traces` names a folder of recorded traces; without it a synthetic one stands in. The large file
is synthetic, of long sessions. All files are made in a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from agentx_engine.corpus import Corpus, open_corpus
from agentx_engine.corpus.decode import _DECODER, decode_trace
from agentx_engine.corpus.inspect import inspect_corpus
from agentx_engine.corpus.shape import SMALL, Growth, LogNormal, Shape, Window
from agentx_engine.corpus.synth import SynthCounts, sessions_json, synthesize

# Long sessions with large prompts: id lists of thousands, as in recorded corpora. A load for the loader only.
LONG = SMALL._replace(
    turns=LogNormal(65, 1.0, 3, 1500),
    windows=(Window(1.0, 1_000_000, 0.83, 0.97),),
    prefix=LogNormal(18_000, 0.2),
    fresh=LogNormal(30_000, 0.25),
    resumed=LogNormal(110_000, 0.7, 20_000, 800_000),
    growth=Growth(1_700, 1.3, 0.44),
    early_factor=3.2,
    compacted=LogNormal(53_000, 0.5),
    p_clear=0.003,
    p_rebuild=0.0005,
    out=LogNormal(616, 1.3, 1, 16_000),
    groups=LogNormal(4, 1.0, 1, 60),
    child_turns=LogNormal(16, 0.9, 2, 200),
    child_first=LogNormal(28_000, 0.35),
    child_growth=Growth(1_700, 0.7, 0.37),
    child_window=200_000,
)


def best(rounds: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def write_large(path: Path, shape: Shape, size: int) -> int:
    """Sessions until the file has `size` bytes: 128 MB of them, over and over under other ids."""
    counts = SynthCounts()
    lines: list[bytes] = []
    for line in sessions_json(shape, 2000, 1, counts):
        lines.append(line)
        if counts.bytes >= min(size, 128_000_000):
            break
    written = 0
    prefix = b'{"id":"'
    with path.open("wb") as out:
        for turn in itertools.count():
            for line in lines:
                written += out.write(prefix + b"%d-" % turn + line[len(prefix) :])
                if written >= size:
                    return len(lines)
    return 0


def copies(source: Path, folder: Path, times: int) -> None:
    """`times` copies of a folder of traces, each with an id of its own."""
    folder.mkdir()
    for file in sorted(source.glob("*.json")):
        data = file.read_bytes()
        for n in range(times):
            name = f"{file.stem}-{n:02d}"
            (folder / f"{name}.json").write_bytes(
                data.replace(f'"{file.stem}"'.encode(), f'"{name}"'.encode(), 1)
            )


def lines_to_files(lines: Path, folder: Path) -> None:
    folder.mkdir()
    for line in lines.read_bytes().splitlines():
        name = msgspec.json.decode(line, type=dict[str, msgspec.Raw])["id"]
        (folder / f"{msgspec.json.decode(name, type=str)}.json").write_bytes(line)


def read_and_count_lines(path: Path) -> int:
    found = 0
    buffer = memoryview(bytearray(1 << 22))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            found += bytes(buffer[:size]).count(b"\n")
    return found


def report(name: str, seconds: float, size: int, reference: float, what: str) -> None:
    print(f"{name:<44}{seconds:9.3f} s {size / seconds / 1e6:9.0f} MB/s {seconds / reference:7.2f} x {what}")


def bench_decode(corpus: Corpus, title: str) -> None:
    texts = [(p.stored.file.read_bytes()[p.offset : p.offset + p.length]) for p in corpus._places[:40]]
    size = sum(map(len, texts))
    requests = sum(
        len(getattr(e, "requests", None) or [e]) for i in range(len(texts)) for e in corpus.trace(i).requests
    )

    def ours() -> None:
        for text in texts:
            decode_trace(text, "x", lambda kind, words: None)

    def whole() -> None:
        for text in texts:
            _DECODER.decode(text)

    reference = best(5, whole)
    seconds = best(5, ours)
    report(f"decode {len(texts)} traces, {title}", seconds, size, reference, "msgspec on the whole text")
    print(f"{'':<44}{seconds / len(texts) * 1e3:9.2f} ms/trace {seconds / requests * 1e6:6.1f} us/request")


def bench_check(corpus: Corpus, title: str, whole_pass: float) -> None:
    seconds = best(1, corpus.check)
    report(f"decode all, {title}", seconds, corpus.bytes, whole_pass, "read and count lines")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, help="folder of recorded traces (one .json file each)")
    parser.add_argument("--mb", type=int, default=512, help="size of the synthetic .jsonl, MB")
    parser.add_argument("--copies", type=int, default=15, help="copies of the folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        work = Path(temporary)
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")
        source = options.traces
        if source is None:
            synthesize(26, 0, work / "few.jsonl", like=LONG)
            source = work / "few"
            lines_to_files(work / "few.jsonl", source)
        copies(source, work / "many", options.copies)
        many = open_corpus(work / "many")
        folder_bytes = many.bytes
        reading = best(3, lambda: [p.read_bytes() for p in (work / "many").iterdir()])
        report(
            f"open {len(many)} files",
            best(5, lambda: open_corpus(work / "many")),
            folder_bytes,
            reading,
            "read the bytes",
        )
        bench_decode(open_corpus(source), "recorded" if options.traces else "synthetic")
        bench_check(many, f"{len(many)} files", reading)

        if shutil.disk_usage(work).free < 2 * options.mb * 1_000_000:
            sys.exit(f"not enough room in {work} for a file of {options.mb} MB")
        large = work / "large.jsonl"
        start = time.perf_counter()
        different = write_large(large, LONG, options.mb * 1_000_000)
        print(f"{f'make it of {different} different sessions':<44}{time.perf_counter() - start:9.3f} s")
        reference = best(2, lambda: read_and_count_lines(large))
        corpus = open_corpus(large)
        report(
            f"open {len(corpus)} lines, {corpus.bytes / 1e6:,.0f} MB",
            best(3, lambda: open_corpus(large)),
            corpus.bytes,
            reference,
            "read and count lines",
        )
        print(
            f"{'peak memory so far':<44}{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:9.0f} MB"
        )
        bench_decode(corpus, "synthetic")
        bench_check(corpus, f"{len(corpus)} lines", reference)
        report(
            "inspect",
            best(1, lambda: inspect_corpus(corpus)),
            corpus.bytes,
            reference,
            "read and count lines",
        )
        report("digest", best(1, lambda: corpus.digest), corpus.bytes, reference, "read and count lines")
        report("digest, remembered", best(1, lambda: open_corpus(large).digest), corpus.bytes, reference, "")


if __name__ == "__main__":
    main()
