"""The checks of whole runs find what they look for: one clean run, falsified in one place each time."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from support.path_runs import PathRun, run_path
from support.run_files import FILES, Line, LiveTree, read_run

from agentx_engine.corpus.synth import synthesize

MS = 1_000_000


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> PathRun:
    folder = tmp_path_factory.mktemp("clean")
    synthesize(4, 7, folder / "corpus.jsonl")
    argv = ("--concurrency", "5", "--duration", "5")
    done = run_path(folder / "corpus.jsonl", folder, *argv, limit_s=60)
    found = done.assert_clean()
    assert found.checked["joins"] and found.checked["next tree at the end of the last"]
    return done


def joining(done: PathRun) -> tuple[LiveTree, Line, Line]:
    """A turn that waited for a child, and that child's last turn."""
    for tree in done.run.trees(done.plans):
        for line in tree.lines[0]:
            for branch in tree.plan.tree.root.turns[line.turn].joins:
                last = tree.last(tree.plan.tree.branches[branch].children[0][0])
                if last is not None:
                    return tree, line, last
    raise AssertionError("no join in the run")


def server_line(done: PathRun, line: Line) -> Any:
    return next(entry for entry in done.log if entry.request_id == line.id)


def second_turn(done: PathRun) -> Line:
    return next(line for line in done.run.lines if line.turn == 1)


def wrong_prompt(done: PathRun) -> None:
    server_line(done, done.run.lines[3]).prompt_tokens += 1


def short_answer(done: PathRun) -> None:
    server_line(done, done.run.lines[3]).completion_tokens -= 1


def wrong_roles(done: PathRun) -> None:
    server_line(done, done.run.lines[3]).roles["user"] += 1


def other_limit(done: PathRun) -> None:
    server_line(done, done.run.lines[3]).max_tokens += 1


def client_tells_other_tokens(done: PathRun) -> None:
    done.run.lines[3].raw["metrics"]["input_sequence_length"]["value"] += 1


def other_source(done: PathRun) -> None:
    done.run.lines[3].extra["recorded_input_tokens"] += 64


def lost_record(done: PathRun) -> None:
    del done.run.lines[3]


def lost_record_that_was_not_counted(done: PathRun) -> None:
    line = done.run.lines.pop(3)
    counts = done.run.summary["counts"]
    for name in ("requests_started", "finished"):
        counts[name] -= 1
    done.run.counters["finished"] -= 1
    counts["by_outcome"][line.extra["outcome"]] -= 1


def sent_twice(done: PathRun) -> None:
    done.log.append(deepcopy(server_line(done, done.run.lines[3])))


def never_arrived(done: PathRun) -> None:
    done.log.remove(server_line(done, done.run.lines[3]))


def in_another_file(done: PathRun) -> None:
    done.run.lines[3].file = FILES[1]


def turn_played_twice(done: PathRun) -> None:
    second_turn(done).metadata["turn_index"] = 0


def child_with_the_id_of_its_root(done: PathRun) -> None:
    for line in done.run.lines:
        line.metadata["x_correlation_id"] = line.metadata["root_correlation_id"]


def pause_cut_short(done: PathRun) -> None:
    """The server saw the next turn a moment after the last, by everybody's clock."""
    tree = next(tree for tree in done.run.trees(done.plans) if tree.at(0, 1) is not None)
    first, second = tree.at(0, 0), tree.at(0, 1)
    assert first is not None and second is not None
    server_line(done, second).arrival_ns = server_line(done, first).last_token_ns + 1


def due_a_nanosecond_late(done: PathRun) -> None:
    second_turn(done).extra["stamps_unix_ns"]["due"] += 1


def sent_before_it_was_due(done: PathRun) -> None:
    line = done.run.lines[3]
    line.extra["stamps_unix_ns"]["first_sent"] = line.due - 1


def did_not_wait_for_a_child(done: PathRun) -> None:
    _, line, last = joining(done)
    server_line(done, line).arrival_ns = server_line(done, last).end_ns - 1


