"""Base URLs: from what the user typed to a host, a port and the paths of one server.

Accepted: ``http://host:port``, with or without ``/v1``, with a path in front of it
(``http://gateway/team-a/v1``), or the full path of the chat endpoint; ``host:port`` alone means http. The
name is resolved once, before the run, so that no look-up lies inside a measured time.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from time import monotonic_ns
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agentx_engine.errors import UserError

CHAT = "chat/completions"
_OTHER_APIS = ("completions", "responses", "messages", "embeddings", "models")


class EndpointError(UserError):
    """A base URL cannot be used, or its host not be resolved."""


class Endpoint(msgspec.Struct, frozen=True):
    """One server. Paths begin with a slash.

    `host` is the bare name or address (IPv6 without brackets), `netloc` what goes into a Host header.
    `root` is the path in front of ``/v1``, where /health, /metrics and the like are; empty for most.
    """

    host: str
    port: int
    root: str = ""
    chat_path: str = f"/v1/{CHAT}"
    tls: bool = False

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.netloc}"

    @property
    def base_url(self) -> str:
        return f"{self.origin}{self.root}"

    @property
    def chat_url(self) -> str:
        return f"{self.origin}{self.chat_path}"

    @property
    def models_path(self) -> str:
        return f"{self.root}/v1/models"

    def url(self, path: str) -> str:
        """The URL of a path beside ``/v1``, for example ``/health``."""
        return f"{self.base_url}{path}"

    def __str__(self) -> str:
        return self.base_url


class Resolved(msgspec.Struct, frozen=True):
    """The addresses of an endpoint, in the order in which they should be tried.

    Each is (family, socket address as from getaddrinfo). `dns_ns` is what the look-up took; it is
    reported apart and is part of no latency. None for a numeric address, where nothing is looked up.
    """

    addresses: tuple[tuple[int, tuple[Any, ...]], ...]
    dns_ns: int | None


def parse_base_url(url: str, endpoint_path: str | None = None) -> Endpoint:
    """An endpoint from a base URL and, where the chat API is not at ``/v1/chat/completions``, its path.

    `endpoint_path` is appended to the URL's own path, a doubled ``/v1`` collapsed. Raises EndpointError;
    the parts of a URL that may hold a secret are not repeated in it.
    """
    text = url.strip()
    if "://" not in text:
        text = f"http://{text}"
    if re.search(r"[\x00-\x20\x7f]", text):  # urlsplit would drop some of these silently
        raise EndpointError(f"{_shown(text)!r}: spaces and control characters cannot be in a URL")
    try:
        parts = urlsplit(text)
    except ValueError as e:
        raise EndpointError(f"{_shown(text)}: not a URL: {e}") from None
    shown = _shown(text)
    if parts.scheme == "https":
        raise EndpointError(
            f"{shown}: TLS is not supported by the native transport, which is the one that measures. "
            "Give the server's http:// address, or end TLS in a local proxy (stunnel, nginx) and give its URL"
        )
    if parts.scheme != "http":
        raise EndpointError(f"{shown}: the scheme is {parts.scheme!r}; http://HOST:PORT is expected")
    if "@" in parts.netloc:
        raise EndpointError(
            f"{shown}: a user name or password in the URL is not used; give --api-key or --header"
        )
    if parts.query or text.endswith("?"):
        raise EndpointError(f"{shown}: a query in a base URL is not supported; give only HOST, PORT and path")
    if parts.fragment or text.endswith("#"):
        raise EndpointError(f"{shown}: a fragment (#...) is never sent to a server; leave it out")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.netloc.endswith(":"):
        raise EndpointError(f"{shown}: the port must be a number from 1 to 65535")
    host = _host(parts.hostname or "", parts.netloc, shown)

    base = _path(parts.path, shown)
    custom = None if endpoint_path is None else _path(endpoint_path, f"endpoint path {endpoint_path!r}")
    if base.endswith(f"/{CHAT}"):
        base = base.removesuffix(f"/{CHAT}")
    elif (last := base.rpartition("/")[2]) in _OTHER_APIS and "/v1/" in base:
        raise EndpointError(
            f"{shown}: /v1/{last} is another API; this engine sends chat completions. "
            "Give the URL without that path"
        )
    root = base.removesuffix("/v1")
    if custom is None:
        # A full path without /v1 in it is taken as it stands.
        prefix = base if parts.path.rstrip("/").endswith(f"/{CHAT}") else f"{root}/v1"
        chat_path = f"{prefix}/{CHAT}"
    else:
        chat_path = (root if custom == "/v1" or custom.startswith("/v1/") else base) + custom
    return Endpoint(host, 80 if port is None else port, root, chat_path)


def resolve(endpoint: Endpoint) -> Resolved:
    """Looks the host up; blocks. IPv4 addresses come first, since inference servers listen on 0.0.0.0
    unless told otherwise. Raises EndpointError that names the host."""
    begin = monotonic_ns()
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else e
        raise EndpointError(
            f"{endpoint}: the host name {endpoint.host!r} cannot be resolved ({why}); "
            "check its spelling, or give the address"
        ) from None
    took = monotonic_ns() - begin
    usable = [(int(family), tuple(address)) for family, _, _, _, address in found]
    usable = [a for a in dict.fromkeys(usable) if a[0] in (socket.AF_INET, socket.AF_INET6)]
    usable.sort(key=lambda a: a[0] != socket.AF_INET)
    return Resolved(tuple(usable), None if _is_address(endpoint.host) else took)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _shown(url: str) -> str:
    """The URL without the parts that may be secret."""
    url = re.sub(r"//.*@", "//***@", url)
    return re.sub(r"([?#]).+", r"\1***", url)


def _host(host: str, netloc: str, shown: str) -> str:
    if not host:
        raise EndpointError(f"{shown}: no host; http://HOST:PORT is expected")
    if netloc.startswith("["):
        if not _is_address(host):
            raise EndpointError(f"{shown}: {host!r} is not an IPv6 address")
        return host
    if ":" in host or netloc.count(":") > 1:
        raise EndpointError(f"{shown}: an IPv6 address needs brackets: http://[{host}]:PORT")
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            raise EndpointError(f"{shown}: {host!r} is not a host name") from None
    if not re.fullmatch(r"[A-Za-z0-9._-]+", host):
        raise EndpointError(f"{shown}: {host!r} is not a host name")
    return host


def _path(path: str, shown: str) -> str:
    """With one leading slash and no trailing ones; empty for the root."""
    if not re.fullmatch(r"[!-~]*", path) or "?" in path or "#" in path:
        raise EndpointError(
            f"{shown}: the path may hold printable ASCII without spaces, ? and #; encode others"
        )
    path = re.sub(r"/{2,}", "/", path.rstrip("/"))
    return path if not path or path.startswith("/") else f"/{path}"
