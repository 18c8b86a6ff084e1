"""Containers: which traces a path holds, in which order, and what is said where it holds none."""

from __future__ import annotations

import gzip
import hashlib
import os
import socket
from pathlib import Path

import pytest
import zstandard
from support.trace_files import dump, request, subagent, trace, write_lines

from agentx_engine.core.ids import parse_ids
from agentx_engine.corpus import digest as digest_module
from agentx_engine.corpus import open_corpus
from agentx_engine.corpus.unpack import cache_folder
from agentx_engine.errors import CorpusError


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    return base / "agentx-engine" / "corpus"


THREE = [trace("b"), trace("a", requests=[request(5.0, hash_ids=[4])]), trace("c")]
LINES = b"".join(dump(t) + b"\n" for t in THREE)


def error_of(path: Path | str) -> str:
    with pytest.raises(CorpusError) as error:
        open_corpus(path)
    assert str(path) in str(error.value)
    return str(error.value)


def check_three(path: Path) -> None:
    corpus = open_corpus(path)
    assert corpus.ids == ("b", "a", "c")
    assert len(corpus) == 3
    assert [corpus.trace(i).id for i in range(3)] == ["b", "a", "c"]
    assert parse_ids(corpus.trace(1).requests[0].hash_ids).tolist() == [4]
    assert corpus.trace(1).source == f"{path} line 2"
    assert corpus.digest == "sha256:" + hashlib.sha256(LINES).hexdigest()


def test_lines(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(LINES)
    check_three(path)


@pytest.mark.parametrize("content", [LINES[:-1], LINES.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + LINES])
def test_line_ends_and_byte_order_marks(tmp_path: Path, content: bytes):
    path = tmp_path / "x.JSONL"
    path.write_bytes(content)
    corpus = open_corpus(path)
    assert [corpus.trace(i).id for i in range(3)] == ["b", "a", "c"]


def test_blank_lines_are_skipped_but_counted(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n  \r\n" + dump(THREE[0]) + b"\n\n" + dump(THREE[1]))
    corpus = open_corpus(path)
    assert [corpus.trace(i).source for i in range(2)] == [f"{path} line 3", f"{path} line 5"]


def test_lines_across_scan_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agentx_engine.corpus.containers._SCAN_BYTES", 4096)
    path = write_lines(
        tmp_path / "x.jsonl", [trace(f"t{i}", requests=[request()] * (i % 60)) for i in range(80)]
    )
    corpus = open_corpus(path)
    assert corpus.ids == tuple(f"t{i}" for i in range(80))
    assert [len(corpus.trace(i).requests) for i in range(80)] == [i % 60 for i in range(80)]


def test_one_trace(tmp_path: Path):
    path = tmp_path / "x.json"
    path.write_bytes(b"\xef\xbb\xbf" + dump(THREE[0]))
    corpus = open_corpus(str(path))
    assert (corpus.ids, corpus.trace(0).source, corpus.path) == (("b",), str(path), path)


def test_a_folder_in_name_order(tmp_path: Path):
    (tmp_path / "b.json").write_bytes(dump(THREE[0]))
    (tmp_path / "a.json").write_bytes(dump(THREE[1]))
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(dump(THREE[2])))
    (tmp_path / "STATS.json.txt").write_text("no trace")
    (tmp_path / "._a.json").write_text("no trace")
    (tmp_path / "d.json").mkdir()
    corpus = open_corpus(tmp_path)
    assert corpus.ids == ("a", "b", "c")
    assert [corpus.trace(i).id for i in range(3)] == ["a", "b", "c"]
    names = [("a.json", THREE[1]), ("b.json", THREE[0]), ("c.json", THREE[2])]
    listing = "".join(f"{hashlib.sha256(dump(t)).hexdigest()}  {name}\n" for name, t in names)
    assert corpus.digest == "sha256:" + hashlib.sha256(listing.encode()).hexdigest()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("zst", zstd)])
