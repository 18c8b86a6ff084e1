"""A recorded session as it stands in a trace file, checked but not interpreted.

The Structs are the schema: msgspec decodes a trace straight into them and refuses everything that they
do not name. Field meanings: the public Weka format of kv-cache-tester and of the AgentX corpora
(`t`, `in`, `out`, `api_time`, ... are seconds and tokens, as in the file).

Oddities that the tree builder must judge stay visible: requests out of order, `api_time` absent or negative,
`out` of 0, empty `hash_ids`, an empty subagent. What cannot be replayed at all (negative `in`, a missing
model, times that do not fit into 64-bit nanoseconds) never gets here: it is a `CorpusError`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw

# Nanoseconds of this many seconds fit into int64, with room for sums.
MAX_SECONDS = 4_000_000_000

Seconds = Annotated[float, Meta(ge=-MAX_SECONDS, le=MAX_SECONDS)]
Tokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
BlockSize = Annotated[int, Meta(gt=0, le=1 << 20)]
Name = Annotated[str, Meta(min_length=1)]
RequestType = Literal["n", "s", "?"]

NO_IDS = Raw(b"[]")


class TraceRequest(
    msgspec.Struct,
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="n",
    rename={"in_tokens": "in", "out_tokens": "out"},
):
    """One recorded call of the model, sent without streaming ("n"); replay streams every call.

    `hash_ids` is the list's JSON text, as in the file: ids of the prompt's leading blocks, for
    `agentx_engine.core.ids.parse_ids`. It is a view into the trace's bytes and keeps them alive.
    """

    t: Seconds  # start; inside a subagent see `corpus.clock`
    model: Name
    in_tokens: Tokens
    out_tokens: Tokens
    hash_ids: Raw = NO_IDS
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    stop: str = ""
    api_time: Seconds | None = None  # duration of the call, seconds; None = not recorded
    think_time: Seconds | None = None
    ttft: Seconds | None = None

    @property
    def type(self) -> RequestType:
        """How the call was recorded: "n" plain, "s" streamed, "?" unknown. Replay treats them alike."""
        return "n"


class StreamedRequest(TraceRequest, frozen=True, gc=False, tag="s"):
    """A call recorded as streaming; only these can have `ttft`."""

    @property
    def type(self) -> RequestType:
        return "s"


class UnknownRequest(TraceRequest, frozen=True, gc=False, tag="?"):
    """A call of older dumps whose kind the recorder did not know."""

    @property
    def type(self) -> RequestType:
        return "?"


AnyRequest: TypeAlias = TraceRequest | StreamedRequest | UnknownRequest


class Subagent(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="subagent"
):
    """A child agent that the root started. Its `requests` are never subagents themselves."""

    t: Seconds
    agent_id: Name
    subagent_type: str
    status: str  # "completed", "async_launched"
    requests: tuple[AnyRequest, ...]
    models: tuple[str, ...] = ()
    duration_ms: Annotated[float, Meta(ge=-MAX_SECONDS * 1000, le=MAX_SECONDS * 1000)] | None = None
    total_tokens: Count | None = None
    tool_use_count: Count | None = None
    tool_tokens: Tokens = 0
    system_tokens: Tokens = 0

    @property
    def type(self) -> Literal["subagent"]:
        return "subagent"


Entry: TypeAlias = TraceRequest | Subagent


class Trace(msgspec.Struct, frozen=True):
    """One session. Times of inner requests are absolute: the subagent clock has been settled.

    `corrections` names the repairs of the recording ("subagent_clock"); `source` says where the trace
    stands ("FILE" or "FILE line N"), for messages.
    """

    id: str
    models: tuple[str, ...]
    block_size: int
    hash_id_scope: str
    tool_tokens: int
    system_tokens: int
    requests: tuple[Entry, ...]
    corrections: tuple[str, ...] = ()
    source: str = ""
