"""One line of JSON per request of the simulated server: what it knows, for tests and for the curious.

Every time is CLOCK_MONOTONIC in ns of the server's host (the client's own clock, on one machine); what
did not happen is null. Lines are in order of the requests' ends and are written as each ends, so the
file is complete once the server has stopped.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class RequestRecord(msgspec.Struct, kw_only=True):
    """The fields of a line.

    number: order of arrival, from 0. peer_port: the client's port, the same for requests that shared a
    connection. arrival_ns: request head parsed; body_ns: body complete; admitted_ns: prefill begins;
    first_token_ns, last_token_ns: just before that token was written; end_ns: answer complete or given up.

    request_id, correlation_id: headers X-Request-ID and X-Correlation-ID. roles: messages per role.
    max_tokens: the output limit in the request. status: HTTP status sent, null if none was.

    ended: "length", "stop" or "error" (failure inside the stream) as the answer said; "refused" with a
    status other than 200 and `error` as the reason; "client" if the client went away, which also sets
    `cut`; "shutdown" if the server was stopped first. completion_tokens: tokens produced until then.
    blocked: times that a token waited because the client did not read.
    """

    number: int
    arrival_ns: int
    peer_port: int | None = None
    body_ns: int | None = None
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    request_id: str | None = None
    correlation_id: str | None = None
    model: str | None = None
    stream: bool | None = None
    body_bytes: int | None = None
    roles: dict[str, int] = {}
    max_tokens: int | None = None
    ignore_eos: bool | None = None
    status: int | None = None
    ended: str | None = None
    error: str | None = None
    cut: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    blocked: int = 0


class RequestLog:
    """Appends records to a file, or to nothing. Each line is one write. OSError if it cannot be opened."""

    def __init__(self, path: str | None) -> None:
        self._encoder = msgspec.json.Encoder()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = -1 if path is None else os.open(path, flags, 0o644)

    def write(self, record: RequestRecord) -> None:
        if self._fd >= 0:
            os.write(self._fd, self._encoder.encode(record) + b"\n")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_request_log(path: Path) -> list[RequestRecord]:
    """The records of a log file, in order of arrival."""
    decoder = msgspec.json.Decoder(RequestRecord)
    records = [decoder.decode(line) for line in path.read_bytes().splitlines() if line]
    return sorted(records, key=lambda r: r.number)
