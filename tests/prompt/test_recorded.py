"""Prompts of real sessions: roles and token counts of every message equal the reference documents."""

import json

import pytest

from agentx_engine.corpus import open_corpus
from agentx_engine.prompt import BodyTemplate, PromptBuilder, default_pool
from agentx_engine.tree import TreeOptions, build_tree

TRACES = [
    "trace_0014",
    "trace_0277",
    "trace_0326",
]  # a hidden agent, declared prefix and subagents, another model


@pytest.mark.parametrize("name", TRACES)
def test_messages_of_every_turn(shared, name):
    golden = json.loads((shared / "golden" / "dev" / f"{name}.json").read_text())
    corpus = open_corpus(shared / "traces" / f"{name}.json", compat_harness=True)
    tree = build_tree(corpus.trace(0), TreeOptions.harness())
    builder = PromptBuilder(default_pool(), 42, BodyTemplate(["m"]))
    assert [c.id for c in tree.conversations] == [c["id"] for c in golden["conversations"]]
    for number, (conversation, expected) in enumerate(
        zip(tree.conversations, golden["conversations"], strict=True)
    ):
        prompt = builder.open(tree, number)
        for turn, reference in zip(conversation.turns, expected["turns"], strict=True):
            prompt.advance(turn)
            messages = json.loads(bytes(prompt.rope(turn)))["messages"]
            assert [[m["role"], m["content"].count(" ")] for m in messages] == reference["seg"]
            assert prompt.words == reference["in"]
