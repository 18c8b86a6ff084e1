"""The writer thread: whole lines, never blocking, every loss counted."""

import errno
import os
import threading
from pathlib import Path

import pytest

from agentx_engine.artifacts.writer import LineWriter


def test_lines_arrive_in_order_and_in_their_files(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path, create=("a.jsonl",))
    assert (tmp_path / "a.jsonl").exists()
    for i in range(5000):
        assert writer.put("a.jsonl" if i % 3 else "b.jsonl", b"%d\n" % i)
    report = writer.close()
    assert report.complete
    assert report.written == 5000
    a = [int(x) for x in (tmp_path / "a.jsonl").read_bytes().split()]
    b = [int(x) for x in (tmp_path / "b.jsonl").read_bytes().split()]
    assert a == sorted(a)
    assert b == sorted(b)
    assert sorted(a + b) == list(range(5000))


def test_files_without_lines_are_not_made(tmp_path: Path) -> None:
    LineWriter(tmp_path, create=("a.jsonl",)).close()
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_lines_are_visible_while_running(tmp_path: Path) -> None:
    seen = threading.Event()

    def write(fd: int, data: bytes) -> int:
        n = os.write(fd, data)
        seen.set()
        return n

    writer = LineWriter(tmp_path, write=write)
    writer.put("a", b"one\n")
    assert seen.wait(20)
    assert (tmp_path / "a").read_bytes() == b"one\n"
    writer.close()


def test_a_full_queue_drops_and_counts_and_never_blocks(tmp_path: Path) -> None:
    gate, entered = threading.Event(), threading.Event()

    def stuck(fd: int, data: bytes) -> int:
        entered.set()
        assert gate.wait(60)
        return os.write(fd, data)

    writer = LineWriter(tmp_path, queue_bytes=1000, write=stuck)
    assert writer.put("a", b"first\n")
    assert entered.wait(20)
    accepted = [writer.put("a", b"x" * 99 + b"\n") for _ in range(50)]
    assert accepted.count(True) == 10
    assert accepted[:10] == [True] * 10
    assert writer.report.dropped == 40
    assert writer.report.queue_peak_bytes <= 1000
    gate.set()
    report = writer.close()
    assert not report.complete
    assert (report.written, report.dropped, report.lost) == (11, 40, 0)
    assert (tmp_path / "a").read_bytes().count(b"\n") == 11


def test_a_disk_that_hangs_is_given_up(tmp_path: Path) -> None:
    gate = threading.Event()

    def stuck(fd: int, data: bytes) -> int:
        gate.wait(60)
        return os.write(fd, data)

    writer = LineWriter(tmp_path, write=stuck)
    writer.put("a", b"first\n")
    report = writer.close(timeout_s=0.05)
    assert report.unfinished >= 1
    assert not report.complete
    gate.set()


def test_short_writes_are_continued(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path, write=lambda fd, data: os.write(fd, data[:7]))
    for i in range(100):
        writer.put("a", b"line %d\n" % i)
    assert writer.close().written == 100
    assert (tmp_path / "a").read_bytes() == b"".join(b"line %d\n" % i for i in range(100))


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    room = 25

    def write(fd: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        n = os.write(fd, data[:room])
        room -= n
        return n

    writer = LineWriter(tmp_path, write=write)
    for i in range(10):
        writer.put("a", b"line %04d\n" % i)  # 10 bytes each
    report = writer.close()
    content = (tmp_path / "a").read_bytes()
    assert content == b"line 0000\nline 0001\n"
    assert (report.written, report.lost) == (2, 8)
    assert report.error is not None
    assert "No space left on device" in report.error
    assert str(tmp_path / "a") in report.error


def test_a_disk_that_recovers_goes_on_with_whole_lines(tmp_path: Path) -> None:
    failed = threading.Event()

    def write(fd: int, data: bytes) -> int:
        if not failed.is_set():
            os.write(fd, data[:3])
            failed.set()
            raise OSError(errno.EIO, "Input/output error")
        return os.write(fd, data)

    writer = LineWriter(tmp_path, write=write)
    writer.put("a", b"lost\n")
    assert failed.wait(20)
    while writer.report.lost == 0:
        pass
    writer.put("a", b"kept\n")
    report = writer.close()
    assert (report.written, report.lost) == (1, 1)
    # The failed write said nothing about its 3 bytes; what follows starts behind the last whole line.
    assert (tmp_path / "a").read_bytes().endswith(b"kept\n")


def test_device_full(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/dev/full")
    writer = LineWriter(tmp_path)
    writer.put("a", b"line\n")
    report = writer.close()
    assert (report.written, report.lost) == (0, 1)
    assert report.error is not None
    assert "No space left" in report.error


def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    writer = LineWriter(folder)
    folder.rmdir()
    writer.put("a", b"line\n")
    report = writer.close()
    assert report.lost == 1
    assert "No such file" in (report.error or "")


def test_constructor_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        LineWriter(tmp_path / "nowhere", create=("a",))
