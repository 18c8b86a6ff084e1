"""The result for people: a plain table of at most 100 columns, the client's own error beside it."""

from __future__ import annotations

from typing import Any

WIDTH = 100
RED, PLAIN = "\x1b[31m", "\x1b[0m"
_COLUMNS = ("mean", "p50", "p75", "p90", "p95", "p99", "max")
_LATENCIES = (
    ("TTFT", "time_to_first_token"),
    ("TTFT from last byte sent", "time_to_first_token_from_last_byte"),
    ("first visible token", "time_to_first_output_token"),
    ("ITL, mean of a request", "inter_token_latency"),
    ("gap between chunks", "inter_chunk_gap"),
    ("request latency", "request_latency"),
    ("  from the intended time", "request_latency_from_due"),
    ("full-response ITL", "full_response_inter_token_latency"),
)
_OWN = (
    ("dispatch lag, armed", "dispatch_lag_armed_ms"),
    ("dispatch lag, reactive", "dispatch_lag_reactive_ms"),
    ("sending a request", "request_send_ms"),
    ("read lag", "read_lag_ms"),
    ("slack of shared reads", "slack_of_coalesced_ms"),
    ("collector pauses", "collector_pause_ms"),
)


def number(value: float | None) -> str:
    """Four significant digits, thousands separated; '-' for what was not measured."""
    if value is None:
        return "-"
    size = abs(value)
    digits = 0 if size >= 1000 or value == int(value) else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    return "not reported" if share is None else f"{100 * share:.1f} %"


def _row(label: str, stats: dict[str, float] | None) -> str:
    cells = [f"{stats['count']:,}" if stats else "0"]
    cells += [number(stats[c]) if stats else "-" for c in _COLUMNS]
    return f"{label:<25}" + f"{cells[0]:>9}" + "".join(f"{c:>9}" for c in cells[1:])


def _head(title: str) -> str:
    return f"{title:<25}{'count':>9}" + "".join(f"{c:>9}" for c in _COLUMNS)


def _wrap(text: str, first: str, rest: str) -> list[str]:
    import textwrap

    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _client(verdict: dict[str, Any] | None, colour: bool) -> list[str]:
    """Whether the client was the limit, with the reasons if it was."""
    if verdict is None:
        return ["client: not judged"]
    missing = f" (not measured: {', '.join(verdict['missing'])})" if verdict["missing"] else ""
    if verdict["client"] == "ok":
        return _wrap(f"client: ok{missing}", "", "  ")
    lines = _wrap(f"client: LIMITED, the numbers are not the server's alone{missing}", "", "  ")
    for reason in verdict["reasons"]:
        lines += _wrap(reason, "  ! ", "    ")
    for note in verdict["notes"]:
        lines += _wrap(note, "    ", "    ")
    return [f"{RED}{line}{PLAIN}" for line in lines] if colour else lines


def _validity(validity: dict[str, Any]) -> list[str]:
    if validity["scenario"] is None:
        return []
    valid = "true" if validity["submission_valid"] else "false"
    reasons = ", ".join(validity["submission_invalid_reasons"])
    return _wrap(
        f"scenario     {validity['scenario']}: submission_valid {valid}"
        + (f" ({reasons})" if reasons else ""),
        "",
        "  ",
    )


def _load(summary: dict[str, Any]) -> list[str]:
    """What was left out, and what came before the measured phase."""
    lines: list[str] = []
    corpus, warmup = summary["corpus"], summary["warmup"]
    if corpus["left_out"] or corpus["requests_left_out"]:
        what = [f"{n:,} traces by {name.replace('_', '-')}" for name, n in corpus["left_out"].items()]
        if corpus["requests_left_out"]:
            what.append(f"{corpus['requests_left_out']:,} requests by max-request-tokens")
        lines += _wrap(f"corpus       {corpus['traces']:,} traces; left out: {', '.join(what)}", "", " " * 13)
    if warmup is not None:
        took = "not finished" if warmup["ended_s"] is None else f"{warmup['ended_s']:,.1f} s"
        missing = f", {warmup['extra_missing']:,} missing" if warmup["extra_missing"] else ""
        lines += _wrap(
            f"warmup       {warmup['primers']:,} primers and {warmup['extra_requests']:,} requests more"
            f"{missing}, {took}; not counted below",
            "",
            " " * 13,
        )
    return lines


def render(summary: dict[str, Any], folder: str, *, colour: bool = False) -> str:
    """The table of a summary (the content of summary.json)."""
    counts, tokens, client = summary["counts"], summary["tokens"], summary["client"]
    throughput, cache = summary["throughput"], summary["prefix_cache"]
    settings = summary["settings"]
    server = ", ".join(settings["urls"]) or "simulated server"
    lines = [
        "",
        *_wrap(
            f"run {summary['run_id']}: {settings['concurrency']:,} lanes on {server}, "
            f"{summary['elapsed_s']:,.1f} s, ended by {summary['ended_by'].replace('_', ' ')}",
            "",
            "  ",
        ),
        *_client(summary["verdict"], colour),
        *_validity(summary["validity"]),
        "",
        *_load(summary),
        f"requests     {counts['succeeded']:,} succeeded, {counts['failed']:,} failed, "
        f"{counts['cancelled']:,} cancelled at the end; "
        f"trees {counts['trees_finished']:,} finished of {counts['trees_started']:,} started",
    ]
    for error in summary["errors"][:5]:
        what = " ".join(
            str(x) for x in (error["outcome"], error["status"], error["error_type"]) if x is not None
        )
        lines += _wrap(f"{error['count']:,} x {what}: {error['message'] or '-'}", "  failed     ", " " * 15)[
            :2
        ]
    if len(summary["errors"]) > 5:
        lines.append(f"  failed     and {len(summary['errors']) - 5} more kinds, see summary.json")
    lines += [
        f"throughput   {number(throughput['requests_per_s'])} requests/s, "
        f"tokens/s: input {number(throughput['input_tokens_per_s'])}, "
        f"output {number(throughput['output_tokens_per_s'])}, "
        f"total {number(throughput['total_tokens_per_s'])}",
        f"prefix cache {percent(cache['theoretical']['hit_rate'])} of blocks at best; the server reports "
        f"{percent(cache['reported']['hit_rate'] if cache['reported'] else None)}",
        "",
        _head("milliseconds"),
    ]
    latency = summary["latency_ms"]
    lines += [_row(label, latency[name]) for label, name in _LATENCIES]
    lines += [
        _head("tokens"),
        _row("input", tokens["input_sequence_length"]),
        _row("output", tokens["output_sequence_length"]),
    ]
    speed = summary["interactivity_tokens_per_s"]["per_user"]
    if speed:
        cells = "".join(f"{number(speed.get(c)):>9}" for c in _COLUMNS)
        lines.append(f"{'tokens/s of one user':<25}{'':>9}{cells}")
    lines += ["", _head("this client's own error, ms")]
    lines += [_row(label, client[name]) for label, name in _OWN if client.get(name) is not None]
    if client["content_events"]:
        lines.append(
            f"token times: {percent(client['coalesced_share'])} shared a read, "
            f"{percent(client['slack_above_1ms_share'])} uncertain by more than 1 ms"
        )
    lines.append("")
    for text in summary["remarks"]:
        lines += _wrap(text, "! ", "  ")
    lines.append(f"artifacts    {folder}")
    return "\n".join(lines)