class TestCompressed:
    def test_read_like_plain_and_unpacked_once(self, tmp_path: Path, cache: Path, ending, pack):
        path = tmp_path / f"x.jsonl.{ending}"
        path.write_bytes(pack(LINES))
        check_three(path)
        (copy,) = cache.iterdir()
        before = copy.stat().st_mtime_ns, copy.stat().st_ino
        moved = path.rename(tmp_path / f"y.jsonl.{ending}")
        moved.touch()
        os.link(moved, path)
        check_three(path)
        assert (copy.stat().st_mtime_ns, copy.stat().st_ino) == before
        assert copy.read_bytes() == LINES

    def test_changed_content_is_unpacked_again(self, tmp_path: Path, ending, pack):
        path = tmp_path / f"x.jsonl.{ending}"
        path.write_bytes(pack(dump(trace("one"))))
        stamp = path.stat().st_mtime_ns
        assert open_corpus(path).ids == ("one",)
        path.write_bytes(pack(dump(trace("two"))))
        os.utime(path, ns=(stamp, stamp))
        assert open_corpus(path).ids == ("two",)

    def test_several_members(self, tmp_path: Path, ending, pack):
        path = tmp_path / f"x.jsonl.{ending}"
        path.write_bytes(pack(LINES[:100]) + pack(b"") + pack(LINES[100:]))
        check_three(path)

    @pytest.mark.parametrize("left", [3, 20, 60, -9, -1])
    def test_truncated(self, tmp_path: Path, cache: Path, ending, pack, left: int):
        path = tmp_path / f"x.jsonl.{ending}"
        path.write_bytes(pack(LINES)[:left])
        assert "Fetch" in error_of(path)
        assert not cache.is_dir() or not list(cache.iterdir())

    def test_not_compressed_at_all(self, tmp_path: Path, cache: Path, ending, pack):
        path = tmp_path / f"x.jsonl.{ending}"
        path.write_bytes(LINES)
        assert f"not intact .{ending} data" in error_of(path)
        assert not list(cache.iterdir())

    def test_nothing_inside(self, tmp_path: Path, ending, pack):
        path = tmp_path / f"x.json.{ending}"
        path.write_bytes(pack(b""))
        assert "empty" in error_of(path)

    def test_no_place_for_the_copy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending, pack):
        (tmp_path / "file").write_text("not a folder")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        path = tmp_path / f"x.jsonl.{ending}"
        path.write_bytes(pack(LINES))
        assert "XDG_CACHE_HOME" in error_of(path)

    def test_plain_content_has_the_same_digest(self, tmp_path: Path, ending, pack):
        (tmp_path / "x.jsonl").write_bytes(LINES)
        (tmp_path / f"x.jsonl.{ending}").write_bytes(pack(LINES))
        assert open_corpus(tmp_path / "x.jsonl").digest == open_corpus(tmp_path / f"x.jsonl.{ending}").digest


def test_zero_padding_after_gzip(tmp_path: Path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(LINES) + bytes(512))
    check_three(path)


def test_cache_folder_ignores_a_relative_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "agentx-engine" / "corpus"


def test_large_files_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(digest_module, "REMEMBER_FROM_BYTES", 1)
    path = tmp_path / "x.jsonl"
    path.write_bytes(LINES)
    first = open_corpus(path).digest
    hashed: list[str] = []
    real = hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda file, name: hashed.append(file.name) or real(file, name)
    )
    assert open_corpus(path).digest == first == "sha256:" + hashlib.sha256(LINES).hexdigest()
    assert hashed == []
    path.write_bytes(LINES.replace(b'"b"', b'"B"'))
    assert open_corpus(path).digest != first
    assert len(hashed) == 1


def test_duplicate_ids_name_both_places(tmp_path: Path):
    path = write_lines(tmp_path / "x.jsonl", [trace("a"), trace("b"), trace("a")])
    message = error_of(path)
    assert f"{path} line 3" in message
    assert f"{path} line 1" in message
    assert "'a'" in message


def test_ids_that_stand_last_are_found(tmp_path: Path):
    path = write_lines(tmp_path / "x.jsonl", [dict(reversed(t.items())) for t in THREE])
    assert open_corpus(path).ids == ("b", "a", "c")


