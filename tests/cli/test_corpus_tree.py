"""`corpus tree`: what is printed of a reconstructed session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.trace_files import dump, request, subagent, trace, write_lines

from agentx_engine.cli import corpus_tree
from agentx_engine.cli.parser import Parser
from agentx_engine.errors import UserError


def run(*argv: str) -> int:
    parser = Parser(prog="agentx-engine corpus")
    corpus_tree.add_parser(parser.add_subparsers(dest="command", required=True))
    return corpus_tree.run(parser.parse_args(["tree", *argv]))


def session(name: str = "a", **changes: Any) -> dict[str, Any]:
    """Turn 0 ends at 2 s; a subagent runs from 3 s to 8 s, turn 1 at 10 s waits for it; then another."""
    return trace(
        name,
        [request(0.0), subagent(3.0), request(10.0, **{"in": 256, "hash_ids": [1, 2, 3, 4]}),
         subagent(13.5, agent_id="agent_002")],
        **changes,
    )  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "two.jsonl", [session("a"), session("b", tool_tokens=0, system_tokens=0)])


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(dump(session()))
    assert run(str(path)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "a: 6 requests in 3 conversations over 16 s",
        "  1,216 tokens in, 60 out, 63.2 % of blocks seen before in the trace",
        "  declared prefix: 100 tool and 20 system tokens",
    ]
    assert lines[3].split() == [
        "conversation", "class", "turns", "from", "to", "first", "peak", "out", "pauses", "joins", "starts",
    ]  # fmt: skip
    rows = [line.split() for line in lines[4:]]
    assert rows == [
        ["root", "root", "2", "0", "10", "192", "256", "20", "8.0"],
        ["sa:agent_001", "sa", "2", "3", "6", "192", "192", "20", "1.0", "1", "after", "0", "+1.000"],
        ["sa:agent_002", "sa", "2", "14", "16", "192", "192", "20", "1.0", "-", "after", "1", "+1.500"],
    ]
    assert all(len(line) <= 100 for line in lines)


def test_turns(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(corpus), "--trace", "b", "--turns") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("b: ")
    turns = [line.split("hit ")[1] for line in lines if line.startswith("    turn")]
    assert turns == [
        "0/3  starts sa:agent_001",
        "3/4  starts sa:agent_002  waits for sa:agent_001",
        "0/3", "3/3", "3/3", "3/3",
    ]  # fmt: skip


def test_predecessors_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hidden agent between the root's turns: both order each other."""
    other = {"model": "other", "in": 128}
    path = tmp_path / "h.json"
    hidden = [request(3.0, hash_ids=[90, 91], **other), request(6.0, hash_ids=[90, 91], **other)]
    path.write_bytes(dump(trace("h", [request(0.0), *hidden, request(10.0)])))
    assert run(str(path), "--turns") == 0
    out = capsys.readouterr().out
    assert "after fa:000 1" in out
    assert "after root 0" in out


def test_json_is_one_document_a_line(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(corpus), "--json") == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["trace"] for document in documents] == ["a", "b"]
    branch = documents[0]["branches"][0]
    assert (branch["spawn_turn"], branch["join_turn"], branch["pause_ms"]) == (0, 1, 1000)
    assert documents[0]["conversations"][0]["turns"][1]["seg"] == [
        ["system", 128],
        ["user", 64],
        ["user", 64],
    ]


def test_as_the_harness_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Completion stamps with relative inner times: repaired by default, taken literally with --compat."""
    child = subagent(8.0, [request(0.0), request(3.0)])
    path = tmp_path / "k.json"
    path.write_bytes(dump(trace("k", [request(0.0), child, request(10.0), request(20.0)])))
    for extra, start, join, corrections in (
        ((), 3000, 1, ["subagent_clock"]),
        (("--compat", "harness"), 8000, 2, None),
    ):
        assert run(str(path), "--json", *extra) == 0
        document = json.loads(capsys.readouterr().out)
        (branch,) = document["branches"]
        assert (branch["start_ms"], branch["join_turn"]) == (start, join)
        assert document.get("corrections") == corrections
    assert run(str(path)) == 0
    assert "  repaired: subagent_clock\n" in capsys.readouterr().out


def test_what_is_left_out_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(dump(trace("d", [subagent(0.0), request(3.0), subagent(9.0, [], agent_id="idle")])))
    assert run(str(path)) == 0
    out = capsys.readouterr().out
    assert "left out: subagent agent_001 (2 requests), stands before the first root request" in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("  sa:idle")]
    assert row[:6] == ["sa:idle", "sa", "0", "-", "-", "-"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["{corpus}", "--trace", "c"], "--trace: {corpus} has no trace 'c'"),
        (["/nonexistent.json"], "/nonexistent.json"),
        (["{corpus}", "--jsn"], "unknown flag --jsn, did you mean --json?"),
        (["{corpus}", "--compat", "x"], "--compat: invalid choice"),
    ],
)
def test_mistakes(corpus: Path, argv: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        run(*(text.format(corpus=corpus) for text in argv))
    assert said.format(corpus=corpus) in str(caught.value)


def test_documents_of_real_traces(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shared / "traces" / "trace_0326.json"
    assert run(str(path), "--json", "--compat", "harness") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["branches"][0].pop("pause_ms") == pytest.approx(3_466_890, abs=10)
    assert document == json.loads((shared / "golden" / "dev" / path.name).read_text())


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from agentx_engine.cli import corpus_tree; from agentx_engine.cli.parser import Parser; "
        "corpus_tree.add_parser(Parser().add_subparsers()); "
        "print([m for m in ('numpy', 'msgspec', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
