"""Secrets by name and by value."""

import pytest

from agentx_engine.artifacts.redact import (
    REDACTED,
    Scrubber,
    is_secret_name,
    redact_headers,
    redact_json,
    redact_url,
    secrets_of,
)

CANARY = "sk-canary-0123456789abcdef"


@pytest.mark.parametrize(
    "name",
    ["Authorization", "authorization", "api-key", "X-API-Key", "x-api-key", "apikey", "Cookie", "Set-Cookie",
     "token", "X-Auth-Token", "hf_token", "access_token", "Proxy-Authorization", "client_secret", "password"],
)  # fmt: skip
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "max_completion_tokens", "min_tokens", "stop_token_ids", "temperature", "X-Request-ID",
     "model", "logprobs", "skip_special_tokens", "thinking_budget_tokens", "Accept", "tokenizer"],
)  # fmt: skip
def test_ordinary_names(name: str) -> None:
    assert not is_secret_name(name)


def test_headers_and_bodies() -> None:
    assert redact_headers([("X-Api-Key", CANARY), ("X-Run", "7")]) == [
        ("X-Api-Key", REDACTED),
        ("X-Run", "7"),
    ]
    body = {"a": [{"api_key": CANARY, "n": 1}], "max_tokens": 5, "auth": {"token": {"x": CANARY}}}
    assert redact_json(body) == {
        "a": [{"api_key": REDACTED, "n": 1}],
        "max_tokens": 5,
        "auth": {"token": REDACTED},
    }


def test_urls() -> None:
    assert redact_url(f"http://user:{CANARY}@host:8000/v1?api_key={CANARY}&a=1") == (
        f"http://{REDACTED}@host:8000/v1?api_key={REDACTED}&a=1"
    )
    assert redact_url("http://127.0.0.1:8000") == "http://127.0.0.1:8000"
    assert redact_url("http://[::1]:8000/v1") == "http://[::1]:8000/v1"


def test_secrets_that_are_scrubbed() -> None:
    secrets = secrets_of(
        "key-of-the-run",
        [
            ("Authorization", f"Bearer {CANARY}"),
            ("Cookie", "session=cookie-value-1; theme=dark"),
            ("X-Run", "seven7"),
        ],
        {"nested": [{"api_key": "nested-secret"}], "prompt": "harmless"},
        ["http://me:url-password@host/?token=query-token"],
    )
    scrub = Scrubber(secrets)
    for secret in (
        "key-of-the-run",
        CANARY,
        "cookie-value-1",
        "nested-secret",
        "url-password",
        "query-token",
    ):
        assert secret not in scrub.text(f"server says {secret} is wrong")
    assert scrub.text("seven7 harmless dark") == "seven7 harmless dark"


def test_a_message_that_was_cut_inside_the_secret() -> None:
    scrub = Scrubber([CANARY])
    assert (
        scrub.text(f"Incorrect API key provided: {CANARY[:15]}") == f"Incorrect API key provided: {REDACTED}"
    )


def test_json_is_scrubbed_at_any_depth() -> None:
    value = {"errors": [{"message": f"bad key {CANARY}"}], f"k {CANARY}": 1, "n": None}
    assert CANARY not in str(Scrubber([CANARY]).json(value))
    assert Scrubber([]).json(value) is value


def test_short_values_leave_text_alone() -> None:
    assert Scrubber(["on", "1"]).text("connection 1") == "connection 1"
