"""agentx-engine plan without --lanes: what a run will look like, on a model of the server."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentx_engine.cli.flags import SCENARIOS
from agentx_engine.cli.parser import (
    Parser,
    UsageError,
    or_off,
    per_lane,
    seconds,
    seconds_or_zero,
    tokens,
    whole,
)

if TYPE_CHECKING:
    from agentx_engine.replay.forecast import ServerSpec
    from agentx_engine.replay.options import ReplayOptions
    from agentx_engine.replay.protocols import TreeSource

NS = 1_000_000_000
MAX_NUMBER = 10**9
PRIMER_LEAD_CAP_S = 10.0  # where the system has no idle cap

EPILOG = """\
forecast:
  The replay itself under simulated time, against a model of a server instead of a server. Sizes, prefixes and
  pauses are the recording's; when things happen, and so all rates, peaks and shares of time, also depends on
  the server and is as good as the model, whose parameters are yours. It is written below the figures.

  in flight     sent and not yet fully answered, weighted by time; the curve shows the maxima of 60 windows
  busy, idle    share of the lanes' time with, and without, a request in flight
  recycled      sessions of a trace which had been started before in this run
  at best       theoretical prefix hit of the recording, by blocks (an unbounded cache, recorded order)
  KV, in flight distinct blocks of all prompts in flight, and their whole answers
  KV, live      distinct blocks of the last prompts of all live conversations: what a cache must hold so that
                nothing is computed twice
  memory        an estimate: the process, and 5 bytes per token of every prompt that is alive
"""

# Settings of the run, by the names that scenarios have for them, and what they are if nobody says.
_RUN: dict[str, Any] = {
    "duration_s": 600.0,
    "grace_s": 30.0,
    "cache_bust": "first-turn-prefix",
    "seed": 42,
    "entries": None,
    "max_output_tokens": None,
    "trajectory_start_min_ratio": None,
    "trajectory_start_max_ratio": None,
    "burst_phase_starts": False,
    "warmup_requests_per_lane": None,
    "warmup_duration_s": None,
    "warmup_grace_s": 1800.0,
    "system_idle_gap_cap_s": None,
    "trace_idle_gap_cap_s": None,
}
_SERVER: dict[str, Any] = {
    "ttft_ms": 50.0,
    "prefill_tokens_per_s": 20_000.0,
    "prefill_shared": False,
    "itl_ms": 15.0,
    "itl_slope_us": 0.0,
    "cache_tokens": "infinite",
}


def not_negative(text: str) -> float:
    """A number from 0 to 10^9; 20_000 and 20,000 are accepted."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        number = math.nan
    if not 0 <= number <= MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"a number from 0 to {MAX_NUMBER:,} is expected, not {text[:40]!r}")
    return number


def positive(text: str) -> float:
    """A finite number above 0."""
    number = not_negative(text)
    if number < 1e-3:
        raise argparse.ArgumentTypeError(f"a number above 0 is expected, not {text!r}")
    return number


def capacity(text: str) -> int | str:
    """A number of tokens, or `infinite`."""
    return text if text == "infinite" else whole(text)


def add_arguments(parser: Parser) -> dict[str, str]:
    """Adds the flags of the forecast, which have no defaults here: flag by name in the namespace."""
    added: dict[str, str] = {}

    def add(group: Any, *flags: str, **settings: Any) -> None:
        added[group.add_argument(*flags, default=argparse.SUPPRESS, **settings).dest] = flags[0]

    g = parser.add_argument_group("forecast (not with --lanes)")
    add(g, "--scenario", choices=SCENARIOS, help="fills in what is not given, as for `replay`")
    add(
        g,
        "--duration",
        dest="duration_s",
        type=seconds,
        metavar="S",
        help="nothing is sent after it (default 600)",
    )
    add(
        g,
        "--grace",
        dest="grace_s",
        type=seconds_or_zero,
        metavar="S",
        help="time for requests in flight at the end (default 30)",
    )
    add(
        g,
        "--max-request-tokens",
        type=tokens,
        metavar="N",
        help="leave out requests of more input and output tokens",
    )
    add(
        g,
        "--max-output-tokens",
        type=or_off(tokens),
        metavar="N",
        help="cap of answers; recorded subagents have none (default off)",
    )
    add(
        g,
        "--cache-bust",
        choices=("first-turn-prefix", "none"),
        help="marker that keeps sessions apart in the prefix cache (default first-turn-prefix)",
    )
    add(
        g,
        "--warmup-requests-per-lane",
        type=or_off(per_lane),
        metavar="N",
        help="requests of one token before the measured phase, without pauses (default 0)",
    )
    add(
        g,
        "--warmup-duration",
        dest="warmup_duration_s",
        type=or_off(seconds),
        metavar="S",
        help="the same by time",
    )
    add(
        g,
        "--warmup-grace-period",
        dest="warmup_grace_s",
        type=or_off(seconds_or_zero),
        metavar="S",
        help="time for the last warmup requests, then the run fails (default 1800)",
    )
    add(
        g,
        "--system-idle-gap-cap",
        dest="system_idle_gap_cap_s",
        type=or_off(seconds),
        metavar="S",
        help="bring everything forward when nothing was in flight for so long (default off)",
    )
    add(
        g,
        "--trace-idle-gap-cap",
        dest="trace_idle_gap_cap_s",
        type=or_off(seconds),
        metavar="S",
        help="bring one session forward when it was idle for so long (default off)",
    )
    g = parser.add_argument_group("the server as it is taken to be (not with --lanes)")
    add(g, "--ttft-ms", type=not_negative, metavar="MS", help="time to first token (default 50)")
    add(
        g,
        "--prefill-tokens-per-s",
        type=positive,
        metavar="N",
        help="uncached prompt tokens computed per second, on top of --ttft-ms (default 20,000)",
    )
    add(
        g,
        "--prefill-shared",
        action="store_true",
        help="prompts are computed one after another at that rate (default: each at that rate)",
    )
    add(g, "--itl-ms", type=not_negative, metavar="MS", help="time between two tokens (default 15)")
    add(
        g,
        "--itl-slope-us",
        type=not_negative,
        metavar="US",
        help="added to it for each request that decodes (default 0)",
    )
    add(
        g,
        "--cache-tokens",
        type=capacity,
        metavar="N",
        help="size of the prefix cache, 0 = none (default infinite)",
    )
    return added


