"""A hub on this machine: answers what a test says, and keeps what it was sent."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Hub:
    """`answers[(method, path)]` is (status, headers, JSON); `requests` are (method, path, body)."""

    url: str = ""
    answers: dict[tuple[str, str], tuple[int, dict[str, str], Any]] = field(default_factory=dict)
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)


@contextmanager
def local_hub(monkeypatch: pytest.MonkeyPatch, token: str | None = None) -> Iterator[Hub]:
    """The hub's client talks to this one, with `token` as its only token."""
    from huggingface_hub import constants

    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            hub.requests.append((self.command, self.path, body))
            hub.tokens.add(self.headers.get("Authorization"))
            unknown = (404, {"X-Error-Code": "RepoNotFound"}, {"error": "not found"})
            status, headers, answer = hub.answers.get((self.command, path), unknown)
            data = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_HEAD = do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
