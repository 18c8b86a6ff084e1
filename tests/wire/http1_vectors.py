"""HTTP/1.1 responses, each with the place in the specification that it comes from.

RFC numbers: 9110 semantics, 9112 HTTP/1.1. `end` is "end" (the message ended by its framing), "eof" (the
close of the connection ended it, well) or the parser's error. `rest` bytes behind the message stay.
"""

from __future__ import annotations

from typing import NamedTuple


class Http(NamedTuple):
    id: str
    source: str
    wire: bytes
    end: str = "end"
    status: int | None = 200
    body: bytes = b""
    keep_alive: bool | None = True
    rest: int = 0
    #: Whether httptools reads it the same way. Where it does not, the source says why.
    peer: bool = True


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def refused(id: str, source: str, wire: bytes, error: str, *, head: bool = False, body: bytes = b"") -> Http:
    """A response that is refused, before its head was delivered or (head) behind it."""
    return Http(id, source, wire, error, 200 if head else None, body, False if head else None)


GOOD = [
    # ---- framing
    Http("length", "9112 6.2", OK + b"Content-Length: 5\r\n\r\nhello", body=b"hello"),
    Http("length-0", "9112 6.2, fault C47", OK + b"Content-Length: 0\r\n\r\n"),
    Http(
        "length-twice-the-same",
        "9110 8.6",
        OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        body=b"hello",
        peer=False,
    ),
    Http(
        "length-list-the-same",
        "9110 8.6",
        OK + b"Content-Length: 5, 5\r\n\r\nhello",
        body=b"hello",
        peer=False,
    ),
    Http(
        "length-leading-zeros", "9110 8.6: 1*DIGIT", OK + b"Content-Length: 0005\r\n\r\nhello", body=b"hello"
    ),
    Http("length-with-white-space", "9110 5.5", OK + b"Content-Length: \t 5 \t\r\n\r\nhello", body=b"hello"),
    Http("chunked", "9112 7.1", CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", body=b"hello world"),
    Http("chunked-empty", "9112 7.1, fault C47", CHUNKED + b"0\r\n\r\n"),
    Http(
        "chunked-hex",
        "9112 7.1: HEXDIG",
        CHUNKED + b"1A\r\n" + b"x" * 26 + b"\r\n1a\r\n" + b"y" * 26 + b"\r\n0\r\n\r\n",
        body=b"x" * 26 + b"y" * 26,
    ),
    Http(
        "chunked-leading-zeros",
        "9112 7.1",
        CHUNKED + b"00000000000000000005\r\nhello\r\n000\r\n\r\n",
        body=b"hello",
        peer=False,
    ),
    Http(
        "chunk-extensions", "9112 7.1.1", CHUNKED + b'5;a;b=c;d="e"\r\nhello\r\n0;last\r\n\r\n', body=b"hello"
    ),
    Http(
        "chunk-extension-white-space",
        "9112 7.1.1: BWS",
        CHUNKED + b"5 \t; a = b\r\nhello\r\n0\r\n\r\n",
        body=b"hello",
        peer=False,
    ),
    Http(
        "chunk-size-padded",
        "sizes padded with spaces, as old servers send them",
        CHUNKED + b"5   \r\nhello\r\n0  \r\n\r\n",
        body=b"hello",
        peer=False,
    ),
    Http(
        "trailers",
        "9112 7.1.2: trailers are no headers",
        CHUNKED + b"5\r\nhello\r\n0\r\nX-A: b\r\nContent-Length: 9\r\nConnection: close\r\n\r\n",
        body=b"hello",
        peer=False,
    ),
    Http(
        "chunk-data-like-framing",
        "9112 7.1",
        CHUNKED + b"7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n",
        body=b"\r\n0\r\n\r\n",
    ),
    Http(
        "chunked-any-case", "9112 7", OK + b"TRANSFER-ENCODING: CHUNKED\r\n\r\n1\r\nx\r\n0\r\n\r\n", body=b"x"
    ),
    Http("until-close", "9112 6.3, 8", OK + b"\r\nall of it", "eof", body=b"all of it", keep_alive=False),
    Http("until-close-nothing", "9112 6.3, 8", OK + b"\r\n", "eof", keep_alive=False),
    Http(
        "until-close-binary",
        "9112 6.3, 8",
        OK + b"\r\n\0\r\n\r\nHTTP/1.1 200",
        "eof",
        body=b"\0\r\n\r\nHTTP/1.1 200",
        keep_alive=False,
    ),
    Http("204", "9112 6.3, 1", b"HTTP/1.1 204 No Content\r\n\r\n", status=204),
    Http(
        "204-with-length-0",
        "9110 8.6: not allowed, but sent",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
        status=204,
    ),
    Http(
        "204-with-length",
        "9112 6.3, 1: no body, but do not trust it",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc",
        status=204,
        keep_alive=False,
        rest=3,
        peer=False,
    ),
    Http(
        "304-with-length",
        "9112 6.3, 1",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n",
        status=304,
    ),
    Http(
        "304-chunked",
        "9112 6.3, 1: no body, but do not trust it",
        b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
        status=304,
        keep_alive=False,
        peer=False,
    ),
    # ---- 1xx
    Http(
        "100-continue",
        "9110 15.2",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nok",
        body=b"ok",
        peer=False,
    ),
    Http(
        "103-twice",
        "8297: early hints; its headers belong to nothing",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 9\r\nConnection: close\r\n\r\n" * 2
        + OK
        + b"Content-Length: 2\r\n\r\nok",
        body=b"ok",
        peer=False,
    ),
    # ---- lines
    Http(
        "bare-lf",
        "9112 2.2: a lone LF may end a line",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        body=b"ok",
        peer=False,
    ),
    Http(
        "bare-lf-chunked",
        "9112 2.2",
        b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n2;x\nok\n0\nA: b\n\n",
        body=b"ok",
        peer=False,
    ),
    Http("no-reason", "9112 4: the reason may be empty", b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n"),
    Http(
        "no-reason-no-space", "9112 4, as many servers send it", b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"
    ),
    Http("empty-value", "9110 5.5", OK + b"X-Empty:\r\nX-Blank: \t \r\nContent-Length: 0\r\n\r\n"),
    Http("no-space-after-colon", "9112 5", OK + b"Content-Length:2\r\n\r\nok", body=b"ok"),
    Http("obs-text", "9110 5.5: bytes above 0x7f", OK + b"X-A: \xe4\xff\r\nContent-Length: 0\r\n\r\n"),
    Http(
        "long-names-and-values",
        "names and values longer than what is kept",
        OK + b"X-" + b"n" * 300 + b": " + b"v" * 3000 + b"\r\nContent-Length: 2\r\n\r\nok",
        body=b"ok",
    ),
    Http(
        "similar-names",
        "9110 5.1",
        OK + b"Content-Lengt: 9\r\nContent-Lengths: 9\r\nX-Content-Length: 9\r\nContent-Length: 2\r\n\r\nok",
        body=b"ok",
    ),
    Http("all-token-characters", "9110 5.6.2", OK + b"!#$%&'*+-.^_`|~09azAZ: x\r\nContent-Length: 0\r\n\r\n"),
    # ---- errors of the server, read like any other response
    Http(
        "500",
        "9110 15.6",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops",
        status=500,
        body=b"oops",
    ),
    Http(
        "429",
        "6585 4",
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
        status=429,
    ),
    # ---- persistence, 9112 9.3
    Http("close", "9112 9.3", OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n", keep_alive=False),
    Http(
        "close-in-a-list",
        "9112 9.3",
        OK + b"Connection: foo , Close\r\nContent-Length: 0\r\n\r\n",
        keep_alive=False,
    ),
    Http(
        "close-in-a-second-field",
        "9110 5.3",
        OK + b"Connection: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        keep_alive=False,
    ),
    Http("keep-alive-1.1", "9112 9.3", OK + b"Connection: keep-alive\r\nContent-Length: 0\r\n\r\n"),
    Http(
        "close-wins",
        "9112 9.3",
        OK + b"Connection: keep-alive, close\r\nContent-Length: 0\r\n\r\n",
        keep_alive=False,
    ),
    Http(
        "closes",
        "9110 7.6.1: whole tokens",
        OK + b"Connection: closes, notclose\r\nContent-Length: 0\r\n\r\n",
    ),
    Http("1.0", "9112 9.3", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", body=b"ok", keep_alive=False),
    Http(
        "1.0-keep-alive",
        "9112 9.3",
        b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok",
        body=b"ok",
    ),
    Http(
        "1.0-until-close",
        "9112 9.3",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nok",
        "eof",
        body=b"ok",
        keep_alive=False,
    ),
    Http(
        "1.0-chunked",
        "9112 6.1: close after it",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n0\r\n\r\n",
        body=b"ok",
        keep_alive=False,
        peer=False,
    ),
    Http(
        "connection-too-long",
        "what is not kept may have said close",
        OK + b"Connection: " + b"x, " * 200 + b"close\r\nContent-Length: 0\r\n\r\n",
        keep_alive=False,
    ),
    # ---- what follows
    Http(
        "pipelined-length",
        "9112 9.3.2",
        OK + b"Content-Length: 2\r\n\r\nokHTTP/1.1 ",
        body=b"ok",
        rest=9,
        peer=False,
    ),
    Http(
        "pipelined-chunked",
        "9112 9.3.2",
        CHUNKED + b"2\r\nok\r\n0\r\n\r\nHTTP/1.1 ",
        body=b"ok",
        rest=9,
        peer=False,
    ),
    Http("pipelined-204", "9112 9.3.2", b"HTTP/1.1 204 x\r\n\r\nHTTP/1.1 ", status=204, rest=9, peer=False),
]

NOT_A_NUMBER = "Content-Length is not a number"
NO_SIZE = "chunk size is not a number"

BAD = [
    # ---- status line, 9112 4
    refused("not-http", "9112 4", b"SSH-2.0-OpenSSH_9.6\r\n", "not an HTTP response"),
    refused("blank-line-first", "9112 2.2: only servers skip it", b"\r\n" + CHUNKED, "not an HTTP response"),
    refused("lower-case", "9112 2.3: case-sensitive", b"http/1.1 200 OK\r\n\r\n", "not an HTTP response"),
    refused("http-2", "9112 2.3", b"HTTP/2.0 200 OK\r\n\r\n", "HTTP version is not 1.x"),
    refused("http-2-short", "9112 2.3", b"HTTP/2 200\r\n\r\n", "HTTP version is not 1.x"),
    refused("http-1.x", "9112 2.3", b"HTTP/1.x 200 OK\r\n\r\n", "HTTP version is not 1.x"),
    refused("http-1.10", "9112 2.3: one digit", b"HTTP/1.10 200 OK\r\n\r\n", "malformed status line"),
    refused("two-spaces", "9112 4", b"HTTP/1.1  200 OK\r\n\r\n", "malformed status line"),
    refused("short-code", "9112 4: 3DIGIT", b"HTTP/1.1 20 OK\r\n\r\n", "malformed status line"),
    refused("long-code", "9112 4: 3DIGIT", b"HTTP/1.1 2000 OK\r\n\r\n", "malformed status line"),
    refused("code-0", "9110 15", b"HTTP/1.1 099 x\r\n\r\n", "status code outside 100..599"),
    refused("code-600", "9110 15", b"HTTP/1.1 600 x\r\n\r\n", "status code outside 100..599"),
    refused(
        "101",
        "9110 15.2.2",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "101 Switching Protocols, but no upgrade was asked for",
    ),
    refused("nul-in-reason", "9112 4", b"HTTP/1.1 200 O\0K\r\n\r\n", "NUL in the response head"),
    refused(
        "cr-in-reason", "9112 2.2: bare CR", b"HTTP/1.1 200 O\rK\r\n\r\n", "bare CR in the response head"
    ),
    # ---- header lines, 9112 5
    refused("folded", "9112 5.2", OK + b"X: a\r\n b\r\n\r\n", "folded header line"),
    refused("folded-tab", "9112 5.2", OK + b"X: a\r\n\tb\r\n\r\n", "folded header line"),
    refused("space-before-first", "9112 2.2", OK + b" X: a\r\n\r\n", "folded header line"),
    refused(
        "space-before-colon", "9112 5.1", OK + b"Content-Length : 5\r\n\r\n", "white space in a header name"
    ),
    refused("no-colon", "9112 5", OK + b"Content-Length\r\n\r\n", "header line without a colon"),
    refused("no-colon-lf", "9112 5", OK + b"X\n\r\n", "header line without a colon"),
    refused("no-name", "9112 5", OK + b": x\r\n\r\n", "header without a name"),
    refused("name-with-bracket", "9110 5.6.2", OK + b"X(Y): x\r\n\r\n", "invalid character in a header name"),
    refused(
        "name-with-high-byte", "9110 5.6.2", OK + b"X\xe4: x\r\n\r\n", "invalid character in a header name"
    ),
    refused("name-with-nul", "9110 5.6.2", OK + b"X\0: x\r\n\r\n", "NUL in the response head"),
    refused("value-with-nul", "9110 5.5", OK + b"X: a\0b\r\n\r\n", "NUL in the response head"),
    refused("value-with-cr", "9112 2.2", OK + b"X: a\rb\r\n\r\n", "bare CR in the response head"),
    refused("cr-cr-lf", "9112 2.2", OK + b"X: a\r\r\n\r\n", "bare CR in the response head"),
    refused("cr-at-the-end", "9112 2.2", OK + b"X: a\r\n\rX", "bare CR in the response head"),
    # ---- framing, 9112 6
    refused(
        "both",
        "9112 6.3, 3: smuggling",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "both Transfer-Encoding and Content-Length",
    ),
    refused(
        "both-other-order",
        "9112 6.3, 3",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "both Transfer-Encoding and Content-Length",
    ),
    refused(
        "lengths-differ",
        "9112 6.3, 5",
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "several different Content-Length",
    ),
    refused(
        "length-list-differs",
        "9112 6.3, 5",
        OK + b"Content-Length: 5, 6\r\n\r\nhello",
        "several different Content-Length",
    ),
    refused("length-negative", "9110 8.6", OK + b"Content-Length: -1\r\n\r\n", NOT_A_NUMBER),
    refused("length-plus", "9110 8.6", OK + b"Content-Length: +5\r\n\r\nhello", NOT_A_NUMBER),
    refused("length-hex", "9110 8.6", OK + b"Content-Length: 0x5\r\n\r\nhello", NOT_A_NUMBER),
    refused("length-empty", "9110 8.6", OK + b"Content-Length:\r\n\r\n", NOT_A_NUMBER),
    refused("length-list-gap", "9110 8.6", OK + b"Content-Length: 5,\r\n\r\nhello", NOT_A_NUMBER),
    refused("length-two-words", "9110 8.6", OK + b"Content-Length: 5 5\r\n\r\nhello", NOT_A_NUMBER),
    refused(
        "length-very-long",
        "9110 8.6",
        OK + b"Content-Length: " + b"0" * 300 + b"5\r\n\r\nhello",
        NOT_A_NUMBER,
    ),
    refused(
        "length-huge",
        "9110 8.6: overflow",
        OK + b"Content-Length: 9223372036854775808\r\n\r\n",
        "Content-Length is too large",
    ),
    refused(
        "gzip-chunked",
        "9112 7",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        "Transfer-Encoding other than chunked",
    ),
    refused(
        "identity",
        "9112 7",
        OK + b"Transfer-Encoding: identity\r\n\r\n",
        "Transfer-Encoding other than chunked",
    ),
    refused(
        "xchunked",
        "9112 7",
        OK + b"Transfer-Encoding: xchunked\r\n\r\n",
        "Transfer-Encoding other than chunked",
    ),
    refused(
        "chunked-comma",
        "9112 7",
        OK + b"Transfer-Encoding: chunked,\r\n\r\n",
        "Transfer-Encoding other than chunked",
    ),
    refused("te-empty", "9112 7", OK + b"Transfer-Encoding:\r\n\r\n", "Transfer-Encoding other than chunked"),
    refused(
        "te-vertical-tab",
        "9112 7: smuggling",
        OK + b"Transfer-Encoding: \x0bchunked\r\n\r\n",
        "Transfer-Encoding other than chunked",
    ),
    refused(
        "te-twice",
        "9112 7: chunked once",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "several Transfer-Encoding",
    ),
    refused(
        "te-then-identity",
        "9112 7: smuggling",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
        "several Transfer-Encoding",
    ),
    # ---- chunks, 9112 7.1
    refused("size-missing", "9112 7.1", CHUNKED + b"\r\nhello\r\n0\r\n\r\n", NO_SIZE, head=True),
    refused("size-missing-with-extension", "9112 7.1", CHUNKED + b";a\r\n", NO_SIZE, head=True),
    refused("size-negative", "9112 7.1", CHUNKED + b"-5\r\nhello\r\n", NO_SIZE, head=True),
    refused("size-0x", "9112 7.1: smuggling", CHUNKED + b"0x5\r\nhello\r\n", NO_SIZE, head=True),
    refused("size-underscore", "9112 7.1: smuggling", CHUNKED + b"1_0\r\nhello\r\n", NO_SIZE, head=True),
    refused("size-space-first", "9112 7.1", CHUNKED + b" 5\r\nhello\r\n", NO_SIZE, head=True),
    refused("size-two-words", "9112 7.1", CHUNKED + b"5 5\r\nhello\r\n", NO_SIZE, head=True),
    refused("size-letter", "9112 7.1", CHUNKED + b"5g\r\nhello\r\n", NO_SIZE, head=True),
    refused(
        "size-huge",
        "9112 7.1: overflow",
        CHUNKED + b"8000000000000000\r\n",
        "chunk size is too large",
        head=True,
    ),
    refused(
        "size-wraps",
        "9112 7.1: overflow",
        CHUNKED + b"10000000000000005\r\nhello\r\n",
        "chunk size is too large",
        head=True,
    ),
    refused("size-bare-cr", "9112 2.2", CHUNKED + b"5\rX", "bare CR in a chunk size line", head=True),
    refused(
        "extension-bare-cr",
        "9112 2.2: smuggling",
        CHUNKED + b"5;a\rb\r\nhello\r\n",
        "bare CR in a chunk size line",
        head=True,
    ),
    refused(
        "extension-nul", "9112 7.1.1", CHUNKED + b"5;a\0\r\nhello\r\n", "NUL in a chunk extension", head=True
    ),
    refused(
        "extension-endless",
        "9112 7.1.1: limit",
        CHUNKED + b"5;" + b"a" * 16_400 + b"\r\n",
        "chunk size line longer than 16 KiB",
        head=True,
    ),
    refused(
        "data-too-long",
        "9112 7.1",
        CHUNKED + b"5\r\nhello!\r\n0\r\n\r\n",
        "chunk data longer than its size",
        head=True,
        body=b"hello",
    ),
    refused(
        "data-end-cr",
        "9112 7.1",
        CHUNKED + b"5\r\nhello\r\r\n0\r\n\r\n",
        "chunk data longer than its size",
        head=True,
        body=b"hello",
    ),
    refused(
        "trailer-folded", "9112 5.2", CHUNKED + b"0\r\nA: b\r\n c\r\n\r\n", "folded header line", head=True
    ),
    refused(
        "trailer-no-colon", "9112 5", CHUNKED + b"0\r\nA\r\n\r\n", "header line without a colon", head=True
    ),
    # ---- limits
    refused(
        "head-too-long",
        "csrc/http1.h: 64 KiB",
        OK + b"X: " + b"a" * 65_536,
        "response head longer than 64 KiB",
    ),
    refused(
        "headers-too-many",
        "csrc/http1.h: 64 KiB",
        OK + b"X: a\r\n" * 11_000,
        "response head longer than 64 KiB",
    ),
    refused(
        "trailers-too-long",
        "csrc/http1.h: 64 KiB, trailers included",
        CHUNKED + b"0\r\nX: " + b"a" * 65_536,
        "response head longer than 64 KiB",
        head=True,
    ),
    # ---- the peer closes
    refused("closed-at-once", "9112 8", b"", "closed before the response head"),
    refused(
        "closed-after-100", "9112 8", b"HTTP/1.1 100 Continue\r\n\r\n", "closed before the response head"
    ),
    refused("closed-in-version", "9112 8", b"HTT", "closed inside the response head"),
    refused("closed-in-head", "9112 8", OK + b"Content-Le", "closed inside the response head"),
    refused("closed-before-the-empty-line", "9112 8", OK + b"A: b\r\n", "closed inside the response head"),
    refused(
        "closed-in-body",
        "9112 8",
        OK + b"Content-Length: 5\r\n\r\nhell",
        "closed inside the body",
        head=True,
        body=b"hell",
    )._replace(keep_alive=True),
    refused("closed-in-size", "9112 8", CHUNKED + b"5", "closed inside the chunked body", head=True),
    refused(
        "closed-in-chunk",
        "9112 8",
        CHUNKED + b"5\r\nhell",
        "closed inside the chunked body",
        head=True,
        body=b"hell",
    ),
    refused(
        "closed-behind-chunk",
        "9112 8, fault A22",
        CHUNKED + b"5\r\nhello\r\n",
        "closed inside the chunked body",
        head=True,
        body=b"hello",
    ),
    refused(
        "closed-in-trailers", "9112 8", CHUNKED + b"0\r\nA: b\r\n", "closed inside the trailers", head=True
    ),
    refused("closed-before-last-line", "9112 8", CHUNKED + b"0\r\n", "closed inside the trailers", head=True),
]
