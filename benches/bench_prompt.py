"""Building one request of a long conversation, against encoding its body as JSON from strings.

The turn adds an answer of 512 tokens and 1,500 tokens of tool result (text is made for them) to a prompt of
about 130 messages and 130,000 tokens.

pytest benches/bench_prompt.py --benchmark-enable
"""

import json

import msgspec
import numpy as np
import pytest

from agentx_engine.prompt import BodyTemplate, PromptBuilder, default_pool
from agentx_engine.prompt.marker import marker_digest, marker_text
from agentx_engine.tree.model import Conversation, ConversationTree, Message, Turn

TURNS, ANSWER, RESULT, BLOCK = 65, 8, 23, 64
TAIL = 28


def session():
    """As recordings with tails are: each turn strips the last message's tail and sends its own."""
    turns, end = [], 0
    for k in range(TURNS):
        answer = ANSWER if k else 0
        stripped = [turns[-1].messages[-1]._replace(tail=0)] if k else []
        added = [Message("assistant", end, answer, 0)] if k else []
        added.append(Message("user", end + answer, RESULT, TAIL))
        blocks = answer + RESULT
        turns.append(
            Turn(
                index=k,
                source=(k, None),
                model="m",
                in_tokens=(end + blocks) * BLOCK + TAIL,
                max_tokens=500,
                recorded_out=500,
                start_ns=0,
                api_ns=None,
                delay_ns=0,
                keep_blocks=end,
                new_blocks=np.arange(end, end + blocks, dtype=np.int32),
                keep_messages=max(0, 2 * k - 2),
                messages=(*stripped, *added),
                hit_blocks=0,
                total_blocks=end + blocks,
            )
        )
        end += blocks
    root = Conversation(id="trace", kind="root", turns=tuple(turns))
    return ConversationTree("trace", BLOCK, 0, 0, (root,), ())


@pytest.mark.benchmark(group="the next request of 130 messages")
@pytest.mark.parametrize("how", ["advance and rope", "msgspec (reference)", "json (reference)"])
def test_turn(benchmark, how):
    tree = session()
    *before, last = tree.root.turns
    builder = PromptBuilder(default_pool(), 1, BodyTemplate(["m"]))

    def opened():
        prompt = builder.open(tree, 0, marker_text(marker_digest("bench", 0, 0, "trace")))
        for turn in before:
            prompt.advance(turn)
        prompt.rope(before[-1])
        return (prompt,), {}

    def build(prompt):
        prompt.advance(last)
        return prompt.rope(last)

    body = bytes(build(*opened()[0]))
    decoded = json.loads(body)
    if how.startswith("advance"):
        assert bytes(benchmark.pedantic(build, setup=opened, rounds=300, warmup_rounds=20)) == body
    elif how.startswith("msgspec"):
        assert benchmark(msgspec.json.encode, decoded) == body
    else:
        benchmark(lambda: json.dumps(decoded, separators=(",", ":")).encode())
    print(f"\n{how}: {benchmark.stats['median'] * 1e6:.0f} us for {len(body)} bytes")


@pytest.mark.benchmark(group="the first request of a session that starts late")
def test_start(benchmark):
    tree = session()
    builder = PromptBuilder(default_pool(), 1, BodyTemplate(["m"]))

    def start():
        prompt = builder.open(tree, 0, None)
        for turn in tree.root.turns:
            prompt.advance(turn)
        return prompt.rope(tree.root.turns[-1])

    benchmark(start)
