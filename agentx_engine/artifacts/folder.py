"""The folder of a run."""

from __future__ import annotations

import contextlib
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
    """JSON for people, in UTF-8, with a line feed at its end.

    Names of files may hold bytes that are no UTF-8 (surrogates in a str): they are written as escapes.
    """
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_encodable(msgspec.to_builtins(value)))
    return msgspec.json.format(encoded, indent=2) + b"\n"


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(name): _encodable(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(member) for member in value]
    return value


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

    def discard(self) -> None:
        """Takes back what was made for a run that never began: run.json, empty files, and our own folders.

        The folder was empty, so all of it is the run's; what has content stays all the same.
        """
        with contextlib.suppress(OSError):
            (self.path / "run.json").unlink(missing_ok=True)
            for path in (self.path / ARTIFACTS).iterdir():
                if not path.stat().st_size:
                    path.unlink()
            for folder in reversed(self._made):
                folder.rmdir()

    def write_json(self, name: str, value: Any) -> Path:
        """Writes RUN/name whole or not at all. OSError if the disk refuses."""
        target = self.path / name
        partial = target.with_name(target.name + ".partial")
        try:
            partial.write_bytes(pretty(value))
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return target
