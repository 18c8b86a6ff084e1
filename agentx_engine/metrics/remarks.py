"""What a reader of the numbers must know: one sentence for each thing that makes them mean less."""

from __future__ import annotations

from typing import Any

COALESCED_NO_STREAM = 0.95
SLACK_SHARE_BOUND = 0.01
LAG_BOUND_MS = {"dispatch_lag_armed_ms": 1.0, "dispatch_lag_reactive_ms": 2.0}


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({100 * part / whole:.1f} %)"


def remarks(summary: dict[str, Any]) -> list[str]:
    """Sentences about a summary (the body of summary.json), most serious first."""
    counts, tokens, client = summary["counts"], summary["tokens"], summary["client"]
    succeeded = counts["succeeded"]
    out: list[str] = []
    if not counts["finished"]:
        out.append("No request finished.")
    elif not succeeded:
        out.append("No request succeeded: there is no result.")
    records = summary.get("records")
    if records is not None and not records["complete"]:
        lost = records["dropped"] + records["lost"] + records["unfinished"]
        reason = records["error"] or "the disk was slower than the run"
        out.append(f"{lost:,} records are missing from the files: {reason}.")
    if client["defects"]:
        kinds = ", ".join(f"{k} {n:,}" for k, n in client["defects"].items())
        out.append(f"Defects of agentx-engine in the records, please report: {kinds}.")
    if counts["failed"] and succeeded:
        out.append(
            f"{_share(counts['failed'], counts['failed'] + succeeded)} requests failed; they have no latency."
        )
    for name, bound in LAG_BOUND_MS.items():
        lag = client[name]
        if lag is not None and lag["p99"] > bound:
            kind = "known in advance" if "armed" in name else "reactive"
            out.append(f"This client sent late: dispatch lag p99 {lag['p99']:.2f} ms for requests {kind}.")
    share = client["slack_above_1ms_share"]
    if share is not None and share > SLACK_SHARE_BOUND:
        out.append(
            f"{100 * share:.1f} % of the token times are uncertain by more than 1 ms (events shared a read)."
        )
    if succeeded:
        out += _about_answers(succeeded, tokens, client)
    if client["requests_stamped_in_user_space"]:
        out.append(
            f"{client['requests_stamped_in_user_space']:,} answers were stamped in user space, "
            "since the kernel gave no stamps."
        )
    return out


def _about_answers(succeeded: int, tokens: dict[str, Any], client: dict[str, Any]) -> list[str]:
    out: list[str] = []
    if tokens["requests_without_usage"]:
        out.append(
            f"{_share(tokens['requests_without_usage'], succeeded)} answers came without token counts; "
            "they are missing from token statistics and throughput."
        )
    if (client["coalesced_share"] or 0) >= COALESCED_NO_STREAM:
        out.append(
            "Nearly all events came many at a time: the server, or a proxy before it, does not really stream."
        )
    if tokens["short_answers"]:
        out.append(f"{_share(tokens['short_answers'], succeeded)} answers were shorter than was asked for.")
    if tokens["input_disagreements"]:
        out.append(
            f"In {_share(tokens['input_disagreements'], succeeded)} answers the server counts other prompt "
            "tokens than were sent (another tokenizer, a long template, or a cut prompt)."
        )
    if tokens["output_disagreements"]:
        out.append(
            f"In {_share(tokens['output_disagreements'], succeeded)} answers the server counts fewer tokens "
            "than it sent events."
        )
    return out
