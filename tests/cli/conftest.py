"""What the tests of whole commands share."""

from pathlib import Path

import pytest

from agentx_engine.corpus.synth import synthesize


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "tiny.jsonl"
    synthesize(3, 1, path)
    return path
