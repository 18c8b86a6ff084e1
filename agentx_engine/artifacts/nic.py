"""The network interface between this host and a server.

A receive stamp of the kernel is taken after the interface's interrupt coalescing and after GRO has merged
segments, so both settings belong to a result. They are read by the ETHTOOL ioctls, which need no privilege.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from typing import Any

_SIOCETHTOOL = 0x8946
_SIOCGIFADDR = 0x8915
_ETHTOOL_GCOALESCE = 0x0E
_ETHTOOL_GGRO = 0x2B


def _local_address(host: str) -> str | None:
    """The address that this host would send from; a connected datagram socket sends nothing."""
    try:
        for family, kind, proto, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, proto) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    except OSError:
        return None
    return None


def _interface_of(address: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _ethtool(name: str, command: int, words: int) -> list[int] | None:
    buffer = bytearray(struct.pack("I", command) + bytes(4 * (words - 1)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sP", name.encode()[:15], _address(buffer))
        try:
            fcntl.ioctl(probe.fileno(), _SIOCETHTOOL, request.ljust(40, b"\0"))
        except OSError:
            return None
    return list(struct.unpack(f"{words}I", buffer))


def _address(buffer: bytearray) -> int:
    """Address of a buffer that stays alive in the caller."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def nic_facts(host: str) -> dict[str, Any]:
    """{"interface", "rx_usecs", "rx_frames", "adaptive_rx", "gro"} or {"note"} where there is no NIC."""
    address = _local_address(host)
    if address is None:
        return {"note": "no route found"}
    if address.startswith("127.") or address == "::1":
        return {"interface": "lo", "note": "loopback: no interrupt coalescing"}
    name = _interface_of(address)
    if name is None:
        return {"note": "interface not found"}
    coalesce = _ethtool(name, _ETHTOOL_GCOALESCE, 23)
    gro = _ethtool(name, _ETHTOOL_GGRO, 2)
    return {
        "interface": name,
        "rx_usecs": None if coalesce is None else coalesce[1],
        "rx_frames": None if coalesce is None else coalesce[2],
        "adaptive_rx": None if coalesce is None else bool(coalesce[10]),
        "gro": None if gro is None else bool(gro[1]),
    }
