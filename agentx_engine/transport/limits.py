"""Does this host have the descriptors and ports that a run needs? Asked before any load is sent."""

from __future__ import annotations

import resource
from pathlib import Path

from agentx_engine.errors import UserError

OWN_DESCRIPTORS = 64  # event loop, reactor, artifacts, standard streams, control connections
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def ensure_sockets(sockets: int, endpoints: int = 1) -> None:
    """Makes room for `sockets` open connections, spread over `endpoints` server addresses.

    Raises the process's descriptor limit to its hard limit. Raises UserError with the number needed if
    there are too few descriptors, or too few local ports: a connection needs a local port of its own
    among those to the same server address.
    """
    needed = sockets + OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            f"{sockets} connections need {needed} file descriptors, but the hard limit is {hard}. "
            f"Raise it (ulimit -Hn {needed}, or LimitNOFILE= in the service), or lower --concurrency"
        )
    ports = local_ports()
    per_endpoint = -(-sockets // endpoints)
    if ports is not None and per_endpoint > ports:
        raise UserError(
            f"{per_endpoint} connections to one server address need as many local ports, but "
            f"{_PORT_RANGE} allows {ports}. Widen it (sysctl -w net.ipv4.ip_local_port_range='1024 65535'), "
            "give several --url addresses, or lower --concurrency"
        )


def local_ports() -> int | None:
    """Number of ports for outgoing connections; None where the kernel does not say."""
    try:
        low, high = _PORT_RANGE.read_text().split()
    except (OSError, ValueError):
        return None
    return int(high) - int(low) + 1
