"""The part of the chat-completions API that the simulated server reads, and its errors in vLLM's words."""

from __future__ import annotations

import msgspec


class ApiError(Exception):
    """An answer other than 200, with an OpenAI error object."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class Part(msgspec.Struct, gc=False):
    type: str = "text"
    text: str | None = None


class Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[Part] | None = None

    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(p.text for p in self.content or () if p.text is not None)


class StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class ChatRequest(msgspec.Struct, gc=False):
    """Fields that matter here; all others are accepted and ignored, as most servers do."""

    messages: list[Message]
    model: str = ""
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    ignore_eos: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


_DECODER = msgspec.json.Decoder(ChatRequest)


def decode_chat(body: bytes) -> ChatRequest:
    """Raises ApiError 400 that names the field."""
    try:
        request = _DECODER.decode(body)
    except msgspec.MsgspecError as e:
        raise ApiError(400, "BadRequestError", f"invalid request: {e}") from None
    except UnicodeDecodeError as e:
        raise ApiError(400, "BadRequestError", f"invalid request: {e.reason} at byte {e.start}") from None
    if not request.messages:
        raise ApiError(400, "BadRequestError", "messages must not be empty", "messages")
    limit = request.output_limit
    if limit is not None and limit < 1:
        raise ApiError(400, "BadRequestError", f"max_tokens must be at least 1, got {limit}.", "max_tokens")
    return request


def output_tokens(request: ChatRequest, prompt_tokens: int, max_model_len: int | None, default: int) -> int:
    """The most tokens that the answer may have. Raises ApiError 400 where the context window is too
    small, in the words that vLLM uses and clients look for."""
    limit = request.output_limit
    if max_model_len is None:
        return default if limit is None else limit
    asked = 1 if limit is None else limit
    if prompt_tokens + asked > max_model_len:
        raise ApiError(
            400,
            "BadRequestError",
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{prompt_tokens + asked} tokens ({prompt_tokens} in the messages, {asked} in the completion). "
            "Please reduce the length of the messages or completion.",
        )
    return min(default, max_model_len - prompt_tokens) if limit is None else limit
