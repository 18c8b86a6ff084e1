"""Standard streams that are closed, full or without a reader, and signals before the command has begun."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentx_engine.cli.main import main
from agentx_engine.corpus.synth import synthesize
from agentx_engine.sim.process import ChildServer

ENGINE = f"{sys.executable} -P -m agentx_engine"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "tiny.jsonl"
    synthesize(3, 1, path)
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ChildServer("agentx_engine.sim.server_main", ["--ttft-ms", "2", "--itl-ms", "0.2"]) as child:
        yield child.url


def shell(command: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"{ENGINE} {command}", "engine", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


REPLAY = 'replay --url "$1" --corpus "$2" --out "$3" --concurrency 2 --request-count 3'


@pytest.mark.parametrize(
    ("redirection", "result"),
    [
        (">&-", (1, "stdout cannot be written: Bad file descriptor")),
        ("> /dev/full", (1, "stdout cannot be written: No space left on device")),
        ("2>&-", (0, "")),
        ("2> /dev/full", (0, "")),
        ("<&-", (0, "")),
        ("<&- 2>&-", (0, "")),
        ("<&- >&- 2>&-", (1, "")),
        ("| true; exit ${PIPESTATUS[0]}", (0, "")),
        ("--json > /dev/full", (1, "stdout cannot be written: No space left on device")),
    ],
)
def test_a_replay_is_measured_and_written_all_the_same(
    server: str, corpus: Path, tmp_path: Path, redirection: str, result: tuple[int, str]
) -> None:
    out, (status, said) = tmp_path / "run", result
    done = shell(f"{REPLAY} {redirection}", server, corpus, out)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((out / "summary.json").read_text())["counts"]["succeeded"] == 3


@pytest.mark.parametrize("redirection", [">&-", "> /dev/full"])
@pytest.mark.parametrize(
    "command", ["--help", "--version", 'corpus inspect "$1"', 'corpus tree --json "$1"', "replay --help"]
)
def test_what_cannot_be_shown_is_no_defect_of_ours(corpus: Path, command: str, redirection: str) -> None:
    done = shell(f"{command} {redirection}", corpus)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "error: stdout cannot be written: " in done.stderr


def test_a_lot_of_output_that_is_refused_at_once(corpus: Path) -> None:
    """More than a buffer holds: nothing is left in it that a later flush would find."""
    done = shell('corpus tree --json "$1" > /dev/full', corpus)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    done = shell('corpus tree --turns "$1" | head -n 1; exit ${PIPESTATUS[0]}', corpus)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_users_error_keeps_its_status() -> None:
    for redirection in ("2>&-", "2> /dev/full", ">&-"):
        assert shell(f"corpus inspect /nonexistent {redirection}").returncode == 2


def test_a_folder_whose_name_is_no_text(server: str, corpus: Path, tmp_path: Path) -> None:
    done = shell(
        'replay --url "$1" --corpus "$2" --out "$3"$\'/\\xff\' --concurrency 1 --request-count 1 --json',
        server,
        corpus,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    assert json.loads((folder / "run.json").read_text())["folder"] == f"{tmp_path}/\\udcff"
    copy = tmp_path / os.fsdecode(b"\xfe.jsonl")
    copy.write_bytes(corpus.read_bytes())
    done = shell("corpus inspect \"$1\"/$'\\xfe.jsonl'", tmp_path)
    assert "\\udcfe" in done.stdout
    done = shell("corpus inspect --json \"$1\"/$'\\xfe.jsonl'", tmp_path)
    assert json.loads(done.stdout)


def test_interrupted_while_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a module makes another error of it. Silent: nothing has begun."""

    def pressed(argv: list[str]) -> int:
        raise KeyboardInterrupt

    def wrapped(argv: list[str]) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ImportError("numpy is broken") from error

    for broken in (pressed, wrapped):
        monkeypatch.setattr("agentx_engine.cli.corpus.main", broken)
        assert main(["corpus"]) == 130


def test_a_signal_at_the_interpreters_end_shows_nothing() -> None:
    code = (
        "import atexit, os, signal, sys; from agentx_engine.cli.main import main; "
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT)); "
        "sys.argv[1:] = ['--version']; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
