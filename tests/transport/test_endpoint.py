"""Base URLs."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentx_engine.errors import UserError
from agentx_engine.transport.endpoint import Endpoint, EndpointError, parse_base_url, resolve

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("url", "host", "port", "root", "chat"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, "", CHAT),
        ("http://127.0.0.1:8000/", "127.0.0.1", 8000, "", CHAT),
        ("http://127.0.0.1:8000/v1", "127.0.0.1", 8000, "", CHAT),
        ("http://127.0.0.1:8000/v1/", "127.0.0.1", 8000, "", CHAT),
        ("http://127.0.0.1:8000/v1/chat/completions", "127.0.0.1", 8000, "", CHAT),
        ("http://127.0.0.1:8000//v1//chat/completions/", "127.0.0.1", 8000, "", CHAT),
        ("localhost:8000/v1", "localhost", 8000, "", CHAT),
        ("localhost", "localhost", 80, "", CHAT),
        ("  http://server-1.example.org  ", "server-1.example.org", 80, "", CHAT),
        ("HTTP://HOST:81", "host", 81, "", CHAT),
        ("http://[::1]:8000", "::1", 8000, "", CHAT),
        ("http://[fe80::1]/v1", "fe80::1", 80, "", CHAT),
        ("http://gw/team-a", "gw", 80, "/team-a", "/team-a" + CHAT),
        ("http://gw/team-a/v1", "gw", 80, "/team-a", "/team-a" + CHAT),
        ("http://gw/api/chat/completions", "gw", 80, "/api", "/api/chat/completions"),
        ("http://bücher.example:1", "xn--bcher-kva.example", 1, "", CHAT),
    ],
)
def test_what_a_url_means(url, host, port, root, chat):
    e = parse_base_url(url)
    assert e == Endpoint(host, port, root, chat)
    assert e.models_path == f"{root}/v1/models"
    assert e.url("/health") == f"{e.origin}{root}/health"


@pytest.mark.parametrize(
    ("url", "path", "chat"),
    [
        ("http://h", "/v1/chat/completions", CHAT),
        ("http://h/v1", "/v1/chat/completions", CHAT),
        ("http://h/v1", "v1/chat/completions", CHAT),
        ("http://h/v1", "/custom/chat", "/v1/custom/chat"),
        ("http://h/v1", "chat/completions", CHAT),
        ("http://h", "/generate", "/generate"),
        ("http://h/a/v1", "/v1/x", "/a/v1/x"),
    ],
)
def test_a_path_of_its_own_is_appended_and_v1_not_doubled(url, path, chat):
    assert parse_base_url(url, path).chat_path == chat


def test_how_it_is_written_in_a_request_and_in_a_report():
    e = parse_base_url("http://[::1]:8000/x/v1")
    assert (e.netloc, e.base_url, e.chat_url) == (
        "[::1]:8000",
        "http://[::1]:8000/x",
        "http://[::1]:8000/x/v1/chat/completions",
    )
    assert parse_base_url("http://host:80").netloc == "host"
    assert str(e) == e.base_url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://api.example.com/v1", "TLS is not supported by the native transport"),
        ("ftp://h", "the scheme is 'ftp'"),
        ("http://", "no host"),
        ("", "no host"),
        ("http://:8000", "no host"),
        ("http://h:0", "the port must be a number from 1 to 65535"),
        ("http://h:65536", "the port must be"),
        ("http://h:80a", "the port must be"),
        ("http://h:", "the port must be"),
        ("http://h:-1", "the port must be"),
        ("http://h?x=1", "a query in a base URL"),
        ("http://h/v1?", "a query in a base URL"),
        ("http://h/v1#x", "a fragment"),
        ("http://u:p@h", "a user name or password"),
        ("http://u@h", "a user name or password"),
        ("http://::1:8000", "brackets|the port must be"),
        ("http://[::zz]:8000", "not a URL|not an IPv6"),
        ("http://[::1", "not a URL"),
        ("http://a b", "spaces and control characters"),
        ("http://h/\r\nX: y", "spaces and control characters"),
        ("http://h/é", "printable ASCII"),
        ("http://h_ost!", "is not a host name"),
        ("http://h/v1/completions", "/v1/completions is another API"),
        ("http://h/v1/responses", "another API"),
    ],
)
def test_what_is_refused_and_why(url, said):
    with pytest.raises(EndpointError, match=said) as e:
        parse_base_url(url)
    assert isinstance(e.value, UserError)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@h",
        "http://hunter2@h",
        "http://h?api-key=hunter2",
        "http://h#hunter2",
        "https://user:hunter2@h/v1?key=hunter2",
        "http://user:hun/ter2:hunter2@h",
    ],
)
def test_a_secret_in_a_url_is_not_repeated(url):
    with pytest.raises(EndpointError) as e:
        parse_base_url(url)
    assert "hunter2" not in str(e.value)


@given(st.text(max_size=30))
def test_any_text_is_a_url_or_a_clear_refusal(text):
    for url in (text, f"http://{text}", f"http://h/{text}", f"http://h:{text}"):
        try:
            e = parse_base_url(url)
        except EndpointError:
            continue
        request_line = f"POST {e.chat_path} HTTP/1.1\r\nHost: {e.netloc}\r\n"
        assert request_line.isascii() and request_line.count("\r\n") == 2 and request_line.count(" ") == 3
        assert 1 <= e.port <= 65535


def test_a_numeric_address_is_not_looked_up():
    found = resolve(parse_base_url("http://127.0.0.1:8000"))
    assert found.addresses == ((socket.AF_INET, ("127.0.0.1", 8000)),)
    assert found.dns_ns is None
    assert resolve(parse_base_url("http://[::1]:9")).addresses[0][1][:2] == ("::1", 9)


def test_a_name_is_looked_up_once_ipv4_first_and_the_time_kept(monkeypatch):
    calls = []

    def getaddrinfo(host, port, type):
        calls.append((host, port))
        v6 = (socket.AF_INET6, type, 6, "", ("::1", port, 0, 0))
        v4 = (socket.AF_INET, type, 6, "", ("10.0.0.1", port))
        return [v6, v4, v6]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    found = resolve(parse_base_url("http://server:8000"))
    assert calls == [("server", 8000)]
    assert found.addresses == (
        (socket.AF_INET, ("10.0.0.1", 8000)),
        (socket.AF_INET6, ("::1", 8000, 0, 0)),
    )
    assert found.dns_ns is not None and found.dns_ns >= 0


def test_a_name_that_does_not_exist_is_named(monkeypatch):
    def getaddrinfo(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(EndpointError, match=r"'nowhere' cannot be resolved \(Name or service not known\)"):
        resolve(parse_base_url("http://nowhere:8000"))
