"""A service on this machine, in a process of its own, that a benchmark asks."""

import asyncio

from aiohttp import web


async def serve_for_ever(app: web.Application) -> None:
    """Serve on a free port, and print which."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(site._server.sockets[0].getsockname()[1], flush=True)  # type: ignore[union-attr]
    await asyncio.Event().wait()
