"""Errors that a user can cause and mend.

The command line prints them without a traceback and exits with `exit_code`. Everything else that
escapes is a defect of the engine.
"""

from __future__ import annotations


class UserError(Exception):
    """Something that the user gave is wrong. The message says what, where, and what to do next."""

    exit_code = 2


class CorpusError(UserError):
    """A trace file or folder cannot be used. Names the file, and trace, request and field where known."""


class PreflightError(UserError):
    """The server is not there, or is not what the run needs."""

    exit_code = 3
