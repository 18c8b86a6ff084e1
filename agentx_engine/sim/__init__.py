"""The simulated inference server, and the child processes that it and the truth tools run in."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentx_engine.sim.process import ChildServer

__all__ = ["start_simulated_server"]


def start_simulated_server(
    *, cpus: Collection[int] | None = None, ready_timeout_s: float = 20.0, **options: Any
) -> ChildServer:
    """A simulated server in a child process; use it as a context manager (or asynchronous one).

    `options` are the flags of `agentx-engine sim` with underscores: ``model="m"``, ``itl_ms=5``,
    ``log=path``; True for a flag without a value, a list for a repeatable one. TypeError for a flag that
    does not exist, UserError (`ChildError`) on entry if the server refuses a value.
    """
    from agentx_engine.sim.process import ChildServer
    from agentx_engine.sim.server_main import API_KEY_VARIABLE, build_parser

    known = {action.dest: action.option_strings[0] for action in build_parser()._actions}
    # Not on the command line, which other users and error messages show.
    api_key = options.pop("api_key", None)
    args: list[str] = []
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"the simulated server has no option {name!r}")
        if value is True:
            args.append(known[name])
        elif value is not None and value is not False:
            values = value if isinstance(value, list | tuple) else [value]
            args += [f"{known[name]}={v}" for v in values]

    class SimulatedServer(ChildServer):
        def spawn(self) -> None:
            before = os.environ.pop(API_KEY_VARIABLE, None)
            try:
                if api_key is not None:
                    os.environ[API_KEY_VARIABLE] = api_key
                super().spawn()
            finally:
                os.environ.pop(API_KEY_VARIABLE, None)
                if before is not None:
                    os.environ[API_KEY_VARIABLE] = before

    return SimulatedServer("agentx_engine.sim.server_main", args, cpus=cpus, ready_timeout_s=ready_timeout_s)
