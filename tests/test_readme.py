"""What the README shows works as printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import agentx_engine
from agentx_engine.cli.main import main
from agentx_engine.sim import start_simulated_server

README = Path(__file__).resolve().parents[1] / "README.md"


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.M | re.S)


def test_the_embedding_example_runs() -> None:
    (example,) = code_blocks("python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 18
    with start_simulated_server() as server:
        code = example.replace("http://127.0.0.1:8000", server.url)
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sent ")
    assert "Usage(prompt=1, completion=32" in done.stdout


def test_every_command_and_flag_shown_exists(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [
        line.split("#")[0]
        for block in code_blocks("")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("agentx-engine")
    ]
    assert len(shown) >= 2
    for line in shown:
        words = shlex.split(line)[1:]
        command = [w for w in words[:2] if re.fullmatch(r"[a-z]+", w)]
        assert main([*command, "--help"]) == 0
        help_text = capsys.readouterr().out
        for flag in (w for w in words if w.startswith("--")):
            assert flag in help_text, f"{flag} of `{line}` is not in the help"


def test_the_public_names_exist() -> None:
    assert len(agentx_engine.__all__) <= 10
    for name in agentx_engine.__all__:
        assert getattr(agentx_engine, name) is not None
    with pytest.raises(AttributeError, match="no attribute"):
        _ = agentx_engine.nothing_like_this  # type: ignore[attr-defined]
