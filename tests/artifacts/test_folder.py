"""The run's folder and the recorder that fills it."""

import json
import os
from pathlib import Path

import pytest
from support.records import failure, identity, success

from agentx_engine.artifacts.folder import ARTIFACTS, RunFolder, default_name, pretty
from agentx_engine.artifacts.recorder import Recorder
from agentx_engine.artifacts.redact import Scrubber
from agentx_engine.artifacts.wall import pair_now
from agentx_engine.errors import UserError
from agentx_engine.metrics.summary import Summary
from agentx_engine.replay.protocols import TreeIdentity
from agentx_engine.transport.base import Outcome

CANARY = "sk-canary-0123456789abcdef"


def test_new_and_empty_folders_are_taken(tmp_path: Path) -> None:
    RunFolder(tmp_path / "deep" / "run")
    assert (tmp_path / "deep" / "run" / ARTIFACTS).is_dir()
    (tmp_path / "empty").mkdir()
    RunFolder(tmp_path / "empty")


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.txt").touch()
    with pytest.raises(UserError, match=r"--out: .* is not empty"):
        RunFolder(tmp_path)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match=r"--out: .*file.* cannot be written"):
            RunFolder(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="Permission denied"):
        RunFolder(tmp_path / "run")


def test_unwritable_place() -> None:
    with pytest.raises(UserError, match="/proc/"):
        RunFolder(Path("/proc/agentx-run"))


def test_taken_back_if_nothing_was_run(tmp_path: Path) -> None:
    for path in (tmp_path / "run", tmp_path / "mine"):
        if path.name == "mine":
            path.mkdir()
        folder = RunFolder(path)
        folder.write_json("run.json", {})
        Recorder(path, Summary(), pair_now(), Scrubber([])).close()
        folder.discard()
    assert not (tmp_path / "run").exists()
    assert not list((tmp_path / "mine").iterdir())


def test_what_has_content_is_not_taken_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_json("summary.json", {})
    folder.discard()
    assert [p.name for p in folder.path.iterdir()] == ["summary.json"]


def test_a_disk_that_fills_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        write(self, data[:3])
        raise OSError(28, "No space left on device")

    folder = RunFolder(tmp_path / "run")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        folder.write_json("summary.json", {"a": 1})
    assert [p.name for p in folder.path.iterdir()] == [ARTIFACTS]


def test_names_in_any_bytes_are_written() -> None:
    document = {"folder": os.fsdecode(b"outs/\xff"), "n": [1, {"p": os.fsdecode(b"\xfe")}]}
    assert json.loads(pretty(document)) == {"folder": "outs/\\udcff", "n": [1, {"p": "\\udcfe"}]}


def test_default_names_differ() -> None:
    assert default_name() != default_name()
    assert default_name().parent == Path("agentx-runs")


def test_json_is_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    path = folder.write_json("summary.json", {"a": [1, None]})
    assert json.loads(path.read_text()) == {"a": [1, None]}
    assert sorted(p.name for p in folder.path.iterdir()) == [ARTIFACTS, "summary.json"]


def test_recorder_sorts_by_outcome_and_scrubs(tmp_path: Path) -> None:
    folder, summary = RunFolder(tmp_path / "run"), Summary()
    recorder = Recorder(folder.path, summary, pair_now(), Scrubber([CANARY]))
    records = [
        success(0),
        failure(Outcome.HTTP_STATUS, 1, status=401, error=f"bad key {CANARY}", error_type=f"t {CANARY}"),
        failure(Outcome.CANCELLED, 2),
        failure(Outcome.CONTEXT_OVERFLOW, 3, status=400),
        success(4, phase="warmup"),
    ]
    tree = TreeIdentity(
        index=0, trace_id="trace_0001", lane=3, play=0, endpoint=0, root_correlation_id="correlation-root"
    )
    recorder.tree_started(tree, 0)
    recorder.tree_started(tree, 0)
    recorder.started(identity(9))
    recorder.withdrawn(identity(9))
    for record in records:
        recorder.started(record.identity)
        recorder.finished(record)
    recorder.tree_finished(tree, "drained", 7)
    recorder.tree_finished(tree, "stopped", 8)
    report = recorder.close()
    assert (report.written, report.complete) == (5, True)
    artifacts = folder.path / ARTIFACTS

    def numbers(name: str) -> list[int]:
        return [json.loads(x)["metadata"]["session_num"] for x in (artifacts / name).read_text().splitlines()]

    assert numbers("profile_export.jsonl") == [0, 1, 4]
    assert numbers("cancelled.jsonl") == [2]
    assert numbers("context_overflow.jsonl") == [3]
    assert (summary.requests_started, summary.trees_started, summary.trees_finished) == (4, 2, 1)
    folder.write_json("summary.json", summary.result())
    for path in folder.path.rglob("*"):
        assert path.is_dir() or CANARY not in path.read_text(), path


def test_short_answers_as_failures(tmp_path: Path) -> None:
    """inference-perf#655: asked for 512 tokens, got 5, counted as a success."""
    folder, summary = RunFolder(tmp_path / "run"), Summary()
    recorder = Recorder(folder.path, summary, pair_now(), Scrubber([]), fail_on_short=True)
    recorder.finished(success(0, max_tokens=512))
    recorder.finished(success(1))
    recorder.close()
    assert summary.outcomes == {"short_answer": 1, "success": 1}
    result = summary.result()
    assert result["latency_ms"]["time_to_first_token"]["count"] == 1
    assert result["errors"][0]["outcome"] == "short_answer"
    line = json.loads((folder.path / ARTIFACTS / "profile_export.jsonl").read_text().splitlines()[0])
    assert line["error"]["message"] == "512 tokens asked for, 5 returned"
    assert line["metrics"] == {}
