"""agentx-engine --version: what a bug report needs."""

from __future__ import annotations

import importlib.util
import platform
from importlib import metadata
from pathlib import Path

from agentx_engine import __version__


def _core() -> str:
    found = importlib.util.find_spec("agentx_engine.core.reactor")
    origin = found.origin if found is not None else None
    if origin is None or not origin.endswith(".so"):
        return "missing: reinstall with a C compiler; nothing can be measured without it"
    flags = b"AX_DEBUG" in Path(origin).read_bytes()
    return "compiled" + (" (debug build)" if flags else "") + f", {Path(origin).name}"


def version_text() -> str:
    """Several lines: version, compiled core, uvloop, kernel, Python."""
    try:
        uvloop = metadata.version("uvloop")
    except metadata.PackageNotFoundError:
        uvloop = "missing"
    return "\n".join(
        [
            f"agentx-engine {__version__}",
            f"core     {_core()}",
            f"uvloop   {uvloop}",
            f"python   {platform.python_version()} {platform.python_implementation()}",
            f"kernel   {platform.system()} {platform.release()} {platform.machine()}",
        ]
    )
