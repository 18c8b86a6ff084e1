"""agentx-engine plan: what a run would do, without a server.

A mode is a flag of the group `mode` and a function in `_MODES`; without a flag it is the forecast. All modes
take the same corpus, lanes and seed, so that they speak of the same run. What only some modes read is
absent from the namespace if it was not given, and refused where it has no meaning.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agentx_engine.cli import plan_forecast
from agentx_engine.cli.parser import Parser, UsageError, count, lanes, or_off, path, seed, share, tokens

if TYPE_CHECKING:
    from agentx_engine.corpus import Corpus
    from agentx_engine.replay.corpus_trees import CorpusTrees
    from agentx_engine.replay.start import LaneStart
    from agentx_engine.replay.start_plan import LanePlan

PROG = "agentx-engine plan"
NS = 1e9
SEED = 42
START_RATIOS = (0.25, 0.75)

EPILOG = f"""\
{plan_forecast.EPILOG}
table of --lanes, per stream that is live at the lane's t*:
  t*, of    moment of the recording at which the lane begins, and the recording's length, seconds
  turn      the turn with which it goes on; - where the root has ended
  starts    seconds after profiling begins, before idle caps; >= for a root that waits for other streams
  feeds     root turn that waits for this stream
  primer    turn sent as warmup with one token of output, and when in the warmup
