"""Child processes: start, readiness, end, and what happens when either side dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from agentx_engine.errors import UserError
from agentx_engine.sim.process import Child, ChildError, ChildServer

TRUTH = "agentx_engine.sim.truth_main"


def gone(pid: int, timeout_s: float = 10) -> bool:
    """Whether the process is dead; a zombie that nobody reaps yet counts."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a module of the given source that children can run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def make(source: str) -> str:
        (tmp_path / "child_under_test.py").write_text(source)
        return "child_under_test"

    return make


def test_server_is_ready_serves_and_gives_its_result() -> None:
    with ChildServer(TRUTH, ["metronome", "--interval-us", "100"]) as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{server.url}/health", timeout=10) as response:
            assert response.status == 200
        floor = Child(TRUTH, ["floor", "--port", str(server.port), "--answers", "4", "--tokens", "20"])
        with floor:
            seen = floor.result(30)
        stats = server.stop()
    assert stats is not None
    assert seen["events"] == stats["events_sent"] == 4 * 23
    assert server.stop() == stats
    assert gone(server.pid)


def test_session_and_affinity() -> None:
    core = min(os.sched_getaffinity(0))
    with ChildServer(TRUTH, ["metronome"], cpus=[core]) as server:
        assert os.getsid(server.pid) == server.pid
        assert os.sched_getaffinity(server.pid) == {core}


def test_cores_that_are_not_there() -> None:
    with (
        pytest.raises(ChildError, match=r"cannot pin .* to cores \[1023\]"),
        Child(TRUTH, ["metronome"], cpus=[1023]),
    ):
        pass


def test_usable_from_asyncio() -> None:
    async def main() -> int:
        async with ChildServer(TRUTH, ["metronome"]) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
            return server.pid

    assert gone(asyncio.run(main()))


def test_cancelled_while_it_waits(module: Callable[[str], str]) -> None:
    async def main() -> int:
        server = ChildServer(module("import time; time.sleep(60)"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5), server:
                pass
        return server.pid

    assert gone(asyncio.run(main()))


def test_result_of_a_child_that_ended_unseen(module: Callable[[str], str]) -> None:
    with Child(module("print('{\"fine\": 1}')")) as child:
        assert gone(child.pid)
        assert child.stop() == {"fine": 1}


def test_failure_at_the_start_quotes_the_child() -> None:
    with ChildServer(TRUTH, ["metronome"]) as server:
        second = ChildServer(TRUTH, ["metronome", "--port", str(server.port)])
        with pytest.raises(ChildError) as caught, second:
            pass
    text = str(caught.value)
    assert "failed at its start (exit status 1)" in text
    assert f"error: metronome on port {server.port}: cannot bind the port: Address already in use" in text
    assert "Traceback" not in text
    assert isinstance(caught.value, UserError)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("print('hello')\nimport time; time.sleep(60)", "printed b'hello' where its ready line was due"),
        ("print('[1]')", r"printed b'\[1\]' where its ready line was due"),
        ("import time; time.sleep(60)", "was not ready within 1 s"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    ],
)
def test_children_that_do_not_become_ready(module: Callable[[str], str], source: str, message: str) -> None:
    server = ChildServer(module(source), ready_timeout_s=1)
    with pytest.raises(ChildError, match=message), server:
        pass
    assert gone(server.pid)


def test_stubborn_child_and_its_own_children_are_killed(module: Callable[[str], str], tmp_path: Path) -> None:
    name = module(
        "import json, os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pid = os.fork()\n"
        f"if pid:\n    open({str(tmp_path / 'pid')!r}, 'w').write(str(pid))\n"
        "    print(json.dumps({'event': 'ready', 'port': 1}), flush=True)\n"
        "while True:\n    time.sleep(1)\n"
    )
    with ChildServer(name, stop_timeout_s=0.3) as server:
        pass
    assert gone(server.pid)
    assert gone(int((tmp_path / "pid").read_text()))


def test_child_may_print_more_than_a_pipe_holds(module: Callable[[str], str]) -> None:
    name = module("import json\nprint('x' * 1000000)\nprint(json.dumps({'fine': True}))")
    with Child(name) as child:
        assert child.result(20) == {"fine": True}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "ended without a result"),
        (
            "import sys; print('sad', file=sys.stderr); sys.exit(7)",
            r"failed \(exit status 7\); it wrote:\nsad",
        ),
        ("import time; time.sleep(60)", "has not ended within 0.5 s"),
    ],
)
def test_children_without_a_result(module: Callable[[str], str], source: str, message: str) -> None:
    with Child(module(source)) as child, pytest.raises(ChildError, match=message):
        child.result(0.5 if "60" in source else 20)


@pytest.mark.parametrize("blocked", [False, True], ids=["serving", "stopped"])
def test_child_dies_with_its_parent(blocked: bool) -> None:
    """Also when it cannot run (SIGSTOP), as long as the kernel does it."""
    parent = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            "import time\nfrom agentx_engine.sim.process import ChildServer\n"
            f"server = ChildServer({TRUTH!r}, ['metronome'])\nserver.__enter__()\n"
            "print(server.pid, flush=True)\ntime.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if blocked:
        os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(pid)


def test_parent_that_died_before_the_child_could_ask() -> None:
    """The race: the child's parent is not the one that started it any more."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", TRUTH, "metronome"],
        env={**os.environ, "AGENTX_PARENT_PID": "1" if os.getpid() != 1 else "2"},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_runs_by_hand_without_a_parent_to_die_with() -> None:
    server = subprocess.Popen([sys.executable, "-P", "-m", TRUTH, "metronome"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert json.loads(server.stdout.readline())["event"] == "ready"
    server.send_signal(signal.SIGINT)
    out, _ = server.communicate(timeout=20)
    assert server.returncode == 0
    assert json.loads(out)["requests"] == 0


def test_bad_options_are_told_in_words() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", TRUTH, "metronome", "--event-bytes", "3"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: metronome on port 0: event_bytes is 3, must be")


def test_started_from_a_thread_that_lives_on() -> None:
    """The kernel ties the child to the thread that spawned it; waiting may be done elsewhere."""
    server = ChildServer(TRUTH, ["metronome"])
    server.spawn()
    waiter = threading.Thread(target=server.wait_ready)
    waiter.start()
    waiter.join(30)
    try:
        assert server.port
        time.sleep(0.1)
        with urllib.request.urlopen(f"{server.url}/health", timeout=10) as response:
            assert response.status == 200
    finally:
        server.stop()
