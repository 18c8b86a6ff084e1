"""HTTP around the simulated engine: an OpenAI-compatible server in one process on one core.

The web framework parses requests and owns connections; the tokens of a stream bypass it (see `stream`).
A body above `INLINE_BODY_BYTES` is parsed and hashed on a worker thread, because a prompt of a million
words would otherwise hold back every token of every other stream for tens of milliseconds.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic_ns
from typing import Any

from aiohttp import HttpVersion11, web

import agentx_engine
from agentx_engine.sim.api import ApiError, ChatRequest, decode_chat, output_tokens
from agentx_engine.sim.cache import Prompt, tokenize
from agentx_engine.sim.engine import Engine, Generation
from agentx_engine.sim.metrics import CONTENT_TYPE
from agentx_engine.sim.model import Fate, SimOptions, draw_fate
from agentx_engine.sim.requestlog import RequestLog, RequestRecord
from agentx_engine.sim.stream import EventStream, answer_text, answer_words

INLINE_BODY_BYTES = 32 * 1024
MAX_BODY_BYTES = 1 << 30

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SimServer:
    """The server on the running loop: `start` binds and returns the port, `stop` ends everything.

    All state belongs to the loop's thread. Streams that are open at `stop` are cut.
    """

    def __init__(self, options: SimOptions) -> None:
        self.options = options
        self.log = RequestLog(options.log)
        self.engine = Engine(options)
        self.requests = 0
        self._started_s = int(time.time())
        self._stopping = False
        self._worker = ThreadPoolExecutor(1, "tokenize")
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Raises OSError if the address cannot be bound."""
        answer_words()
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics),
                web.get("/metrics/", self._metrics),
                web.post("/reset_prefix_cache", self._reset_cache),
                web.post("/flush_cache", self._reset_cache),
                web.get("/flush_cache", self._reset_cache),
            ]
        )
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=self.options.keep_alive_s,
            shutdown_timeout=0.5,
            read_bufsize=1 << 20,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self.options.host, self.options.port, backlog=4096).start()
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        self._stopping = True
        self.engine.abort_all("shutdown")
        if self._runner is not None:
            await self._runner.cleanup()
        self.engine.close()
        self._worker.shutdown()
        self.log.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Checks the key of /v1 as vLLM does, and turns errors into their JSON."""
        try:
            key = self.options.api_key
            if key is not None and request.path.startswith("/v1"):
                given = request.headers.get("Authorization", "")
                if not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
                    raise ApiError(401, "AuthenticationError", "Unauthorized")
            response = await handler(request)
        except ApiError as e:
            response = web.json_response(e.body, status=e.status)
        except web.HTTPException as e:
            body = {"error": {"message": e.reason, "type": "HTTPError", "param": None, "code": e.status}}
            response = web.json_response(body, status=e.status)
        if not response.prepared:
            response.headers["Server"] = "agentx-engine-sim"
        return response

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        record = RequestRecord(number=self.requests, arrival_ns=monotonic_ns())
        self.requests += 1
        record.request_id = request.headers.get("X-Request-ID")
        record.correlation_id = request.headers.get("X-Correlation-ID")
        if request.transport is not None and (peer := request.transport.get_extra_info("peername")):
            record.peer_port = peer[1]
        try:
            response = await self._answer(request, record)
            record.status = response.status
        except ApiError as e:
            record.status, record.ended, record.error = e.status, "refused", str(e)
            raise
        except (asyncio.CancelledError, ConnectionError):
            record.ended = "shutdown" if self._stopping else "client"
            raise
        finally:
            record.cut = record.ended == "client"
            record.end_ns = monotonic_ns()
            self.log.write(record)
        return response

    async def _answer(self, request: web.Request, record: RequestRecord) -> web.StreamResponse:
        options = self.options
        body = await request.read()
        record.body_ns = monotonic_ns()
        record.body_bytes = len(body)
        if len(body) > INLINE_BODY_BYTES:
            loop = asyncio.get_running_loop()
            chat, prompt = await loop.run_in_executor(self._worker, self._read, body)
        else:
            chat, prompt = self._read(body)
        del body
        record.model = chat.model
        record.stream = bool(chat.stream)
        record.roles = dict(Counter(m.role for m in chat.messages))
        record.max_tokens = chat.output_limit
        record.ignore_eos = bool(chat.ignore_eos)
        if chat.model not in options.model:
            message = f"The model `{chat.model}` does not exist."
            raise ApiError(404, "NotFoundError", message, "model")
        record.prompt_tokens = prompt.tokens
        limit = output_tokens(chat, prompt.tokens, options.max_model_len, options.default_max_tokens)
        fate = draw_fate(options, record.number, limit, record.ignore_eos)
        if fate.error in ("500", "503"):
            raise ApiError(int(fate.error), "InternalServerError", "simulated failure")

        if not chat.stream:
            generation = await self._generate(record, prompt, fate, None)
            if generation.ended == "shutdown":
                raise ConnectionResetError
            if generation.ended == "error":
                raise ApiError(500, "InternalServerError", "simulated failure in the middle of the answer")
            return web.json_response(self._whole_answer(generation, chat))

        if request.version < HttpVersion11:
            raise ApiError(505, "BadRequestError", "a stream needs HTTP/1.1 (chunked transfer coding)")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.headers["Server"] = "agentx-engine-sim"
        response.enable_chunked_encoding()
        await response.prepare(request)
        record.status = response.status
        transport = request.transport
        if transport is None:
            raise ConnectionResetError
        answer_id = f"chatcmpl-{record.number:032x}"
        stream = EventStream(transport, answer_id, int(time.time()), chat.model)
        stream.role()
        generation = await self._generate(record, prompt, fate, stream)
        if generation.ended in ("length", "stop"):
            stream.finish(self._usage(generation) if chat.wants_usage and not options.no_usage else None)
        elif generation.ended != "error":
            # Half an answer must not look whole: the connection goes without the final chunk.
            transport.abort()
            raise ConnectionResetError
        await response.write_eof()
        return response

    async def _generate(
        self, record: RequestRecord, prompt: Prompt, fate: Fate, stream: EventStream | None
    ) -> Generation:
        """Runs a generation to its end; a handler that is cancelled (client gone) ends it."""
        generation = Generation(
            self.engine,
            number=record.number,
            arrival_ns=record.arrival_ns,
            prompt=prompt,
            fate=fate,
            stream=stream,
        )
        self.engine.submit(generation)
        try:
            await generation.done
        finally:
            self.engine.abort(generation, "shutdown" if self._stopping else "client")
            record.admitted_ns = generation.admitted_ns
            record.first_token_ns = generation.first_token_ns
            record.last_token_ns = generation.last_token_ns
            if generation.admitted_ns is not None:
                record.cached_tokens = generation.cached
            record.completion_tokens = generation.produced
            record.blocked = generation.blocked
            record.ended = generation.ended
        return generation

    def _read(self, body: bytes) -> tuple[ChatRequest, Prompt]:
        chat = decode_chat(body)
        messages = ((m.role, m.text()) for m in chat.messages)
        return chat, tokenize(messages, self.options.block_size, self.options.template_overhead)

    def _usage(self, generation: Generation) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": generation.prompt.tokens,
            "total_tokens": generation.prompt.tokens + generation.produced,
            "completion_tokens": generation.produced,
        }
        cached = None if self.options.no_cached_tokens else {"cached_tokens": generation.cached}
        usage["prompt_tokens_details"] = cached
        if generation.reasoning:
            usage["completion_tokens_details"] = {"reasoning_tokens": generation.reasoning}
        return usage

    def _whole_answer(self, generation: Generation, chat: ChatRequest) -> dict[str, Any]:
        thought = generation.reasoning
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer_text(generation.number, thought, generation.produced - thought).decode(),
        }
        if thought:
            message["reasoning_content"] = answer_text(generation.number, 0, thought).decode()
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": generation.ended}
        return {
            "id": f"chatcmpl-{generation.number:032x}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": chat.model,
            "choices": [choice],
            "usage": None if self.options.no_usage else self._usage(generation),
        }

    async def _models(self, _: web.Request) -> web.Response:
        models = [
            {
                "id": name,
                "object": "model",
                "created": self._started_s,
                "owned_by": "agentx-engine",
                "root": name,
                "parent": None,
                "max_model_len": self.options.max_model_len,
            }
            for name in self.options.model
        ]
        return web.json_response({"object": "list", "data": models})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": f"agentx-engine-sim {agentx_engine.__version__}"})

    async def _metrics(self, _: web.Request) -> web.Response:
        self.engine.metrics.generation_tokens = self.engine.generated
        page = self.engine.metrics.render(self.options.model[0])
        return web.Response(body=page.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _reset_cache(self, _: web.Request) -> web.Response:
        self.engine.cache.reset()
        return web.Response()
