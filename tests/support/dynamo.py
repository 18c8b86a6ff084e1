"""NVIDIA Dynamo's frontend and mocker as child processes: a production HTTP front, tokenizer and scheduler
which nobody of this project wrote, and no GPU. tests/real/setup_dynamo.sh makes the environment."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

MODEL = "mock-model"
READY_S = 60.0
VARIABLE = "AGENTX_DYNAMO_VENV"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def dynamo_python() -> Path | None:
    """The interpreter of the environment, None if there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get(VARIABLE) or cache / "agentx-engine/dynamo-venv")
    python = folder / "bin/python"
    return python if python.exists() else None


@contextlib.contextmanager
def dynamo(python: Path, tokenizer: Path, folder: Path, *, speedup: float) -> Iterator[str]:
    """The base URL of a frontend whose mocker serves `MODEL` with a tokenizer. `folder` takes its state."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "kv").mkdir(parents=True)
    environment = {
        **os.environ,
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(folder / "kv"),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "HOME": str(folder),
        "PYTHONUNBUFFERED": "1",
    }
    front = ["dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
    mocker = ["dynamo.mocker", "--model-path", str(tokenizer), "--model-name", MODEL]
    mocker += ["--max-model-len", "1048576", "--num-gpu-blocks-override", "200000", "--block-size", "64"]
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                _child([str(python), "-P", "-m", *command], environment, folder / f"{name}.log")
            )
            for name, command in (
                ("frontend", [*front, "--router-mode", "round-robin"]),
                ("mocker", [*mocker, "--speedup-ratio", str(speedup)]),
            )
        ]
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + READY_S
        while not _serves(url):
            if time.monotonic() > deadline or any(p.poll() is not None for p in processes):
                logs = "\n".join((folder / f"{n}.log").read_text()[-2000:] for n in ("frontend", "mocker"))
                raise RuntimeError(f"Dynamo was not ready within {READY_S:g} s:\n{logs}")
            time.sleep(0.2)
        yield url


def _serves(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
            return any(model["id"] == MODEL for model in json.load(answer)["data"])
    except (urllib.error.URLError, OSError, ValueError):
        return False


@contextlib.contextmanager
def _child(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, which ends with the block, and with this process."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