"""


def build_parser() -> Parser:
    parser = Parser(
        prog=PROG,
        description="Shows what a run would do. Sends nothing. Without --lanes: requests, tokens, bursts,\n"
        "pauses and memory of the run, from a replay under simulated time on a simple model of a server.",
        epilog=EPILOG,
        usage=f"{PROG} --corpus PATH [--lanes] [options]",
    )
    g = parser.add_argument_group("what to show (default: a forecast of the run)")
    mode = g.add_mutually_exclusive_group()
    mode.add_argument(
        "--lanes",
        dest="mode",
        action="store_const",
        const="lanes",
        default="forecast",
        help="where each lane begins: t*, live streams, gates, primers, first requests",
    )
    g.add_argument("--json", action="store_true", help="print JSON")
    g = parser.add_argument_group("the run")
    g.add_argument(
        "--corpus",
        required=True,
        type=path,
        metavar="PATH",
        help="folder, .json or .jsonl file of traces, also .gz and .zst",
    )
    g.add_argument(
        "--entries",
        type=or_off(count, "all"),
        default=argparse.SUPPRESS,
        metavar="N",
        help="only the first N traces (default: all)",
    )
    g.add_argument("--max-context", type=tokens, metavar="N", help="leave out traces that need more tokens")
    g.add_argument(
        "--concurrency",
        type=lanes,
        default=64,
        metavar="N",
        help="live sessions, subagents not counted (default 64)",
    )
    g.add_argument(
        "--seed",
        type=seed,
        default=argparse.SUPPRESS,
        metavar="N",
        help=f"of the schedule (default {SEED})",
    )
    g.add_argument(
        "--compat", choices=("harness",), help="harness: agentx-harness 1.0.12, known faults included"
    )
    low, high = START_RATIOS
    g.add_argument(
        "--trajectory-start-min-ratio",
        type=share,
        default=argparse.SUPPRESS,
        metavar="A",
        help="lanes begin in the middle of their sessions, not before this share of them (--lanes: default "
        f"{low}; forecast: 0 if only B is given, default: at the first turn)",
    )
    g.add_argument(
        "--trajectory-start-max-ratio",
        type=share,
        default=argparse.SUPPRESS,
        metavar="B",
        help=f"and not behind this one (--lanes: default {high}; forecast: 1 if only A is given)",
    )
    g.add_argument(
        "--burst-phase-starts",
        action="store_true",
        default=argparse.SUPPRESS,
        help="begin phases at once instead of as recorded",
    )
    parser.set_defaults(forecast_flags=plan_forecast.add_arguments(parser))
    return parser


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    if not Path(args.corpus).exists():
        raise UsageError(f"--corpus: {args.corpus} does not exist")
    return _MODES[args.mode](args)


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def _corpus(args: argparse.Namespace) -> Corpus:
    from agentx_engine.corpus import open_corpus

    given = vars(args)
    corpus = open_corpus(
        args.corpus,
        compat_harness=args.compat == "harness",
        max_request_tokens=given.get("max_request_tokens"),
        on_warning=_note,
    )
    entries = given.get("entries")
    if entries is None and args.max_context is None:
        return corpus
    return corpus.select(
        max_context=args.max_context, entries=entries, max_output_tokens=given.get("max_output_tokens")
    )


def _trees(args: argparse.Namespace, corpus: Corpus) -> CorpusTrees:
    from agentx_engine.replay.corpus_trees import CorpusTrees
    from agentx_engine.tree import TreeOptions

    options = TreeOptions.harness() if args.compat == "harness" else None
    return CorpusTrees(corpus, options, max_output_tokens=vars(args).get("max_output_tokens"))


# -- forecast


def _forecast(args: argparse.Namespace) -> int:
    values = plan_forecast.settings(args, _note)
    args.entries, args.max_output_tokens = values["entries"], values["max_output_tokens"]
    return plan_forecast.run(args, values, _trees(args, _corpus(args)))


# -- lanes


def _lanes(args: argparse.Namespace) -> int:
    for name, flag in args.forecast_flags.items():
        if name in args:
            raise UsageError(f"{flag}: has no meaning with --lanes; leave one out")
    given = vars(args)
    low = given.get("trajectory_start_min_ratio", START_RATIOS[0])
    high = given.get("trajectory_start_max_ratio", START_RATIOS[1])
    if low > high:
        raise UsageError(
            f"--trajectory-start-min-ratio: {low:g} is above --trajectory-start-max-ratio {high:g}; "
            "give both, the smaller one first"
        )
    from agentx_engine.artifacts.folder import pretty
    from agentx_engine.replay.start_document import start_document
    from agentx_engine.replay.start_plan import build_lanes

    corpus = _corpus(args)
    plan = build_lanes(_trees(args, corpus), args.concurrency, given.get("seed", SEED), low, high)
    if plan.skipped:
        _note(
            f"{len(plan.skipped):,} traces cannot be started and are skipped: {', '.join(plan.skipped[:5])}"
        )
    if len(plan.lanes) < plan.concurrency:
        _note(f"only {len(plan.lanes):,} of {plan.concurrency:,} lanes can be filled")
    if args.json:
        document = start_document(plan, burst="burst_phase_starts" in args)
        sys.stdout.write(pretty(document).decode())
    else:
        print("\n".join(render_lanes(plan, len(corpus), burst="burst_phase_starts" in args)))
    return 0


def render_lanes(plan: LanePlan, traces: int, *, burst: bool = False) -> Iterator[str]:
    """The lines of the table of lane starts."""
    times = plan.schedule(burst=burst)
    low, high = plan.ratios
    sent = [ns for lane in times.primers_ns for ns in lane]
    slots = [lane.slot_taken_by_lane for lane in plan.lanes]
    yield (
        f"{len(plan.lanes):,} lanes on {traces:,} traces, seed {plan.seed}, "
        f"t* from {low:g} to {high:g} of each recording"
    )
    yield (
        f"warmup      {len(sent):,} primers"
        + (f", the last sent after {max(sent) / NS:,.3f} s" if sent else "")
    )
    yield (
        f"profiling   begins {times.zero_ms / 1e3:,.3f} s after t*; "
        f"roots: {slots.count('gated_root'):,} wait for children, {slots.count('rootless'):,} have ended"
    )
    yield f"afterwards  the lane that drains first plays {plan.next_trace}"
    yield ""
    names = [name for lane in plan.lanes for name in (lane.trace_id, *map(str, _children(lane)))]
    width = max(len("stream"), *(len(name) + 2 for name in names))
    yield (
        f"{'lane':>5}  {'stream':<{width}}{'t*':>11}{'of':>11}{'turn':>6}{'starts':>15}{'feeds':>7}"
        f"{'primer':>8}{'sent':>8}"
    )
    for lane, primers_ns, streams_ns in zip(plan.lanes, times.primers_ns, times.streams_ns, strict=True):
        yield from _lane(lane, width, primers_ns, streams_ns)


def _children(lane: LaneStart) -> list[str]:
    return [s.id.removeprefix(f"{lane.trace_id}::") for s in lane.streams if s.branch is not None]


def _lane(
    lane: LaneStart, width: int, primers_ns: tuple[int, ...], streams_ns: tuple[int, ...]
) -> Iterator[str]:
    primers = {p.conversation: (p.turn, ns) for p, ns in zip(lane.primers, primers_ns, strict=True)}
    t_star = "-" if lane.t_star_ms is None else f"{lane.t_star_ms / 1e3:,.3f}"
    head = (
        f"{lane.lane:>5}  {lane.trace_id:<{width}}{t_star:>11}{(lane.last_ms - lane.first_ms) / 1e3:>11,.1f}"
    )
    if lane.root is None:
        yield f"{head}{'-':>6}"
    for stream, at_ns in zip(lane.streams, streams_ns, strict=True):
        if stream.branch is not None:
            name = stream.id.removeprefix(f"{lane.trace_id}::")
            head = f"{'':>5}  {f'  {name}':<{width}}{'':>11}{'':>11}"
        starts = f"{'>= ' if stream.gated else ''}{at_ns / NS:,.3f}"
        feeds = "" if stream.feeds_turn is None else f"{stream.feeds_turn}"
        primer, sent_ns = primers.get(stream.conversation, (None, 0))
        warm = "" if primer is None else f"{primer:>8}{sent_ns / NS:>8.3f}"
        yield f"{head}{stream.turn:>6}{starts:>15}{feeds:>7}{warm}".rstrip()


_MODES: dict[str, Callable[[argparse.Namespace], int]] = {"forecast": _forecast, "lanes": _lanes}
