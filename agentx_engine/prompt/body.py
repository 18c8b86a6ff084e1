"""The JSON around the messages of a chat completion request.

Key order and members are those of agentx-v1, section 10.1: messages, model, stream, the output limit,
extra members, stream_options. `ignore_eos` counts as the first extra member. An extra member may override
what stands before it, in its place; only what would break the measurement is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentx_engine.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentx_engine.tree.model import ConversationTree

LIMIT_FIELDS = ("max_completion_tokens", "max_tokens")


class BodyTemplate:
    """Everything of a body but its messages. Immutable, one per run.

    `models` are the names that the server knows; recorded models are mapped onto them per trace, see
    `map_models`. With none, recorded names are sent as they are. `extra` are members in JSON types.
    UserError for an unknown limit field and for extra members that cannot be sent.
    """

    def __init__(
        self,
        models: Sequence[str],
        *,
        limit_field: str = "max_completion_tokens",
        ignore_eos: bool = True,
        include_usage: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if limit_field not in LIMIT_FIELDS:
            raise UserError(f"unknown output limit field {limit_field!r}; use {' or '.join(LIMIT_FIELDS)}")
        extra = dict(extra or {})
        check_extra(extra)
        self.models = tuple(models)
        self.limit_field = limit_field
        options = extra.pop("stream_options", None)
        self._behind = ({"ignore_eos": True} if ignore_eos else {}) | extra
        self._stream_options = ({"include_usage": True} if include_usage else {}) | (options or {})

    def map_models(self, tree: ConversationTree) -> Mapping[str, str]:
        """Recorded model -> model to send, for one trace.

        The first request of the trace has the first configured model; each further recorded model gets
        the next configured one, in order of first appearance in the file (subagents included), cyclic.
        Source: agentx-v1, section 1.7-7.
        """
        turns = [turn for conversation in tree.conversations for turn in conversation.turns]
        top = [t for t in turns if t.source[1] is None]
        first = min(top or turns, key=_file_order, default=None)
        order = [first] if first is not None else []
        names = dict.fromkeys(t.model for t in order + sorted(turns, key=_file_order))
        if not self.models:
            return {name: name for name in names}
        return {name: self.models[i % len(self.models)] for i, name in enumerate(names)}

    def limit(self, max_tokens: int) -> int:
        """The output limit that the body states: `max_tokens` unless an extra member overrides it."""
        override = self._behind.get(self.limit_field)
        return max_tokens if override is None else int(override)

    def behind(self, model: str, max_tokens: int) -> bytes:
        """What follows the last message in the body, from the end of the list of messages on."""
        members: dict[str, Any] = {"model": model, "stream": True, self.limit_field: max_tokens}
        members.update(self._behind)
        if self._stream_options:
            members["stream_options"] = self._stream_options
        return b"]," + msgspec.json.encode(members)[1:]


def _file_order(turn: Any) -> tuple[int, int]:
    outer, inner = turn.source
    return outer, -1 if inner is None else inner


def check_extra(extra: Mapping[str, Any]) -> None:
    """UserError for members that cannot be sent."""
    if "messages" in extra:
        raise UserError(
            "extra body member 'messages': the messages are the recording's and cannot be replaced"
        )
    if "model" in extra:
        raise UserError("extra body member 'model': recorded models are mapped onto served ones; use --model")
    if extra.get("stream", True) is not True:
        raise UserError("extra body member 'stream': only streamed answers can be measured; leave it out")
    if not isinstance(extra.get("stream_options") or {}, dict):
        raise UserError("extra body member 'stream_options': an object is expected")
    for field in LIMIT_FIELDS:
        limit = extra.get(field, 1)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise UserError(
                f"extra body member {field!r}: a whole number of tokens from 1 is expected, not {limit!r}"
            )
    for name, value in extra.items():
        try:
            msgspec.json.encode({name: value})
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(f"extra body member {name!r} cannot be written as JSON: {error}") from error
