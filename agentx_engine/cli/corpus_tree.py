"""agentx-engine corpus tree: what the engine makes of a recorded session."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentx_engine.cli.parser import path

if TYPE_CHECKING:
    from agentx_engine.cli.parser import Parser
    from agentx_engine.tree.model import Branch, Conversation, ConversationTree, Turn

NS = 1e9

EPILOG = """\
table, per conversation:
  from, to     recorded start of the first and the last turn, seconds
  first, peak  tokens of the first and of the largest prompt
  out          output tokens, all turns
  pauses       recorded pauses between turns, summed, seconds
  joins        root turn that waits for it; - for none
  starts       `after 3 +0.7`: 0.7 s after the root's turn 3 returned; `with 3 +6`: 6 s after it was sent

--json prints one document per trace, each on a line of its own.
"""


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    tree = commands.add_parser(
        "tree",
        help="conversations, spawns, joins and delays of reconstructed sessions",
        description="Reconstructs each trace and prints its conversations: who starts whom, who waits for "
        "whom,\nhow long the pauses are, how large the prompts.",
        epilog=EPILOG,
    )
    tree.add_argument(
        "path", type=path, metavar="FILE|DIR", help="folder, .json or .jsonl file, also .gz and .zst"
    )
    tree.add_argument("--trace", action="append", metavar="ID", help="only this trace; again for more")
    tree.add_argument("--turns", action="store_true", help="also print every turn")
    tree.add_argument("--json", action="store_true", help="print JSON, every turn included")
    tree.add_argument(
        "--compat", choices=("harness",), help="reconstruct as agentx-harness 1.0.12 does, faults included"
    )


def run(args: argparse.Namespace) -> int:
    import msgspec

    from agentx_engine.cli.parser import UsageError, hint
    from agentx_engine.corpus import open_corpus
    from agentx_engine.tree import TreeOptions, build_tree, to_document

    harness = args.compat == "harness"
    corpus = open_corpus(
        args.path,
        compat_harness=harness,
        on_warning=lambda text: print(f"note: {text}", file=sys.stderr),
    )
    places = {name: index for index, name in enumerate(corpus.ids)}
    for name in args.trace or ():
        if name not in places:
            raise UsageError(f"--trace: {args.path} has no trace {name!r}{hint(name, corpus.ids)}")
    options = TreeOptions.harness() if harness else TreeOptions()
    wanted = [places[name] for name in args.trace] if args.trace else range(len(corpus))
    for number, index in enumerate(wanted):
        trace = corpus.trace(index)
        tree = build_tree(trace, options)
        if args.json:
            sys.stdout.write(msgspec.json.encode(to_document(tree, trace)).decode() + "\n")
        else:
            lines = render(tree, turns=args.turns)
            print("\n".join(["", *lines] if number else lines))
    return 0


def render(tree: ConversationTree, *, turns: bool = False) -> Iterator[str]:
    """The lines of the table of one tree."""
    played = [conversation for conversation in tree.conversations if conversation.turns]
    all_turns = [turn for conversation in played for turn in conversation.turns]
    first_ns, last_ns = min(t.start_ns for t in all_turns), max(t.start_ns for t in all_turns)
    blocks = sum(turn.total_blocks for turn in all_turns)
    hits = sum(turn.hit_blocks for turn in all_turns)
    yield (
        f"{tree.trace_id}: {_counted(len(all_turns), 'request')} in "
        f"{_counted(len(tree.conversations), 'conversation')} over {(last_ns - first_ns) / NS:,.0f} s"
    )
    yield (
        f"  {sum(t.in_tokens for t in all_turns):,} tokens in, {sum(t.recorded_out for t in all_turns):,} out"
        + (f", {100 * hits / blocks:.1f} % of blocks seen before in the trace" if blocks else "")
    )
    if tree.tool_tokens or tree.system_tokens:
        yield f"  declared prefix: {tree.tool_tokens:,} tool and {tree.system_tokens:,} system tokens"
    if tree.corrections:
        yield f"  repaired: {', '.join(tree.corrections)}"
    for dropped in tree.dropped:
        lost = _counted(dropped.requests, "request")
        yield f"  left out: subagent {dropped.agent_id} ({lost}), {dropped.reason}"
    width = max(len("conversation"), *(len(short_name(tree, c)) for c in tree.conversations)) + 2
    yield (
        f"  {'conversation':<{width}}{'class':<5}{'turns':>6}{'from':>8}{'to':>8}{'first':>9}{'peak':>9}"
        f"{'out':>8}{'pauses':>9}{'joins':>6}  starts"
    )
    spawned = {child: (branch, delay) for branch in tree.branches for child, delay in branch.children}
    for number, conversation in enumerate(tree.conversations):
        yield f"  {_conversation(tree, conversation, width, spawned.get(number))}".rstrip()
        if turns:
            yield from (f"    {_turn(tree, conversation, turn)}".rstrip() for turn in conversation.turns)


def short_name(tree: ConversationTree, conversation: Conversation) -> str:
    """The id without the trace's, `root` for the root."""
    if conversation.parent is None:
        return "root"
    return conversation.id.removeprefix(f"{tree.trace_id}::")


def _conversation(
    tree: ConversationTree, conversation: Conversation, width: int, spawned: tuple[Branch, int] | None
) -> str:
    turns = conversation.turns
    name = f"{short_name(tree, conversation):<{width}}{conversation.agent_class:<5}{len(turns):>6,}"
    numbers = f"{'-':>8}{'-':>8}{'-':>9}{'-':>9}{'-':>8}{'-':>9}"
    if turns:
        numbers = (
            f"{turns[0].start_ns / NS:>8,.0f}{turns[-1].start_ns / NS:>8,.0f}{turns[0].in_tokens:>9,}"
            f"{max(t.in_tokens for t in turns):>9,}{sum(t.recorded_out for t in turns):>8,}"
            f"{sum(t.delay_ns for t in turns) / NS:>9,.1f}"
        )
    if spawned is None:
        return name + numbers
    branch, delay_ns = spawned
    after = "with" if branch.when == "issue" else "after"
    starts = f"{after} {branch.spawn_turn} +{_seconds(branch.pause_ns + delay_ns)}"
    return f"{name}{numbers}{'-' if branch.join_turn is None else branch.join_turn:>6}  {starts}"


def _turn(tree: ConversationTree, conversation: Conversation, turn: Turn) -> str:
    api = "-" if turn.api_ns is None else _seconds(turn.api_ns)
    line = (
        f"turn {turn.index:<5,} at {_seconds(turn.start_ns):>11}  took {api:>8}"
        f"  pause {_seconds(turn.delay_ns):>10}  in {turn.in_tokens:>9,}  out {turn.recorded_out:>6,}"
        f"  hit {turn.hit_blocks:,}/{turn.total_blocks:,}"
    )
    for word, branches in (("starts", turn.spawns), ("waits for", turn.joins)):
        names = [
            short_name(tree, tree.conversations[child])
            for number in branches
            for child, _ in tree.branches[number].children
        ]
        if names:
            line += f"  {word} {', '.join(names)}"
    after = [f"{short_name(tree, tree.conversations[c])} {k}" for c, k in turn.predecessors]
    return line + (f"  after {', '.join(after)}" if after else "")


def _seconds(ns: int) -> str:
    return f"{ns / NS:,.3f}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
