"""agentx-engine sim: the simulated inference server."""

from __future__ import annotations


def main(argv: list[str]) -> int:
    from agentx_engine.sim.server_main import main as serve

    return serve(argv)