class TestNothingUsable:
    def test_not_there(self, tmp_path: Path):
        assert "no such file" in error_of(tmp_path / "x.jsonl")
        assert "no such file" in error_of(tmp_path / "x")

    def test_a_name_that_no_file_can_have(self):
        with pytest.raises(CorpusError):
            open_corpus("a\0b.jsonl")
        with pytest.raises(CorpusError):
            open_corpus("x" * 5000 + ".jsonl")

    @pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
    def test_empty(self, tmp_path: Path, name: str):
        (tmp_path / name).touch()
        assert "empty" in error_of(tmp_path / name)

    def test_blank_lines_only(self, tmp_path: Path):
        (tmp_path / "x.jsonl").write_text("\n \n\n")
        assert "no trace" in error_of(tmp_path / "x.jsonl")

    def test_empty_folder(self, tmp_path: Path):
        assert "no .json file" in error_of(tmp_path)

    def test_folder_with_lines(self, tmp_path: Path):
        (tmp_path / "all.jsonl").write_bytes(LINES)
        assert "all.jsonl" in error_of(tmp_path)

    def test_unknown_ending(self, tmp_path: Path):
        (tmp_path / "x.parquet").write_bytes(b"PAR1")
        assert ".jsonl" in error_of(tmp_path / "x.parquet")

    def test_devices(self, tmp_path: Path):
        for path in ("/dev/null", "/dev/zero"):
            assert "not a regular file" in error_of(path)
        os.mkfifo(tmp_path / "x.jsonl")
        assert "not a regular file" in error_of(tmp_path / "x.jsonl")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "y.json"))
            assert "not a regular file" in error_of(tmp_path / "y.json")

    def test_a_device_in_a_folder(self, tmp_path: Path):
        (tmp_path / "a.json").write_bytes(dump(trace()))
        os.mkfifo(tmp_path / "b.json")
        with pytest.raises(CorpusError, match=r"b\.json: not a regular file"):
            open_corpus(tmp_path)

    def test_a_dangling_link(self, tmp_path: Path):
        (tmp_path / "a.json").symlink_to(tmp_path / "gone")
        with pytest.raises(CorpusError, match=r"a\.json"):
            open_corpus(tmp_path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
    def test_no_permission(self, tmp_path: Path):
        path = tmp_path / "x.jsonl"
        path.write_bytes(LINES)
        path.chmod(0)
        assert "Permission denied" in error_of(path)

    @pytest.mark.parametrize(
        ("content", "word"),
        [
            (b"hello\n", "not valid JSON"),
            (b'{"requests":[]}\n', "`id` is missing"),
            (b'{"id":""}\n', "id"),
            (dump(trace())[:-30], "in the middle"),
            (b'{\n  "id": "a",\n  "models": []\n}\n', "line 1"),
            (gzip.compress(LINES), "gzip"),
            (b"[]", "list"),
        ],
    )
    def test_no_trace_in_a_line(self, tmp_path: Path, content: bytes, word: str):
        path = tmp_path / "x.jsonl"
        path.write_bytes(content)
        try:
            corpus = open_corpus(path)
        except CorpusError as error:
            message = str(error)
        else:  # the id is readable: the rest is complained about when it is decoded
            with pytest.raises(CorpusError) as caught:
                corpus.check()
            message = str(caught.value)
        assert f"{path} line 1" in message
        assert word in message

    def test_many_traces_in_a_json_file(self, tmp_path: Path):
        path = tmp_path / "x.json"
        path.write_bytes(LINES)
        with pytest.raises(CorpusError, match="jsonl"):
            open_corpus(path).trace(0)


class TestCorpus:
    def test_a_file_that_changes_under_the_run(self, tmp_path: Path):
        path = write_lines(tmp_path / "x.jsonl", THREE)
        corpus = open_corpus(path)
        path.write_bytes(LINES[:200])
        for use in (lambda: corpus.trace(1), lambda: corpus.digest):
            with pytest.raises(CorpusError, match="changed since"):
                use()
        path.unlink()
        with pytest.raises(CorpusError, match=r"x\.jsonl"):
            corpus.trace(0)

    def test_warnings_come_once_and_are_counted_per_trace(self, tmp_path: Path):
        odd = [request(stop=None), request(stop=None)]
        path = write_lines(
            tmp_path / "x.jsonl",
            [trace("a", requests=odd), trace("b"), trace("c", requests=odd, extra=1)],
        )
        shown: list[str] = []
        corpus = open_corpus(path, on_warning=shown.append)
        assert (shown, corpus.warnings) == ([], {})
        for index in (0, 1, 2, 2, 0):
            corpus.trace(index)
        assert corpus.warnings == {"null:request.stop": 2, "unknown_key:trace.extra": 1}
        assert len(shown) == 2
        assert "line 1: trace 'a', request 0" in shown[0]
        assert "line 3: trace 'c'" in shown[1]

    def test_the_repaired_clock_is_said(self, tmp_path: Path):
        entry = subagent(80.0, [request(0.0)], duration_ms=60_000)
        path = write_lines(tmp_path / "x.jsonl", [trace("a", requests=[request(), entry])])
        shown: list[str] = []
        corpus = open_corpus(path, on_warning=shown.append)
        assert corpus.trace(0).requests[1].t == 20.0
        assert corpus.warnings == {"subagent_clock": 1}
        assert "--compat harness" in shown[0]
        assert open_corpus(path, compat_harness=True).trace(0).requests[1].t == 80.0

    def test_agent_ids_are_unique_in_a_trace(self, tmp_path: Path):
        twice = [request(), subagent(3.0), request(9.0), subagent(11.0)]
        path = write_lines(tmp_path / "x.jsonl", [trace("a", requests=twice)])
        with pytest.raises(CorpusError, match="request 3: agent_id 'agent_001' is used by request 1"):
            open_corpus(path).trace(0)

    def test_an_id_given_twice_in_one_object(self, tmp_path: Path):
        path = tmp_path / "x.jsonl"
        path.write_bytes(dump(trace("a"))[:-1] + b',"id":"b"}\n')
        with pytest.raises(CorpusError, match="two ids, 'a' and 'b'"):
            open_corpus(path).trace(0)

    def test_peak_tokens(self, tmp_path: Path):
        entries = [
            request(0.0, **{"in": 500}, out=0),
            subagent(3.0, [request(3.0, **{"in": 100}, out=450)]),
            request(9.0, **{"in": 400}, out=300),
        ]
        path = write_lines(tmp_path / "x.jsonl", [trace("a", requests=entries), trace("b", requests=[])])
        corpus = open_corpus(path)
        assert corpus.peak_tokens(0) == 700
        assert corpus.peak_tokens(0, max_output_tokens=50) == 550  # the subagent's is not capped
        assert corpus.peak_tokens(0, max_output_tokens=1) == 550
        assert corpus.peak_tokens(1) == 0

    def test_select(self, tmp_path: Path):
        sizes = [500, 100, 300, 900, 200]
        path = write_lines(
            tmp_path / "x.jsonl",
            [trace(f"t{n}", requests=[request(**{"in": n - 1}, out=0)]) for n in sizes],
        )
        corpus = open_corpus(path)
        chosen = corpus.select(max_context=300, entries=2)
        assert (chosen.ids, len(chosen)) == (("t100", "t300"), 2)
        assert [chosen.trace(i).id for i in range(2)] == ["t100", "t300"]
        assert chosen.dropped == {"max_context": 1, "entries": 2}
        assert chosen.digest == corpus.digest
        assert (corpus.ids, corpus.dropped) == (tuple(f"t{n}" for n in sizes), {})
        again = corpus.select(max_context=500).select(entries=1)
        assert (again.ids, again.dropped) == (("t500",), {"max_context": 1, "entries": 3})
        assert again.trace(0).id == "t500"
        assert corpus.select().ids == corpus.ids
        assert corpus.select(entries=99).dropped == {}

    def test_select_without_a_context_limit_decodes_nothing(self, tmp_path: Path):
        path = tmp_path / "x.jsonl"
        path.write_bytes(dump(trace("a")) + b'\n{"id":"b",\n{"id":"c",broken}\n')
        assert open_corpus(path).select(entries=3).ids == ("a", "b", "c")

    def test_nothing_left(self, tmp_path: Path):
        corpus = open_corpus(write_lines(tmp_path / "x.jsonl", THREE))
        with pytest.raises(CorpusError, match="smallest needs 202"):
            corpus.select(max_context=100)
        with pytest.raises(CorpusError, match="at least 1"):
            corpus.select(entries=0)

    def test_positions_beyond_the_end(self, tmp_path: Path):
        corpus = open_corpus(write_lines(tmp_path / "x.jsonl", THREE))
        with pytest.raises(IndexError):
            corpus.trace(3)


def test_check_finds_broken_ids_too(tmp_path: Path):
    bad = [request(), subagent(3.0, [request(3.0, hash_ids=[1, "x"])])]
    path = write_lines(tmp_path / "x.jsonl", [trace("a"), trace("b", requests=bad)])
    corpus = open_corpus(path)
    corpus.trace(1)
    with pytest.raises(CorpusError, match="line 2: trace 'b', request 1, inner request 0: field `hash_ids`"):
        corpus.check()


def test_recorded_traces(shared: Path):
    shown: list[str] = []
    corpus = open_corpus(shared / "traces", on_warning=shown.append)
    assert len(corpus) == 26
    assert list(corpus.ids) == sorted(corpus.ids)
    seen: list[int] = []
    corpus.check(seen.append)
    assert seen == list(range(26))
    assert corpus.warnings == {"subagent_clock": 4}
    assert len(shown) == 1
    leaves = [
        leaf
        for i in range(26)
        for entry in corpus.trace(i).requests
        for leaf in (getattr(entry, "requests", None) or [entry])
    ]
    assert len(leaves) == 1699
    assert all(len(parse_ids(r.hash_ids)) == r.in_tokens // 64 for r in leaves)
