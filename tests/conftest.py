"""Fixtures shared by all tests."""

from pathlib import Path

import pytest
from hypothesis import settings

# A shared machine can be slow at any moment; no test may fail for that.
settings.register_profile("engine", deadline=None)
settings.load_profile("engine")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the real traces and golden data that lies beside a development checkout."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not (path / "traces").is_dir():
        pytest.skip("needs ../shared (real traces and golden data), which is not beside this checkout")
    return path
