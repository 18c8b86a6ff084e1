"""The folder of a run."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec

from agentx_engine.errors import UserError

ARTIFACTS = "aiperf_artifacts"
PROFILE_EXPORT = f"{ARTIFACTS}/profile_export.jsonl"
CANCELLED = f"{ARTIFACTS}/cancelled.jsonl"
CONTEXT_OVERFLOW = f"{ARTIFACTS}/context_overflow.jsonl"


def default_name() -> Path:
    """agentx-runs/<local date and time>-<short id>"""
    return Path("agentx-runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def pretty(value: Any) -> bytes:
    """JSON for people, in UTF-8, with a line feed at its end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


class RunFolder:
    """RUN and RUN/aiperf_artifacts. UserError if it holds something already or cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []
        try:
            for folder in (path, path / ARTIFACTS):
                if not folder.exists():
                    folder.mkdir(parents=True)
                    self._made.append(folder)
                elif folder == path and any(path.iterdir()):
                    raise UserError(
                        f"--out: {path} is not empty. Results of two runs are never mixed: "
                        "name a new folder, or remove this one first."
                    )
            if not os.access(path / ARTIFACTS, os.W_OK | os.X_OK):
                raise UserError(f"--out: {path} cannot be written: permission denied.")
        except OSError as error:
            raise UserError(
                f"--out: {error.filename or path} cannot be written: {error.strerror or error}."
            ) from None

    def remove_if_empty(self) -> None:
        """Takes back what was made for a run that never began."""
        for folder in reversed(self._made):
            try:
                folder.rmdir()
            except OSError:
                return

    def write_json(self, name: str, value: Any) -> Path:
        """Writes RUN/name whole or not at all. OSError if the disk refuses."""
        target = self.path / name
        partial = target.with_name(target.name + ".partial")
        partial.write_bytes(pretty(value))
        partial.replace(target)
        return target
