"""Events of a chat completion stream, each with the fault or the document that it comes from.

"OpenAI" is the API reference, "The chat completion chunk object"; B and C are sections of the list of
faults seen in load clients; "RFC 8259" is JSON. `want` names the fields of a Chunk that are not at rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from agentx_engine.core.chunk import Finish, Flag

INT64_MAX = 2**63 - 1


class Json(NamedTuple):
    id: str
    source: str
    data: bytes
    flags: Flag
    want: Mapping[str, Any] = MappingProxyType({})
    name: bytes = b""


NOTHING = Flag(0)
HEAD = b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1753900000,"model":"m","user":null,'


def delta(inner: bytes, rest: bytes = b'"finish_reason":null') -> bytes:
    """A usual event with this delta."""
    return HEAD + b'"choices":[{"index":0,"delta":' + inner + b',"logprobs":null,' + rest + b"}]}"


def usage(inner: bytes) -> bytes:
    return HEAD + b'"choices":[],"usage":' + inner + b"}"


VECTORS = [
    # ---- text, reasoning, tools
    Json("text", "OpenAI", delta(b'{"content":" token"}'), Flag.TEXT),
    Json("B24-role-only", "fault B24", delta(b'{"role":"assistant","content":""}'), NOTHING),
    Json("B24-role-and-text", "fault B24", delta(b'{"role":"assistant","content":"a"}'), Flag.TEXT),
    Json("refusal", "OpenAI", delta(b'{"content":null,"refusal":"No."}'), Flag.TEXT),
    Json(
        "B36-reasoning_content",
        "fault B36: DeepSeek, vLLM",
        delta(b'{"reasoning_content":"hm"}'),
        Flag.REASONING,
    ),
    Json(
        "B36-reasoning",
        "fault B36: OpenRouter, newer vLLM",
        delta(b'{"content":"","reasoning":"hm"}'),
        Flag.REASONING,
    ),
    Json(
        "B36-reasoning_details",
        "fault B36: OpenRouter",
        delta(b'{"reasoning_details":[{"type":"reasoning.text","text":"hm"}]}'),
        Flag.REASONING,
    ),
    Json(
        "B36-reasoning_details-any-element",
        "fault B36",
        delta(b'{"reasoning_details":[{"text":"a"},{"text":""},null,{"data":"x"}]}'),
        Flag.REASONING,
    ),
    Json(
        "B36-encrypted-reasoning",
        "fault B36: no text, no token seen",
        delta(b'{"reasoning_details":[{"type":"reasoning.encrypted","data":"x"}]}'),
        NOTHING,
    ),
    Json("reasoning-null", "fault B36", delta(b'{"reasoning_content":null,"content":"a"}'), Flag.TEXT),
    Json("both", "fault B36", delta(b'{"reasoning":"hm","content":"a"}'), Flag.TEXT | Flag.REASONING),
    Json(
        "B39-tool-name",
        "fault B39",
        delta(
            b'{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"ls","arguments":""}}]}'
        ),
        Flag.TOOL,
    ),
    Json(
        "B39-tool-arguments",
        "fault B39",
        delta(b'{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\":"}}]}'),
        Flag.TOOL,
    ),
    Json(
        "B39-tool-second-element",
        "fault B39",
        delta(
            b'{"tool_calls":[{"function":{"name":""}},{"function":{"name":"x"}},{"function":{"name":"","arguments":""}}]}'
        ),
        Flag.TOOL,
    ),
    Json(
        "B39-tool-empty",
        "fault B39: an id alone is no output",
        delta(b'{"tool_calls":[{"index":0,"id":"c1","function":{"name":null,"arguments":""}}]}'),
        NOTHING,
    ),
    Json("B39-tools-empty-list", "fault B39", delta(b'{"content":"a","tool_calls":[]}'), Flag.TEXT),
    Json(
        "message",
        "OpenAI, the chat completion object",
        HEAD
        + b'"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}',
        Flag.TEXT | Flag.FINISH | Flag.USAGE,
        {"finish": Finish.STOP, "prompt": 3, "completion": 1},
    ),
    Json(
        "message-null-beside-delta",
        "seen in proxies",
        delta(b'{"content":"a"}', b'"message":null'),
        Flag.TEXT,
    ),
    # ---- null, missing, empty
    Json("B38-content-null", "fault B38", delta(b'{"content":null}'), NOTHING),
    Json("B38-tool_calls-null", "fault B38", delta(b'{"content":"a","tool_calls":null}'), Flag.TEXT),
    Json("B38-delta-missing", "fault B38", HEAD + b'"choices":[{"index":0,"finish_reason":null}]}', NOTHING),
    Json("B38-delta-null", "fault B38", delta(b"null"), NOTHING),
    Json("B38-function-null", "fault B38", delta(b'{"tool_calls":[{"function":null},null]}'), NOTHING),
    Json("B25-choices-empty", "fault B25", HEAD + b'"choices":[]}', NOTHING),
    Json("choices-null", "fault B38", HEAD + b'"choices":null}', NOTHING),
    Json("choices-of-null", "fault B38", HEAD + b'"choices":[null,{"delta":{"content":"a"}}]}', NOTHING),
    Json(
        "content-of-another-type",
        "OpenAI: a string or null",
        delta(b'{"content":["a"],"reasoning":{"text":"a"}}'),
        NOTHING,
    ),
    Json("empty-object", "RFC 8259", b"{}", NOTHING),
    Json("empty", "csrc/chunk.h", b"", NOTHING),
    Json("blank", "csrc/chunk.h", b" \n\t\r", NOTHING),
    # ---- only choices[0]
    Json(
        "second-choice",
        "csrc/chunk.h: by position",
        HEAD
        + b'"choices":[{"index":0,"delta":{}},{"index":1,"delta":{"content":"x"},"finish_reason":"stop"}]}',
        NOTHING,
    ),
    Json(
        "first-choice-has-index-1",
        "csrc/chunk.h: by position, whatever the index says",
        HEAD + b'"choices":[{"index":1,"delta":{"content":"x"}},{"index":0,"delta":{}}]}',
        Flag.TEXT,
    ),
    # ---- finish reasons
    Json("stop", "OpenAI", delta(b"{}", b'"finish_reason":"stop"'), Flag.FINISH, {"finish": Finish.STOP}),
    Json(
        "length", "OpenAI", delta(b"{}", b'"finish_reason":"length"'), Flag.FINISH, {"finish": Finish.LENGTH}
    ),
    Json(
        "tool_calls",
        "OpenAI",
        delta(b"{}", b'"finish_reason":"tool_calls"'),
        Flag.FINISH,
        {"finish": Finish.TOOL_CALLS},
    ),
    Json(
        "content_filter",
        "OpenAI",
        delta(b"{}", b'"finish_reason":"content_filter"'),
        Flag.FINISH,
        {"finish": Finish.CONTENT_FILTER},
    ),
    Json(
        "other-reason",
        "SGLang: abort",
        delta(b"{}", b'"finish_reason":"abort"'),
        Flag.FINISH,
        {"finish": Finish.OTHER},
    ),
    Json(
        "long-reason",
        "any",
        delta(b"{}", b'"finish_reason":"' + b"s" * 99 + b'"'),
        Flag.FINISH,
        {"finish": Finish.OTHER},
    ),
    Json(
        "reason-escaped",
        "RFC 8259, 7",
        delta(b"{}", b'"finish_reason":"st\\u006Fp"'),
        Flag.FINISH,
        {"finish": Finish.STOP},
    ),
    Json(
        "reason-empty",
        'proxies that send "" in every chunk',
        delta(b'{"content":"a"}', b'"finish_reason":""'),
        Flag.TEXT,
    ),
    Json(
        "text-with-finish",
        "TGI, llama.cpp",
        delta(b'{"content":"a"}', b'"finish_reason":"length"'),
        Flag.TEXT | Flag.FINISH,
        {"finish": Finish.LENGTH},
    ),
    # ---- usage
    Json(
        "B25-usage-only",
        "fault B25",
        usage(
            b'{"prompt_tokens":12,"total_tokens":20,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":5,'
            b'"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":3}}'
        ),
        Flag.USAGE,
        {"prompt": 12, "completion": 8, "cached": 5, "reasoning": 3},
    ),
    Json(
        "B27-usage-with-text",
        "fault B27: continuous_usage_stats",
        delta(
            b'{"content":"a"}',
            b'"finish_reason":null}],"usage":{"prompt_tokens":9,"completion_tokens":2},"x":[{"y":0',
        ),
        Flag.TEXT | Flag.USAGE,
        {"prompt": 9, "completion": 2},
    ),
    Json("B28-usage-null", "fault B28", usage(b"null"), NOTHING),
    Json("B28-usage-empty", "fault B28", usage(b"{}"), NOTHING),
    Json(
        "B28-details-null",
        "fault B28",
        usage(
            b'{"prompt_tokens":1,"completion_tokens":0,"prompt_tokens_details":null,"completion_tokens_details":null}'
        ),
        Flag.USAGE,
        {"prompt": 1, "completion": 0},
    ),
    Json("B28-counts-null", "fault B28", usage(b'{"prompt_tokens":null,"completion_tokens":null}'), NOTHING),
    Json(
        "B28-cached-null",
        "fault B28",
        usage(b'{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":null}}'),
        Flag.USAGE,
        {"prompt": 1},
    ),
    Json("usage-only-total", "csrc/chunk.h: not one of its counts", usage(b'{"total_tokens":5}'), NOTHING),
    Json("count-negative", "RFC 8259, 6", usage(b'{"prompt_tokens":-1,"completion_tokens":-0}'), NOTHING),
    Json("count-fraction", "RFC 8259, 6", usage(b'{"prompt_tokens":1.0,"completion_tokens":1e3}'), NOTHING),
    Json(
        "count-of-another-type", "RFC 8259", usage(b'{"prompt_tokens":"5","completion_tokens":true}'), NOTHING
    ),
    Json(
        "count-huge",
        "csrc/chunk.h: saturates",
        usage(
            b'{"prompt_tokens":9223372036854775807,"completion_tokens":9223372036854775808,'
            b'"prompt_tokens_details":{"cached_tokens":' + b"9" * 400 + b"}}"
        ),
        Flag.USAGE,
        {"prompt": INT64_MAX, "completion": INT64_MAX, "cached": INT64_MAX},
    ),
    Json(
        "usage-in-a-choice", "csrc/chunk.h: top level only", delta(b'{"usage":{"prompt_tokens":3}}'), NOTHING
    ),
    # ---- errors
    Json(
        "C45-error-object",
        "fault C45",
        b'{"error":{"message":"boom \\"x\\"","type":"server_error","param":null,"code":500}}',
        Flag.ERROR,
        {"error_message": b'boom \\"x\\"', "error_type": b"server_error", "error_code": 500},
    ),
    Json(
        "C45-error-code-text",
        "fault C45: OpenAI",
        b'{"error":{"message":"long","code":"context_length_exceeded"}}',
        Flag.ERROR,
        {"error_message": b"long", "error_type": b"context_length_exceeded"},
    ),
    Json(
        "C45-error-type-before-code",
        "csrc/chunk.h",
        b'{"error":{"code":"c","message":"m","type":"t"}}',
        Flag.ERROR,
        {"error_message": b"m", "error_type": b"t"},
    ),
    Json("C45-error-string", "fault C45", b'{"error":"boom"}', Flag.ERROR, {"error_message": b"boom"}),
    Json(
        "C45-error-without-message",
        "fault C45",
        b'{"error":{"x":1}}',
        Flag.ERROR,
        {"error_message": b'{"error":{"x":1}}'},
    ),
    Json("C45-error-null", "fault C45", delta(b'{"content":"a"}')[:-1] + b',"error":null}', Flag.TEXT),
    Json("C45-error-empty-object", "fault C45", b'{"error":{}}', NOTHING),
    Json("C45-error-empty-string", "fault C45", b'{"error":""}', NOTHING),
    Json("C45-error-false", "fault C45", b'{"error":false}', NOTHING),
    Json(
        "C45-error-of-another-type",
        "csrc/chunk.h",
        b'{"error":[1],"choices":[{"error":{"message":"x"}}]}',
        NOTHING,
    ),
    Json(
        "C45-error-event",
        "fault C45: event: error",
        b'{"error":{"message":"overloaded","type":"overloaded_error"}}',
        Flag.ERROR,
        {"error_message": b"overloaded", "error_type": b"overloaded_error"},
        b"error",
    ),
    Json(
        "C45-error-event-any-json",
        "fault C45",
        b'{"detail":"x"}',
        Flag.ERROR,
        {"error_message": b'{"detail":"x"}'},
        b"error",
    ),
    Json(
        "C45-error-event-text",
        "fault C45",
        b"boom",
        Flag.ERROR | Flag.MALFORMED,
        {"error_message": b"boom"},
        b"error",
    ),
    Json("C45-error-event-empty", "fault C45", b"", Flag.ERROR, {}, b"error"),
    Json("other-event-name", "OpenAI", b'{"choices":[]}', NOTHING, {}, b"errors"),
    # ---- end of the stream
    Json("done", "OpenAI", b"[DONE]", Flag.DONE),
    Json("done-with-space", "csrc/chunk.h", b" [DONE]\n", Flag.DONE),
    Json("done-lower-case", "csrc/chunk.h", b"[done]", Flag.MALFORMED),
    Json("done-and-more", "csrc/chunk.h", b"[DONE] x", Flag.MALFORMED),
    # ---- the metronome's keys
    Json(
        "sent-and-seq",
        "csrc/chunk.h",
        b'{"seq":7,"sent_ns":1753900000123456789}',
        NOTHING,
        {"seq": 7, "sent_ns": 1753900000123456789},
    ),
    Json("sent-below", "csrc/chunk.h: top level only", b'{"x":{"seq":7,"sent_ns":1}}', NOTHING),
    # ---- JSON: order, duplicates, escapes, white space
    Json(
        "keys-in-reverse",
        "RFC 8259, 4",
        b'{"choices":[{"finish_reason":null,"delta":{"content":"a"},"index":0}],"id":"x"}',
        Flag.TEXT,
    ),
    Json("duplicate-scalar", "last wins", delta(b'{"content":"a","content":""}'), NOTHING),
    Json("duplicate-scalar-2", "last wins", delta(b'{"content":"","content":"a"}'), Flag.TEXT),
    Json("duplicate-null", "last wins", delta(b'{"content":"a","content":null}'), NOTHING),
    Json(
        "duplicate-delta", "last wins", HEAD + b'"choices":[{"delta":{"content":"a"},"delta":{}}]}', NOTHING
    ),
    Json("duplicate-choices", "last wins", b'{"choices":[{"delta":{"content":"a"}}],"choices":[]}', NOTHING),
    Json(
        "duplicate-usage",
        "last wins",
        b'{"usage":{"prompt_tokens":1},"usage":{"completion_tokens":2}}',
        Flag.USAGE,
        {"completion": 2},
    ),
    Json(
        "duplicate-count",
        "last wins",
        usage(b'{"prompt_tokens":1,"prompt_tokens":2}'),
        Flag.USAGE,
        {"prompt": 2},
    ),
    Json("duplicate-error", "last wins", b'{"error":{"message":"x"},"error":null}', NOTHING),
    Json(
        "duplicate-tool-calls",
        "last wins",
        delta(b'{"tool_calls":[{"function":{"name":"x"}}],"tool_calls":null}'),
        NOTHING,
    ),
    Json("escaped-key", "RFC 8259, 7", delta(b'{"cont\\u0065nt":"a"}'), Flag.TEXT),
    Json(
        "escaped-keys-all",
        "RFC 8259, 7",
        b'{"\\u0063\\u0068\\u006F\\u0069\\u0063\\u0065\\u0073":[{"d\\u0065lta":{"reasoning\\u005fcontent":"a"}}]}',
        Flag.REASONING,
    ),
    Json("escaped-key-duplicate", "last wins", delta(b'{"content":"a","\\u0063ontent":""}'), NOTHING),
    Json(
        "escape-in-other-key",
        "RFC 8259, 7",
        delta(b'{"cont\\nent":"a","\\ud83d\\ude00":"b","\\"":"c"}'),
        NOTHING,
    ),
    Json("key-with-nul", "RFC 8259, 7", delta(b'{"content\\u0000":"a"}'), NOTHING),
    Json("empty-key", "RFC 8259, 4", delta(b'{"":"a","content":"b"}'), Flag.TEXT),
    Json(
        "key-prefix",
        "RFC 8259",
        delta(b'{"conten":"a","contents":"b","reasoning_conten":"c","reasoning_contents":"d"}'),
        NOTHING,
    ),
    Json("escaped-text", "RFC 8259, 7", delta(b'{"content":"\\n"}'), Flag.TEXT),
    Json(
        "all-escapes",
        "RFC 8259, 7",
        delta(b'{"content":"\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD83D\\uDE00"}'),
        Flag.TEXT,
    ),
    Json("lone-surrogate", "RFC 8259, 8.2", delta(b'{"content":"\\ud83d"}'), Flag.TEXT),
    Json("escaped-nul", "RFC 8259, 7", delta(b'{"content":"\\u0000"}'), Flag.TEXT),
    Json("structure-in-text", "RFC 8259, 7", delta(b'{"content":"}]}{\\"content\\":[\\\\"}'), Flag.TEXT),
    Json("invalid-utf-8", "csrc/chunk.h: not inspected", delta(b'{"content":"\xff\xc3\x28\x80"}'), Flag.TEXT),
    Json("A12-text-of-many-bytes", "fault A12", delta('{"content":"你好🦀"}'.encode()), Flag.TEXT),
    Json(
        "white-space",
        "RFC 8259, 2",
        b' {\t"choices" :\r\n[ { "index" : 0 ,\n"delta" : { "content" : "a" } , "finish_reason" : null } ]'
        b' , "usage":{ "prompt_tokens" : 4 } } \n',
        Flag.TEXT | Flag.USAGE,
        {"prompt": 4},
    ),
    Json(
        "A7-joined-lines",
        "fault A7: data lines joined with LF",
        b'{"choices":\n[{"delta":\n{"content":"a"}}]\n}',
        Flag.TEXT,
    ),
    Json(
        "numbers",
        "RFC 8259, 6",
        b'{"a":[0,-0,1,-1,0.5,-0.5,1e5,1E+5,1.5e-5,0e0,123456789012345678901234567890],"choices":[{"delta":{"content":"a"}}]}',
        Flag.TEXT,
    ),
    Json(
        "long-text",
        "fault A16: many blocks of the string search",
        delta(b'{"content":"' + b"x" * 300 + b"\\n" * 50 + b'"}'),
        Flag.TEXT,
    ),
    Json(
        "deep",
        "csrc/chunk.h: 64 levels",
        b'{"a":' + b"[" * 63 + b"]" * 63 + b',"choices":[{"delta":{"content":"a"}}]}',
        Flag.TEXT,
    ),
    Json("deep-objects", "csrc/chunk.h: 64 levels", b'{"a":' * 64 + b"1" + b"}" * 64, NOTHING),
    Json(
        "logprobs",
        "OpenAI",
        delta(b'{"content":"a"}', b'"logprobs":{"content":[{"token":"a","logprob":-0.1,"bytes":[97]}]}'),
        Flag.TEXT,
    ),
    # ---- not JSON
    Json("too-deep", "csrc/chunk.h: 64 levels", b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", Flag.MALFORMED),
    Json("too-deep-objects", "csrc/chunk.h: 64 levels", b'{"a":' * 65 + b"1" + b"}" * 65, Flag.MALFORMED),
    Json(
        "very-deep",
        "csrc/chunk.h: no recursion",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        Flag.MALFORMED,
    ),
    Json("text", "RFC 8259", b"Internal Server Error", Flag.MALFORMED),
    Json("html", "RFC 8259", b"<html></html>", Flag.MALFORMED),
    *(
        Json(f"not-an-object-{i}", "csrc/chunk.h", text, Flag.MALFORMED)
        for i, text in enumerate(
            [b"[]", b'[{"a":1}]', b"null", b"1", b'"x"', b"true", b"{", b"}", b'{"', b"[DONE"]
        )
    ),
    *(
        Json(f"junk-after-{i}", "RFC 8259, 2: one value", delta(b'{"content":"a"}') + junk, Flag.MALFORMED)
        for i, junk in enumerate([b"x", b"{}", b",{}", b"}", b" }", b"]", b"\0", b"\xef\xbb\xbf"])
    ),
    *(
        Json(f"broken-{i}", "RFC 8259", text, Flag.MALFORMED)
        for i, text in enumerate(
            [
                b'{"a"}',
                b'{"a":}',
                b'{"a":1,}',
                b'{,"a":1}',
                b'{"a":1 "b":2}',
                b'{"a" 1}',
                b"{a:1}",
                b"{'a':1}",
                b"{1:1}",
                b'{"a":[1,]}',
                b'{"a":[,1]}',
                b'{"a":[1 2]}',
                b'{"a":[1}',
                b'{"a":[1}]',
                b'{"a":{"b":1]}',
                b'{"a":{]}',
                b'{"a":01}',
                b'{"a":-}',
                b'{"a":+1}',
                b'{"a":.5}',
                b'{"a":1.}',
                b'{"a":1e}',
                b'{"a":1e+}',
                b'{"a":--1}',
                b'{"a":0x1}',
                b'{"a":1.e1}',
                b'{"a":NaN}',
                b'{"a":Infinity}',
                b'{"a":-Infinity}',
                b'{"a":-}',
                b'{"a":1-}',
                b'{"a":nul}',
                b'{"a":nulll}',
                b'{"a":True}',
                b'{"a":truefalse}',
                b'{"a":fals}',
                b'{"a":tru}',
                b'{"a":n}',
                b'{"a":"\\x"}',
                b'{"a":"\\u12"}',
                b'{"a":"\\u12g4"}',
                b'{"a":"\\u 123"}',
                b'{"a":"\\',
                b'{"a":"\\"}',
                b'{"a":"\\u}',
                b'{"\\q":1}',
                b'{"a\\":1}',
                b'{"a":"b}',
                b'{"a":"b\n"}',
                b'{"a":"\0"}',
                b'{"a\t":1}',
                b'{"a":\0 1}',
                b"{\0}",
                b'{"a":1}\0}',
                b'{\x0b"a":1}',
                b'{\xc2\xa0"a":1}',
                b'{"a":"\\\0"}',
                b'{"":"}',
            ]
        )
    ),
]
