"""What a reader of the numbers must know: one sentence for each thing that makes them mean less.

What the client itself did late, stalled or could not stamp is not here: that is the verdict
(`metrics.verdict`), which stands beside the result with its inputs and bounds.
"""

from __future__ import annotations

from typing import Any

COALESCED_NO_STREAM = 0.95


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({100 * part / whole:.1f} %)"


def remarks(summary: dict[str, Any]) -> list[str]:
    """Sentences about a summary (the body of summary.json), most serious first."""
    counts, tokens, client = summary["counts"], summary["tokens"], summary["client"]
    succeeded = counts["succeeded"]
    out: list[str] = list(summary["validity"]["caveats"])
    told = bool(summary["validity"]["submission_valid"])  # caveats tell of failures, where they matter
    if not succeeded and not told:
        out.append(
            "No request succeeded: there is no result." if counts["finished"] else "No request finished."
        )
    records = summary.get("records")
    if records is not None and not records["complete"]:
        lost = records["dropped"] + records["lost"] + records["unfinished"]
        reason = records["error"] or "the disk was slower than the run"
        out.append(f"{lost:,} records are missing from the files: {reason}.")
    if client["defects"]:
        kinds = ", ".join(f"{k} {n:,}" for k, n in client["defects"].items())
        out.append(f"Defects of agentx-engine in the records, please report: {kinds}.")
    if counts["failed"] and succeeded and not told:
        out.append(
            f"{_share(counts['failed'], counts['failed'] + succeeded)} requests failed; they have no latency."
        )
    if succeeded:
        out += _about_answers(succeeded, tokens, client)
    out += _about_the_load(summary)
    return out


def _about_the_load(summary: dict[str, Any]) -> list[str]:
    """Where it is not as recorded, or lanes were not as warm as they should be."""
    out: list[str] = []
    schedule, warmup = summary.get("schedule"), summary.get("warmup")
    if warmup is not None:
        cold = warmup["requests"] - warmup["by_outcome"].get("success", 0)
        if cold:
            out.append(
                f"{_share(cold, warmup['requests'])} warmup requests failed: their conversations began cold."
            )
    if schedule is None:
        return out
    if schedule["pauses_dropped"]:
        out.append(
            f"{schedule['pauses_dropped']:,} groups of subagents started without the recorded pause before "
            f"them, {schedule['pauses_dropped_s']:,.0f} s in all, as in the official harness."
        )
    if schedule["held_by_dead"]:
        out.append(
            f"{schedule['held_by_dead']:,} turns were never sent, since they waited for streams that had "
            "ended early, as in the official harness."
        )
    if schedule["barriers_broken"]:
        out.append(
            f"{schedule['barriers_broken']:,} turns were sent although what they were recorded after can no "
            "longer return."
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
