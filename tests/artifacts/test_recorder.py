"""Records are taken at once and worked off a little later; nothing is lost, and no defect is swallowed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.records import success

from agentx_engine.artifacts.folder import PROFILE_EXPORT, RunFolder
from agentx_engine.artifacts.recorder import Recorder
from agentx_engine.artifacts.redact import Scrubber
from agentx_engine.artifacts.wall import pair_now
from agentx_engine.metrics.summary import Summary


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / PROFILE_EXPORT).read_text().splitlines()]


def make(tmp_path: Path, **options: object) -> tuple[Recorder, Summary, Path]:
    folder = RunFolder(tmp_path / "run")
    summary = Summary()
    return Recorder(folder.path, summary, pair_now(), Scrubber([]), **options), summary, folder.path  # type: ignore[arg-type]


def test_the_answer_is_told_at_once_and_worked_off_later(tmp_path: Path) -> None:
    told: list[str] = []
    recorder, summary, folder = make(tmp_path, on_outcome=told.append)

    async def run() -> None:
        for _ in range(20):
            recorder.finished(success())
        assert len(told) == 20 and summary.finished == 0
        while summary.finished < 20:  # noqa: ASYNC110 - nothing tells when it is done
            await asyncio.sleep(0.001)

    asyncio.run(run())
    recorder.close()
    assert len(lines(folder)) == 20 and len(told) == 20


def test_what_was_put_off_is_written_at_the_end(tmp_path: Path) -> None:
    recorder, summary, folder = make(tmp_path)

    async def run() -> None:
        for _ in range(5):
            recorder.finished(success())

    asyncio.run(run())
    assert summary.finished < 5
    recorder.close()
    assert summary.finished == 5 and len(lines(folder)) == 5


def test_a_defect_is_raised_at_the_next_record_and_by_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, summary, _ = make(tmp_path)
    monkeypatch.setattr(summary, "add", lambda *_: 1 / 0)

    async def run() -> None:
        recorder.finished(success())
        await asyncio.sleep(0.05)
        with pytest.raises(ZeroDivisionError):
            recorder.finished(success())

    asyncio.run(run())
    with pytest.raises(ZeroDivisionError):
        recorder.flush()
    recorder.close()
