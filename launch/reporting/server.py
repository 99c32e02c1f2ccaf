"""Serves the live view with the standard library's HTTP server.

That server needs no installed extra, and a few people who look at runs need no faster one.
"""

import html
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from launch.reporting.live import UNREADABLE, LiveRuns
from pipeline.spec import SpecError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
NO_SCRIPTS = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
# The report's own policy is in its file; this only adds what a file cannot say.
REPORT = "frame-ancestors 'none'"
SECONDS_OF_SILENCE = 30  # after which a connection is closed


def serving(runs: LiveRuns, host: str, port: int) -> ThreadingHTTPServer:
    """A server of the list at `/` and of reports at `/run/KEY`, bound but not yet serving.

    Port 0 takes a free one.

    Raises:
        SpecError: the address cannot be bound.
    """

    class Handler(LiveHandler):
        pass

    Handler.runs = runs
    try:
        return ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise SpecError(
            f"--port {port}: cannot listen at {host}: {error}; choose another"
        ) from None


class LiveHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD, and nothing else."""

    runs: LiveRuns
    server_version, sys_version = "Rethink", ""
    timeout = SECONDS_OF_SILENCE

    def do_GET(self) -> None:
        """Answer with a page."""
        status, page, policy = self._answer()
        self.send_response(status)
        headers = HEADERS | {"Content-Length": str(len(page)), "Content-Security-Policy": policy}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page)

    do_HEAD = do_GET

    def _answer(self) -> tuple[HTTPStatus, bytes, str]:
        if not self._is_addressed():
            return HTTPStatus.FORBIDDEN, _sentence("This server is not of that name."), NO_SCRIPTS
        path = urlsplit(self.path).path
        if path == "/":
            return HTTPStatus.OK, self.runs.list_page(), NO_SCRIPTS
        key = path.removeprefix("/run/")
        try:
            page = self.runs.run_page(key) if key != path else None
        except UNREADABLE as error:
            return HTTPStatus.CONFLICT, _sentence(str(error)), NO_SCRIPTS
        if page is None:
            return HTTPStatus.NOT_FOUND, _sentence("There is no such run."), NO_SCRIPTS
        return HTTPStatus.OK, page, REPORT

    def _is_addressed(self) -> bool:
        """Whether a browser meant this server: a foreign name that resolves to it is refused."""
        if self.connection.getsockname()[0] not in LOOPBACK:
            return True
        return urlsplit(f"//{self.headers.get('Host', '')}").hostname in LOOPBACK

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of requests."""


def _sentence(text: str) -> bytes:
    return f'<!doctype html><meta charset="utf-8"><p>{html.escape(text)}</p>'.encode()


def serve(runs: LiveRuns, host: str, port: int, tell: Callable[[str], None] = print) -> None:
    """Serve until the person presses Ctrl-C, which is raised."""
    with serving(runs, host, port) as server:
        tell(f"http://{host}:{server.server_address[1]}/ (Ctrl-C ends it)")
        server.serve_forever()
