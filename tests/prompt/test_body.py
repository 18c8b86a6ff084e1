"""The JSON around the messages: members, their order, what may be overridden, which model is named."""

import json

import pytest
from support.prompt_trees import tree, turn

from agentx_engine.errors import UserError
from agentx_engine.prompt import BodyTemplate


def members(template, model="m", max_tokens=312):
    behind = template.behind(model, max_tokens)
    assert behind.startswith(b"],")
    return json.loads(b'{"messages":[' + behind)


def test_members_in_order_and_compact():
    # agentx-v1, section 10.1
    assert BodyTemplate(["m"]).behind("a/b", 312) == (
        b'],"model":"a/b","stream":true,"max_completion_tokens":312,"ignore_eos":true,'
        b'"stream_options":{"include_usage":true}}'
    )


def test_options():
    template = BodyTemplate(["m"], limit_field="max_tokens", ignore_eos=False, include_usage=False)
    assert template.behind("m", 1) == b'],"model":"m","stream":true,"max_tokens":1}'


def test_extra_members_come_behind_the_limit_and_override_in_place():
    template = BodyTemplate(["m"], extra={"temperature": 0.5, "ignore_eos": False})
    assert list(members(template).items()) == [
        ("messages", []),
        ("model", "m"),
        ("stream", True),
        ("max_completion_tokens", 312),
        ("ignore_eos", False),
        ("temperature", 0.5),
        ("stream_options", {"include_usage": True}),
    ]


def test_an_overridden_limit_is_known():
    template = BodyTemplate(["m"], extra={"max_completion_tokens": 7, "max_tokens": 8})
    assert template.limit(312) == 7 == members(template)["max_completion_tokens"]
    assert members(template)["max_tokens"] == 8
    assert BodyTemplate(["m"]).limit(312) == 312
    assert BodyTemplate(["m"], limit_field="max_tokens", extra={"max_completion_tokens": 7}).limit(312) == 312


def test_stream_options_are_merged():
    extra = {"stream_options": {"chunk": 1}}
    assert members(BodyTemplate(["m"], extra=extra))["stream_options"] == {"include_usage": True, "chunk": 1}
    extra = {"stream_options": {"include_usage": False}}
    assert members(BodyTemplate(["m"], extra=extra))["stream_options"] == {"include_usage": False}


def test_text_is_escaped():
    text = 'quote " line \n \u00e9 \U0001f600'
    body = members(BodyTemplate(["m"], extra={text: text}), model=text)
    assert body["model"] == body[text] == text


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"messages": []}, "cannot be replaced"),
        ({"model": "other"}, "use --model"),
        ({"stream": False}, "only streamed answers"),
        ({"stream": None}, "only streamed answers"),
        ({"stream_options": [1]}, "an object is expected"),
        ({"max_tokens": "5"}, "whole number of tokens"),
        ({"max_completion_tokens": 0}, "whole number of tokens"),
        ({"max_completion_tokens": True}, "whole number of tokens"),
        ({"max_tokens": None}, "whole number of tokens"),
        ({"x": object()}, "cannot be written as JSON"),
        ({"x": "\ud800"}, "cannot be written as JSON"),
    ],
)
def test_extra_members_that_are_refused(extra, message):
    with pytest.raises(UserError, match=message) as error:
        BodyTemplate(["m"], extra=extra)
    assert repr(next(iter(extra))) in str(error.value)


def test_limit_fields():
    with pytest.raises(UserError, match="use max_completion_tokens or max_tokens"):
        BodyTemplate(["m"], limit_field="max_new_tokens")


def recorded(*calls):
    return [turn(k, [], model=model, source=source) for k, (model, source) in enumerate(calls)]


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ([], {"big": "big", "small": "small", "third": "third"}),
        (["one"], {"big": "one", "small": "one", "third": "one"}),
        (["one", "two"], {"big": "one", "small": "two", "third": "one"}),
        (["one", "two", "three", "four"], {"big": "one", "small": "two", "third": "three"}),
    ],
)
def test_models_are_mapped_in_order_of_first_appearance_in_the_file(configured, expected):
    # The subagent stands at position 0 of the file, but the first request of the root names the first model.
    root = recorded(("big", (1, None)), ("third", (4, None)))
    child = recorded(("small", (0, 0)), ("small", (0, 1)))
    flat = recorded(("third", (2, None)))
    assert BodyTemplate(configured).map_models(tree(root, child, flat)) == expected


def test_models_of_a_tree_without_turns():
    assert BodyTemplate(["one"]).map_models(tree([])) == {}
