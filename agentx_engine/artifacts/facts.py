"""Facts of the host and of the program for run.json. Every fact that cannot be read is null."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

from agentx_engine import __version__
from agentx_engine.artifacts.nic import nic_facts

_LIBRARIES = ("uvloop", "aiohttp", "numpy", "msgspec", "hdrhistogram", "rich", "zstandard")


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip() or None
    except OSError:
        return None


def _cpu_model() -> str | None:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "CPU part"):
            return value.strip()
    return None


def _memory_bytes() -> int | None:
    for line in (_read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_cpu_max() -> str | None:
    for line in (_read("/proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            return _read(f"/sys/fs/cgroup{line[3:]}/cpu.max") or _read("/sys/fs/cgroup/cpu.max")
    return None


def versions() -> dict[str, Any]:
    """The engine, the interpreter and the libraries that it runs on."""
    found: dict[str, str | None] = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return {
        "agentx_engine": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "gil": bool(getattr(sys, "_is_gil_enabled", lambda: True)()),
        "compiler": platform.python_compiler(),
        "platform": sysconfig.get_platform(),
        **found,
    }


def host_facts(hosts: list[str]) -> dict[str, Any]:
    """Kernel, CPU, limits, and the network interface towards each of `hosts` (names or addresses)."""
    cpus = os.sched_getaffinity(0)
    return {
        "hostname": platform.node(),
        "kernel": f"{platform.system()} {platform.release()}",
        "kernel_build": platform.version(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus_online": os.cpu_count(),
        "cpus_usable": len(cpus),
        "cpu_affinity": sorted(cpus),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "clocksource": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "cgroup_cpu_max": _cgroup_cpu_max(),
        "memory_bytes": _memory_bytes(),
        "load_average_at_start": list(os.getloadavg()),
        "ephemeral_ports": _read("/proc/sys/net/ipv4/ip_local_port_range"),
        "tcp_congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "network": {host: nic_facts(host) for host in dict.fromkeys(hosts)},
    }