def settings(args: argparse.Namespace, note: Callable[[str], None]) -> dict[str, Any]:
    """The run: what was given, then the scenario's values, then the defaults of `replay`."""
    given = {name: value for name, value in vars(args).items() if name in _RUN}
    if given.get("warmup_duration_s") and given.get("warmup_requests_per_lane"):
        raise UsageError("--warmup-duration: not together with --warmup-requests-per-lane; leave one out")
    values = _RUN | given
    scenario: str | None = vars(args).get("scenario")
    if scenario is not None:
        from agentx_engine.scenario import apply, scenario_named
        from agentx_engine.scenario.vocabulary import LOCAL, RANDOM

        applied = apply(scenario_named(scenario), given | {"loader": LOCAL})
        values |= {name: value for name, value in applied.effective.items() if name in _RUN}
        for violation in applied.violations:
            if violation.setting != "loader":  # which traces a run may have is not asked here
                note(f"such a run breaks a rule of {scenario}: {violation}")
        if values["seed"] == RANDOM:
            values["seed"] = _RUN["seed"]
            note(f"{scenario} draws its seed; this is the forecast for seed {values['seed']}")
    return values


def run(args: argparse.Namespace, values: dict[str, Any], trees: TreeSource) -> int:
    """Makes and prints the forecast. `values` are those of `settings`."""
    from agentx_engine.artifacts.folder import pretty
    from agentx_engine.cli.forecast_table import render
    from agentx_engine.replay.forecast import forecast

    result = forecast(trees, _options(args, values), _server(args))
    if args.json:
        sys.stdout.write(pretty(result).decode())
    else:
        print("\n".join(render(result)))
    return 0


def _options(args: argparse.Namespace, values: dict[str, Any]) -> ReplayOptions:
    from agentx_engine.replay.options import ReplayOptions

    low, high = values["trajectory_start_min_ratio"], values["trajectory_start_max_ratio"]
    ratios = None
    if low is not None or high is not None:
        ratios = (0.0 if low is None else low, 1.0 if high is None else high)
        if ratios[0] > ratios[1]:
            raise UsageError(
                f"--trajectory-start-min-ratio: {ratios[0]:g} is above --trajectory-start-max-ratio "
                f"{ratios[1]:g}"
            )
    # Under a scenario, sessions go on as the official harness lets them.
    own_way = "scenario" not in args and args.compat != "harness"
    return ReplayOptions(
        concurrency=args.concurrency,
        duration_ns=_ns(values["duration_s"]),
        grace_ns=round(values["grace_s"] * NS),
        marker=values["cache_bust"] != "none",
        marker_tokens=0,  # tokens are counted as recorded
        start_ratios=ratios,
        seed=values["seed"],
        burst_starts=values["burst_phase_starts"],
        primer_lead_cap_ns=_ns(values["system_idle_gap_cap_s"] or PRIMER_LEAD_CAP_S),
        warmup_requests_per_lane=values["warmup_requests_per_lane"] or 0,
        warmup_duration_ns=_ns(values["warmup_duration_s"]),
        warmup_grace_ns=_ns(values["warmup_grace_s"]),
        system_idle_cap_ns=_ns(values["system_idle_gap_cap_s"]),
        tree_idle_cap_ns=_ns(values["trace_idle_gap_cap_s"]),
        child_pause=own_way,
        release_dead=own_way,
    )


def _ns(value_s: float | None) -> int | None:
    return None if value_s is None else round(value_s * NS)


def _server(args: argparse.Namespace) -> ServerSpec:
    from agentx_engine.replay.forecast import ServerSpec

    values = _SERVER | {name: value for name, value in vars(args).items() if name in _SERVER}
    if values["cache_tokens"] == "infinite":
        values["cache_tokens"] = None
    return ServerSpec(**values)
