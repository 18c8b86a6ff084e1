"""The live display: what it says, and that it can never hold up the loop."""

import asyncio
import io
import os
import threading
from collections.abc import Iterator

import pytest

from agentx_engine.cli.display import MAX_PENDING, Printer, Progress, Rates, View, choose, frame, plain_line

VIEW = View(
    elapsed_s=123.4,
    total_s=600,
    state="sending",
    lanes=2048,
    lanes_idle=1024,
    in_flight=1999,
    finished=123_456,
    failed={"http_status": 20, "timeout_idle": 3, "reset": 1},
    tokens=9_999_999,
    ttft_p50_ms=212.345,
    trees_started=3000,
    trees_finished=952,
)


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    read, write = os.pipe()
    with os.fdopen(write, "w") as target:
        yield read, target
        os.close(read)


def test_plain_line_says_everything() -> None:
    line = plain_line(VIEW, (50.25, 24_000.4))
    for said in ("123.4/600 s", "lanes 2,048 (1,024 idle)", "in flight 1,999", "finished 123,456",
                 "failed 24 (http_status 20, timeout_idle 3, reset 1)", "50.2 req/s", "24,000 out tok/s",
                 "TTFT p50 212.3 ms", "trees 952/3,000"):  # fmt: skip
        assert said in line
    assert "RECORDS" not in line
    VIEW_DROPPED = View(dropped_records=5)
    assert "RECORDS DROPPED 5" in plain_line(VIEW_DROPPED, (None, None))
    assert "RECORDS DROPPED 5" in frame(VIEW_DROPPED, (None, None))


def test_frame_fits() -> None:
    text = frame(VIEW, (50.25, 24_000.4))
    assert max(len(line) for line in text.split("\n")) < 100
    assert "24 (http_status 20" in text


def test_rates_are_those_of_the_last_seconds() -> None:
    rates = Rates()
    assert rates.update(View(elapsed_s=0)) == (None, None)
    for second in range(1, 101):
        n = second if second <= 50 else 50 + (second - 50) * 10
        last = rates.update(View(elapsed_s=second, finished=n, tokens=100 * n))
    assert last == (pytest.approx(10), pytest.approx(1000))


def test_frames_arrive_in_order(pipe: tuple[int, io.TextIOWrapper]) -> None:
    read, target = pipe
    printer = Printer(target)
    for i in range(3):
        print(f"line {i}", file=printer, flush=True)
    printer.finish()
    assert os.read(read, 1000) == b"line 0\nline 1\nline 2\n"


def test_a_reader_that_does_not_read_never_holds_up_the_writer(pipe: tuple[int, io.TextIOWrapper]) -> None:
    """A terminal that is held with Ctrl-S, or `| less`: the load must go on."""
    _, target = pipe
    printer = Printer(target)
    done = threading.Event()

    def write() -> None:
        for _ in range(100):
            printer.write("x" * 100_000)  # more than a pipe holds
            printer.flush()
        done.set()

    threading.Thread(target=write, daemon=True).start()
    assert done.wait(60)
    assert printer.dropped >= 100 - MAX_PENDING - 2
    printer.finish(timeout_s=0.01)


def test_a_reader_that_has_gone_is_ignored() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as target:
        printer = Printer(target)
        print("nobody", file=printer, flush=True)
        printer.finish()


@pytest.mark.parametrize("mode", ["plain", "rich"])
def test_progress_shows_the_view(pipe: tuple[int, io.TextIOWrapper], mode: str) -> None:
    read, target = pipe

    async def run() -> None:
        async with Progress(mode, target, lambda: VIEW) as progress:
            progress.say("[note] a line")
            progress.show_once()

    asyncio.run(run())
    shown = os.read(read, 1 << 16).decode()
    assert "[note] a line" in shown
    assert "2,048" in shown
    assert ("\x1b[" in shown) is (mode == "rich")


def test_no_progress_writes_nothing(pipe: tuple[int, io.TextIOWrapper]) -> None:
    read, target = pipe

    async def run() -> None:
        async with Progress("none", target, lambda: VIEW) as progress:
            progress.say("nothing")
            progress.show_once()

    asyncio.run(run())
    os.set_blocking(read, False)
    with pytest.raises(BlockingIOError):
        os.read(read, 10)


def test_choice(pipe: tuple[int, io.TextIOWrapper]) -> None:
    assert choose("auto", pipe[1]) == "plain"
    assert choose("rich", pipe[1]) == "rich"
