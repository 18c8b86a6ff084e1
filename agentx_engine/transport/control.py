"""HTTP beside the measured traffic: health, models, probes, cache reset. Never timed.

One client for a run, on the web framework, with no proxy from the environment. It carries the run's
headers, and it is the one place that knows which of them are secret: every text that comes back from a
server or a library passes `redact` before it may appear in an error, a report or a log.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from agentx_engine.errors import PreflightError, UserError

MAX_ANSWER_BYTES = 8 << 20
_WORDS_IN_ERRORS = 400  # characters of a server's answer that an error quotes
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|password|credential", re.IGNORECASE)


class Unreachable(PreflightError):
    """No HTTP answer came; the message says why."""


class Answer(msgspec.Struct):
    """A whole HTTP answer. `text` is redacted and complete up to MAX_ANSWER_BYTES."""

    status: int
    content_type: str
    text: str

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The decoded body, or None if it is not JSON."""
        try:
            return msgspec.json.decode(self.text)
        except msgspec.DecodeError:
            return None

    def said(self) -> str:
        """The server's own words, bounded: its error message where there is one, else the body."""
        body = self.json()
        if isinstance(body, dict):
            error = body.get("error", body)
            if isinstance(error, dict):
                error = error.get("message") or error.get("detail") or error
            body = error if isinstance(error, str) else msgspec.json.encode(error).decode()
            words = body
        else:
            words = self.text
        words = " ".join(words.split())
        return words[:_WORDS_IN_ERRORS] or "(empty body)"


class ControlClient:
    """Use as an asynchronous context manager. Its repr shows no header.

    `api_key` becomes a bearer token; `headers` are added to every request. UserError if either holds
    what a header cannot.
    """

    def __init__(self, headers: Mapping[str, str] | None = None, api_key: str | None = None) -> None:
        self._headers = dict(headers or {})
        secrets = [v for k, v in self._headers.items() if _SECRET_NAME.search(k)]
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
            secrets.append(self._headers["Authorization"])
        for name, value in self._headers.items():
            if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", name + value):
                raise UserError(f"header {name!r}: control characters cannot be in a header")
        # Also the secret alone, without its scheme ("Bearer ...") or cookie name.
        parts = {part for secret in secrets for part in (secret, *re.split(r"[\s=;]+", secret))}
        self._secrets = sorted((p for p in parts if len(p) >= 4 and p != "Bearer"), key=len, reverse=True)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers=self._headers, trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    async def get(self, url: str, timeout_s: float = 10.0) -> Answer:
        return await self._request("GET", url, None, timeout_s)

    async def post(self, url: str, body: Any = None, timeout_s: float = 10.0) -> Answer:
        return await self._request("POST", url, body, timeout_s)

    async def _request(self, method: str, url: str, body: Any, timeout_s: float) -> Answer:
        """Raises Unreachable if there is no complete answer within the time."""
        if self._session is None:
            raise RuntimeError("the client is not open")
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(
                    method, url, data=data, headers=headers, timeout=aiohttp.ClientTimeout(total=None)
                ) as response,
            ):
                raw = bytearray()
                async for piece in response.content.iter_any():
                    raw += piece
                    if len(raw) > MAX_ANSWER_BYTES:
                        break
                text = self.redact(raw[:MAX_ANSWER_BYTES].decode("utf-8", "replace"))
                return Answer(response.status, response.content_type, text)
        except TimeoutError:
            raise Unreachable(f"{url}: no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as e:
            raise Unreachable(f"{url}: {self.redact(_reason(e))}") from None


def _reason(error: Exception) -> str:
    """The kernel's words where there are any: the library's own repeat the address and more."""
    if isinstance(error, aiohttp.ClientConnectorError):
        code = error.os_error.errno
        if code is not None and code > 0:
            return os.strerror(code)
        return error.os_error.strerror or str(error.os_error)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection without an answer"
    return str(error) or type(error).__name__
