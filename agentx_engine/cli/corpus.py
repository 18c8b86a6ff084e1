"""agentx-engine corpus: look into traces, or make some."""

from __future__ import annotations

import argparse
import sys

from agentx_engine.cli import corpus_tree
from agentx_engine.cli.parser import Parser, count, path, seed

PROG = "agentx-engine corpus"


def build_parser() -> Parser:
    parser = Parser(prog=PROG, description="Look into trace files, or make synthetic ones.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    inspect = commands.add_parser(
        "inspect",
        help="sizes, pauses, prefix reuse and oddities of a corpus",
        description="Reads every trace once and prints sizes, pauses, prefix reuse and oddities.",
    )
    inspect.add_argument(
        "path", type=path, metavar="PATH", help="folder, .json or .jsonl file, also .gz and .zst"
    )
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.add_argument("--compat", choices=("harness",), help="read times as agentx-harness 1.0.12 does")
    corpus_tree.add_parser(commands)
    synth = commands.add_parser(
        "synth",
        help="write a synthetic corpus",
        description="Writes a synthetic corpus. The same arguments give the same bytes.",
    )
    synth.add_argument("--sessions", type=count, metavar="N", help="default: what the preset says")
    synth.add_argument("--seed", type=seed, default=0, metavar="N", help="default 0")
    synth.add_argument("--like", default="small", metavar="PRESET", help="default small")
    synth.add_argument("--out", required=True, type=path, metavar="FILE.jsonl", help="file to write")
    return parser


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    run = {"inspect": _inspect, "tree": corpus_tree.run, "synth": _synth}[args.command]
    return run(args)


def _inspect(args: argparse.Namespace) -> int:
    from agentx_engine.artifacts.folder import pretty
    from agentx_engine.corpus import open_corpus
    from agentx_engine.corpus.inspect import inspect_corpus, render

    corpus = open_corpus(
        args.path,
        compat_harness=args.compat == "harness",
        on_warning=lambda text: print(f"note: {text}", file=sys.stderr),
    )
    stats = inspect_corpus(corpus)
    if args.json:
        sys.stdout.write(pretty(stats).decode())
    else:
        print(render(stats))
    return 0


def _synth(args: argparse.Namespace) -> int:
    from agentx_engine.corpus.synth import describe, synthesize

    counts = synthesize(args.sessions, args.seed, args.out, like=args.like)
    print(f"{args.out}: {describe(counts)}")
    return 0
