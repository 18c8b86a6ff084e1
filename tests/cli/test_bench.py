"""agentx-engine bench: the command, for a second or two."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from typing import Any

import pytest

from agentx_engine.cli.bench import build_parser, main
from agentx_engine.errors import UserError

SHORT = ["--streams", "4", "--rate", "200", "--tokens", "60", "--duration", "0.6"]
CODE = "import sys; from agentx_engine.cli.bench import main; sys.exit(main(sys.argv[1:]))"


def test_a_measurement_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    affinity = os.sched_getaffinity(0)
    assert main([*SHORT, "--io-threads", "2"]) == 0
    out, err = capsys.readouterr()
    for word in (
        "events/s",
        "reactor/floor",
        "kernel, exact events",
        "dispatch lag, armed",
        "dispatch lag, reactive",
        "event loop lag",
        "memory",
        "client: ",
        "CPU, reactor 1",
    ):
        assert word in out
    assert "Traceback" not in err and "floor" in err
    assert os.sched_getaffinity(0) == affinity


def test_a_measurement_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main([*SHORT, "--no-floor", "--json", "--body-kb", "40", "--events-per-write", "2", "--burst", "2"])
        == 0
    )
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result["events"] > 0 and result["requests"] > 0 and result["failures"] == {}
    assert result["kernel_all_us"]["count"] > 0
    assert result["floor"] is None and result["ratio_to_floor"] is None
    assert result["verdict"]["client"] in ("ok", "limited")
    assert result["dispatch_lag_armed_ms"]["count"] > 0 and result["dispatch_lag_reactive_ms"]["count"] > 0
    assert result["flagged_share"] > 0.1  # two events in each write
    assert result["verdict"]["missing"] == []


def test_the_verdict_can_be_required(capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*SHORT, "--no-floor", "--json", "--require-client-ok"])
    ok = json.loads(capsys.readouterr().out)["verdict"]["client"] == "ok"
    assert code == (0 if ok else 1)


def interrupted(*flags: str) -> tuple[int, str, str]:
    """Starts a long bench and interrupts it when it says that it measures."""
    command = [sys.executable, "-P", "-c", CODE, "--streams", "4", "--tokens", "20", "--rate", "100", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stderr is not None
        said = ""
        while "engine, " not in said:
            line = bench.stderr.readline()
            assert line, f"it ended before it measured: {said}"
            said += line
        try:
            # Within the window, which begins when everything is warm.
            bench.wait(2.5)
        except subprocess.TimeoutExpired:
            bench.send_signal(signal.SIGINT)
        out, err = bench.communicate(timeout=60)
    return bench.returncode, out, said + err


def test_ctrl_c_prints_what_was_measured() -> None:
    code, out, err = interrupted("--duration", "60", "--no-floor")
    assert code == 130, err
    assert "(interrupted)" in out and "client: " in out
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--streams", "0"], "--streams: a whole number from 1 is expected"),
        (["--rate", "fast"], "--rate: a number is expected, not 'fast'"),
        (["--rate", "0"], "--rate: a number above 0"),
        (["--rate", "inf"], "--rate: a number above 0"),
        (["--duration", "0.1"], "--duration: at least 0.5 s"),
        (["--burst", "1025"], "--burst: between 1 and 1,024 are possible, not 1025"),
        (["--body-kb", "1e9"], "--body-kb: between"),
        (["--stream", "5"], "unknown flag --stream, did you mean --streams?"),
        (["now"], "unexpected argument 'now'"),
    ],
)
def test_wrong_flags_are_named(argv: list[str], said: str) -> None:
    with pytest.raises(UserError) as error:
        main(argv)
    assert said in str(error.value)


def test_more_streams_than_the_host_has_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    with pytest.raises(UserError, match="need 564 file descriptors"):
        main(["--streams", "500"])


def test_help_says_what_it_does() -> None:
    text = build_parser().format_help()
    assert "exit status" in text and "--find-limit" in text
