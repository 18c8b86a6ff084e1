"""Descriptors and ports are checked before the run."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from agentx_engine.errors import UserError
from agentx_engine.transport import limits


def test_enough_is_enough() -> None:
    limits.ensure_sockets(100)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard


def test_too_few_descriptors_name_the_number_needed() -> None:
    # In a process of its own: a hard limit cannot be raised again.
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 128))\n"
        "from agentx_engine.transport.limits import ensure_sockets\n"
        "ensure_sockets(60)\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "ensure_sockets(65)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "128\n"
    assert "65 connections need 129 file descriptors, but the hard limit is 128" in done.stderr


def test_too_few_ports_name_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "local_ports", lambda: 50)
    limits.ensure_sockets(50)
    limits.ensure_sockets(100, endpoints=2)
    with pytest.raises(UserError, match="51 connections to one server address"):
        limits.ensure_sockets(51)


def test_the_port_range_is_read() -> None:
    ports = limits.local_ports()
    assert ports is None or 0 < ports <= 65536
