"""Recorded sessions against a server that nobody here wrote: NVIDIA Dynamo's frontend and mocker.

What is checked needs a real tokenizer and somebody else's chat template: the server's own counts, for every
request. Its prompt_tokens have to be the recorded tokens plus one function of the numbers of messages of
each role, and its completion_tokens the recorded answer. Prompts and answers are the recorded ones; only
pauses are shortened, so that lanes come far into the sessions within seconds. The server's tokenizer takes
a large prompt seconds, so a run of less than half a minute has few lanes and sessions of small prompts.

    tests/real/setup_dynamo.sh ~/.cache/agentx-engine/dynamo-venv     (or AGENTX_DYNAMO_VENV=DIR)
    pytest -s tests/real                                              (AGENTX_REAL_SECONDS=60 for longer runs)
"""

import json
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.dynamo import MODEL, VARIABLE, dynamo, dynamo_python
from support.path_runs import quicken, replaying, seconds
from support.run_files import Line, Plan, Roles, Run, read_plans, read_run

from agentx_engine.prompt.marker import marker_digest, marker_text
from agentx_engine.transport.probe import TemplateReport

SECONDS = seconds("AGENTX_REAL_SECONDS", 6)
LIMIT_S = SECONDS + 100
LONG = SECONDS >= 30
LANES = 16 if LONG else 4
# Prompts below 60,000 tokens, many with two messages of one role in a row.
SMALL = ("trace_0312", "trace_0403", "trace_0505", "trace_0722")


@pytest.fixture(scope="module")
def server(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    python = dynamo_python()
    if python is None:
        pytest.skip(f"needs Dynamo: run tests/real/setup_dynamo.sh DIR, and give DIR as {VARIABLE}")
    with dynamo(
        python, shared / "tokenizers/deepseek", tmp_path_factory.mktemp("dynamo"), speedup=100
    ) as url:
        yield url


@pytest.fixture(scope="module")
def corpus(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for source in sorted((shared / "traces").glob("trace_*.json")):
        if LONG or source.stem in SMALL:
            quicken(source, folder / source.name, times=1000)
    return folder


def replay(server: str, corpus: Path, out: Path, *argv: str) -> Run:
    argv = ("--concurrency", str(LANES), "--duration", str(SECONDS), "--grace", "60", *argv)
    with replaying(server, corpus, out, *argv) as process:
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    run = read_run(out)
    assert run.summary["client"]["defects"] == {}
    assert run.summary["counts"]["by_outcome"] == {"success": len(run.lines)}
    assert len(run.lines) >= 10
    return run


def template(run: Run) -> TemplateReport:
    """What the run's own probes had found of the chat template."""
    found = TemplateReport(**run.facts["preflight"]["template"])
    assert found.fit, found.reason
    return found


def excess(run: Run, plans: dict[str, Plan]) -> list[tuple[Line, Roles, int]]:
    """For each request its messages by role, and what the server counted beyond the recorded tokens."""
    found = []
    for line in run.lines:
        plan = plans[line.metadata["source_trace_id"]]
        roles = plan.roles[plan.numbers[line.metadata["conversation_id"]], line.turn]
        counted = line.metric("input_sequence_length")
        assert counted is not None
        found.append((line, roles, round(counted) - plan.recorded(*line.source).in_tokens))
    return found


def check_answers(run: Run, plans: dict[str, Plan]) -> None:
    for line in run.lines:
        recorded = plans[line.metadata["source_trace_id"]].recorded(*line.source)
        assert line.metric("output_sequence_length") == max(1, recorded.out_tokens), str(line)


@pytest.mark.timeout(LIMIT_S + 100)
def test_prompts_are_the_recorded_ones(server: str, corpus: Path, tmp_path: Path) -> None:
    """Without a marker: tokens beyond the recording are one function of the roles, as it was probed."""
    run, plans = replay(server, corpus, tmp_path / "run", "--cache-bust", "none"), read_plans(corpus)
    check_answers(run, plans)
    found = excess(run, plans)
    values: dict[Roles, Counter[int]] = defaultdict(Counter)
    for _, roles, more in found:
        values[roles][more] += 1
    unlike = {roles: counts for roles, counts in values.items() if len(counts) > 1}
    assert not unlike, unlike

    counts = np.array([[1, *roles] for roles in values], dtype=float)
    extra = np.array([next(iter(c)) for c in values.values()], dtype=float)
    solution, _, rank, _ = np.linalg.lstsq(counts, extra, rcond=None)
    print(
        f"\n{len(found)} requests, {len(values)} combinations of roles, rank {rank}: prompt_tokens - in = "
        + " + ".join(
            f"{c:.3f} {name}" for c, name in zip(solution, ("", "system", "user", "assistant"), strict=True)
        )
    )
    # Where roles only alternate, the share of the user's messages cannot be told from the assistant's.
    assert any(user != assistant + 1 for _, user, assistant in values)
    assert np.abs(counts @ solution - extra).max() < 1e-6
    probed = template(run)
    print(
        f"probed before the run: {probed.base} + {probed.system} system + {probed.user} user + "
        f"{probed.assistant} assistant"
    )
    assert all(more == probed.overhead(*roles) for _, roles, more in found)


@pytest.mark.timeout(LIMIT_S + 100)
def test_a_marker_costs_its_own_tokens(server: str, corpus: Path, tmp_path: Path) -> None:
    """With markers: the same, plus what the server counts for this very marker before a few words."""
    run, plans = replay(server, corpus, tmp_path / "run"), read_plans(corpus)
    check_answers(run, plans)
    probed = template(run)
    plain = prompt_tokens(server, "time after the day")
    costs: dict[str, int] = {}
    for line, roles, more in excess(run, plans):
        trace_id = line.metadata["source_trace_id"]
        text = marker_text(
            marker_digest(run.facts["run_id"], line.extra["play"], line.extra["lane"], trace_id)
        )
        if text not in costs:
            costs[text] = prompt_tokens(server, text + "time after the day") - plain
        assert more == probed.overhead(*roles) + costs[text], f"{line}: {roles}"
        assert line.extra["marker_tokens"] == round(probed.marker)
    print(
        f"\n{len(run.lines)} requests, {len(costs)} markers of {min(costs.values())} to "
        f"{max(costs.values())} tokens; probed {probed.marker_min} to {probed.marker_max}"
    )


def prompt_tokens(server: str, text: str) -> int:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    request = urllib.request.Request(
        f"{server}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(json.load(answer)["usage"]["prompt_tokens"])
