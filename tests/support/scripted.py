"""A server that does exactly what a test says, byte by byte, on raw sockets in a thread.

async/sync script(conn: Connection) is called for each accepted connection:

def script(conn):
    conn.request()                 # read one whole request (head + body)
    conn.send(head(), chunk(event("hi")))
    conn.pause(0.01)
    conn.reset()                   # or conn.close(), or return (closes)
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def text(word: str) -> bytes:
    return (
        b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%b"},'
        b'"finish_reason":null}]}\n\n' % word.encode()
    )


def finish(reason: str = "length") -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"%b"}]}\n\n' % reason.encode()


def usage(prompt: int, completion: int, cached: int | None = None) -> bytes:
    details = b"" if cached is None else b',"prompt_tokens_details":{"cached_tokens":%d}' % cached
    return b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d%b}}\n\n' % (
        prompt,
        completion,
        details,
    )


def answer(*words: str) -> bytes:
    """A whole good response."""
    events = [text(w) for w in words] + [finish(), usage(3, len(words)), DONE]
    return STREAM + b"".join(chunk(e) for e in events) + END


class Received(NamedTuple):
    head: bytes
    body: bytes
    first_byte_ns: int
    done_ns: int


class Connection:
    def __init__(self, sock: socket.socket, index: int, server: ScriptedServer) -> None:
        self.sock = sock
        self.index = index  # 0 for the first connection that the server accepted
        self.server = server
        self._buffer = b""

    def request(self) -> Received:
        """Reads one request; EOFError if the client closed before it began."""
        first = time.monotonic_ns() if self._buffer else 0
        while b"\r\n\r\n" not in self._buffer:
            data = self.sock.recv(65536)
            first = first or time.monotonic_ns()
            if not data:
                raise EOFError
            self._buffer += data
        head, rest = self._buffer.split(b"\r\n\r\n", 1)
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, value = line.split(b":", 1)
            if name.lower() == b"content-length":
                length = int(value)
        parts = [rest]
        have = len(rest)
        while have < length:
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError
            parts.append(data)
            have += len(data)
        whole = b"".join(parts)
        self._buffer = whole[length:]
        received = Received(head, whole[:length], first, time.monotonic_ns())
        self.server.requests.append(received)
        return received

    def send(self, *parts: bytes) -> None:
        """Each part in a write of its own."""
        for part in parts:
            self.sock.sendall(part)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        self.sock.close()


class ScriptedServer:
    """`with ScriptedServer(script) as server:`; `server.address`, `server.requests`, `server.accepted`."""

    def __init__(self, script: Callable[[Connection], None], backlog: int = 512) -> None:
        self.requests: list[Received] = []
        self.accepted = 0
        self.errors: list[BaseException] = []
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self._stopped = False
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        if self.errors:
            raise self.errors[0]

    def _accept(self) -> None:
        while not self._stopped:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(sock)
            conn = Connection(sock, self.accepted, self)
            self.accepted += 1
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn: Connection) -> None:
        try:
            self._script(conn)
        except (EOFError, OSError):
            pass
        except Exception as error:  # noqa: BLE001 - shown by the test that owns the server
            self.errors.append(error)
        finally:
            conn.close()


def serve_forever(*words: str) -> Callable[[Connection], None]:
    """Answers every request on every connection with the same good response."""

    def script(conn: Connection) -> None:
        while True:
            conn.request()
            conn.send(answer(*words))

    return script
