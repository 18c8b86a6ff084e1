"""agentx-engine: replay recorded coding-agent sessions against inference servers, measure every token.

The names below are the public API for embedding; everything else may change. They are imported on first
use, so that `import agentx_engine` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentx_engine.core.clock import now_ns
    from agentx_engine.core.rope import Rope
    from agentx_engine.errors import UserError
    from agentx_engine.transport.base import Outcome, Request, Result, Stamps, Usage
    from agentx_engine.transport.native import NativeOptions, NativeTransport

__version__ = "0.1.0"

_HOME = {
    "NativeOptions": "agentx_engine.transport.native",
    "NativeTransport": "agentx_engine.transport.native",
    "Outcome": "agentx_engine.transport.base",
    "Request": "agentx_engine.transport.base",
    "Result": "agentx_engine.transport.base",
    "Rope": "agentx_engine.core.rope",
    "Stamps": "agentx_engine.transport.base",
    "Usage": "agentx_engine.transport.base",
    "UserError": "agentx_engine.errors",
    "now_ns": "agentx_engine.core.clock",
}
__all__ = [
    "NativeOptions",
    "NativeTransport",
    "Outcome",
    "Request",
    "Result",
    "Rope",
    "Stamps",
    "Usage",
    "UserError",
    "now_ns",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