def child_never_ended(done: PathRun) -> None:
    _, _, last = joining(done)
    done.run.lines.remove(last)


def stopped_too_early(done: PathRun) -> None:
    """A turn that was due long before the end is missing."""
    live = [tree for tree in done.run.trees(done.plans) if not tree.over(0) and len(tree.lines[0]) > 1]
    done.run.replay["stopped_unix_ns"] += 10**12
    assert live


def sent_after_the_end(done: PathRun) -> None:
    done.run.replay["stopped_unix_ns"] = max(line.due for line in done.run.lines)


def lane_without_its_trace(done: PathRun) -> None:
    for line in done.run.lines:
        line.extra["lane"] = (line.extra["lane"] + 1) % done.run.lanes


def next_tree_late(done: PathRun) -> None:
    for line in done.run.lines:
        if line.extra["play"] > 0 and line.metadata["agent_depth"] == 0 and line.turn == 0:
            line.extra["stamps_unix_ns"]["due"] += MS


def play_counted_twice(done: PathRun) -> None:
    for line in done.run.lines:
        line.extra["play"] = 0


def lane_started_late(done: PathRun) -> None:
    done.run.replay["started_unix_ns"] -= 1


def answer_before_it_was_given(done: PathRun) -> None:
    done.run.lines[3].extra["stamps_unix_ns"]["first_content"] -= 10**10


def arrival_before_the_send(done: PathRun) -> None:
    entry = server_line(done, done.run.lines[3])
    entry.arrival_ns = done.run.monotonic(done.run.lines[3].stamp("first_sent")) - 1  # type: ignore[arg-type]


def prefix_not_found(done: PathRun) -> None:
    server_line(done, second_turn(done)).cached_tokens = 0


def prefix_of_another_tree(done: PathRun) -> None:
    line = next(line for line in done.run.lines if line.turn == 0 and line.metadata["agent_depth"] == 0)
    entry = server_line(done, line)
    entry.cached_tokens = entry.prompt_tokens


@pytest.mark.parametrize(
    ("falsify", "said"),
    [
        (wrong_prompt, "prompt tokens"),
        (short_answer, "completion tokens"),
        (wrong_roles, "roles"),
        (other_limit, "output limit"),
        (client_tells_other_tokens, "reported tokens"),
        (other_source, "a turn is its recorded request"),
        (lost_record, "started requests have a record"),
        (lost_record_that_was_not_counted, "the server's requests are the client's"),
        (sent_twice, "the server's requests are the client's"),
        (never_arrived, "successes were served"),
        (in_another_file, "files"),
        (turn_played_twice, "turns in order"),
        (child_with_the_id_of_its_root, "the root's id is the tree's"),
        (pause_cut_short, "the server saw the pause"),
        (due_a_nanosecond_late, "due"),
        (sent_before_it_was_due, "not sent early"),
        (did_not_wait_for_a_child, "joins"),
        (child_never_ended, "joined children are over"),
        (stopped_too_early, "all that was due was sent"),
        (sent_after_the_end, "nothing due after the end"),
        (lane_without_its_trace, "first traces"),
        (next_tree_late, "next tree at the end of the last"),
        (play_counted_twice, "plays"),
        (lane_started_late, "common start"),
        (answer_before_it_was_given, "token after it was given"),
        (arrival_before_the_send, "arrival after the send"),
        (prefix_not_found, "kept prefix"),
        (prefix_of_another_tree, "kept apart"),
    ],
)
def test_what_is_false_is_found(clean: PathRun, falsify: Callable[[PathRun], None], said: str) -> None:
    done = PathRun(
        clean.status, clean.shown, clean.errors, deepcopy(clean.run), clean.plans, deepcopy(clean.log)
    )
    falsify(done)
    problems = done.findings().problems
    assert any(problem.startswith(f"{said}:") for problem in problems), problems[:5]


def test_a_torn_line_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "aiperf_artifacts"
    folder.mkdir()
    (folder / FILES[0]).write_text('{"metadata": {}')
    with pytest.raises(ValueError, match="torn"):
        read_run(tmp_path)
