"""Secrets never reach a file or a screen.

Two nets. Settings are redacted by name: headers, body fields, URL credentials and command-line values
that look like secrets are replaced before anything is written. Texts that come from outside (a server that
repeats the key in its error message) are scrubbed of the secrets' values themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

REDACTED = "[redacted]"
MIN_SECRET = 6  # a shorter value is scrubbed nowhere: it would also hit ordinary text

_SECRET_NAME = re.compile(
    r"authorization|api[-_]?key|cookie|token$|^token|[-_]token|secret|password|passwd|credential|signature",
    re.IGNORECASE,
)
# Names of ordinary fields that the pattern would catch.
_HARMLESS = re.compile(
    r"(max|min)_?\w*tokens?$|tokens$|^tokenize|^stop_token|^logprob|^add_|^skip_", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    """True if a header or a field of this name is likely to hold a secret."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS.search(name)


def redact_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, REDACTED if is_secret_name(name) else value) for name, value in headers]


def redact_json(value: Any) -> Any:
    """A copy of a JSON value in which the values of secret-looking keys are replaced, at any depth."""
    if isinstance(value, dict):
        return {k: REDACTED if is_secret_name(str(k)) else redact_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [redact_json(v) for v in value]
    return value


def redact_url(url: str) -> str:
    """The URL without user and password, and with secret-looking query values replaced."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return REDACTED
    host = parts.netloc.rpartition("@")[2]
    if host != parts.netloc:
        host = f"{REDACTED}@{host}"
    query = "&".join(
        f"{key}={REDACTED}" if sep and is_secret_name(key) else key + sep + value
        for key, sep, value in (field.partition("=") for field in parts.query.split("&"))
    )
    return urlunsplit((parts.scheme, host, parts.path, query, parts.fragment))


def _secrets_in_json(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if is_secret_name(str(key)):
                yield from _strings(inner)
            else:
                yield from _secrets_in_json(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _secrets_in_json(inner)


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def secrets_of(
    api_key: str | None, headers: Iterable[tuple[str, str]], extra_body: Any, urls: Iterable[str] = ()
) -> list[str]:
    """The values that must not be seen: whole header values and their parts (`Bearer XYZ`: XYZ)."""
    found = [api_key] if api_key else []
    for name, value in headers:
        if is_secret_name(name):
            found.append(value)
            found.extend(part.partition("=")[2] or part for part in re.split(r"[ ;,]+", value))
    found.extend(_secrets_in_json(extra_body))
    for url in urls:
        try:
            parts = urlsplit(url)
        except ValueError:
            continue
        if parts.password:
            found.append(parts.password)
        for field in parts.query.split("&"):
            key, _, value = field.partition("=")
            if value and is_secret_name(key):
                found.append(value)
    return found


class Scrubber:
    """Replaces the values of known secrets in texts."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = sorted({s for s in secrets if len(s) >= MIN_SECRET}, key=len, reverse=True)

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
            # A bounded message may end inside the secret.
            for length in range(len(secret) - 1, MIN_SECRET + 1, -1):
                if text.endswith(secret[:length]):
                    text = text[:-length] + REDACTED
                    break
        return text

    def json(self, value: Any) -> Any:
        if not self._secrets:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(k) if isinstance(k, str) else k: self.json(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(v) for v in value]
        return value
