"""A service of the OpenAI kind that does what a script says, over real HTTP."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Body = dict[str, Any]


@dataclass
class Reply:
    """One response: JSON `body` (or raw `text`) under `status`, or trouble on the wire."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    events: list[Any] | None = None  # server-sent: JSON, or raw strings
    cut: bool = False  # the connection dies in the middle of the body
    dropped: bool = False  # the connection dies before anything is sent
    raw: bytes | None = None  # the body, compressed with gzip already
    hang: float = 0.0  # seconds before anything is sent
    delay: float = 0.0


@dataclass
class Seen:
    """One request as it came."""

    path: str
    body: Body
    headers: dict[str, str]
    query: dict[str, str]


Script = Callable[[Seen], Reply]


def chat(text: str | None, *more: str, finish: str = "stop", **fields: Any) -> Body:
    """A chat completion; `more` are further choices, `fields` go into the first message."""
    messages = [{"role": "assistant", "content": text, **fields}]
    messages += [{"role": "assistant", "content": other} for other in more]
    choices = [
        {"index": i, "message": message, "finish_reason": finish}
        for i, message in enumerate(messages)
    ]
    made = 7 * len(choices)
    usage = {"prompt_tokens": 11, "completion_tokens": made, "total_tokens": 11 + made}
    return {"id": "c", "object": "chat.completion", "choices": choices, "usage": usage}


def refusal(message: str, param: str | None = None, code: str | None = None) -> Body:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "param": param, "code": code, "type": "invalid"}}


class Service:
    """Serves `script` on a port of its own, in a thread of its own."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self.port = 0
        self.active = self.most_active = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        is_json = "json" in request.headers.get("content-type", "")
        body = json.loads(raw) if raw and is_json else {"raw": raw.decode(errors="replace")}
        seen = Seen(request.path, body, dict(request.headers), dict(request.query))
        self.seen.append(seen)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            return await self._answer(request, self.script(seen))
        finally:
            self.active -= 1

    async def _answer(self, request: web.Request, reply: Reply) -> web.StreamResponse:
        await asyncio.sleep(reply.hang + reply.delay)
        if reply.events is not None:
            return await self._stream(request, reply.events, reply.cut)
        if reply.dropped:
            assert request.transport is not None
            request.transport.abort()
        if reply.raw is not None:
            headers = reply.headers | {"Content-Encoding": "gzip"}
            return web.Response(status=reply.status, body=reply.raw, headers=headers)
        text = reply.text if reply.text is not None else json.dumps(reply.body)
        if reply.cut:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            response.content_length = len(text.encode())
            await response.prepare(request)
            await response.write(text.encode()[: len(text) // 2])
            assert request.transport is not None
            request.transport.close()
            return response
        kind = "application/json" if reply.text is None else "text/plain"
        return web.Response(
            status=reply.status, text=text, headers=reply.headers, content_type=kind
        )

    async def _stream(
        self, request: web.Request, events: list[Any], cut: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            raw = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
            await response.write(raw.encode())
        if cut:
            assert request.transport is not None
            request.transport.close()
        return response

    def __enter__(self) -> "Service":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


def in_turn(*replies: Reply | Body) -> Script:
    """Replies in order, the last one for ever."""
    rest: Iterator[Reply | Body] = iter(replies[:-1])

    def script(seen: Seen) -> Reply:
        found = next(rest, replies[-1])
        return found if isinstance(found, Reply) else Reply(found)

    return script


@contextmanager
def serving(*replies: Reply | Body) -> Iterator[Service]:
    """A service that replies in turn."""
    with Service(in_turn(*replies)) as service:
        yield service
