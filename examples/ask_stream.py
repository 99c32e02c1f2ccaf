#!/usr/bin/env python
"""Text as it comes, in asyncio: python examples/ask_stream.py [MODEL [key=value ...]]."""

import asyncio
import sys

from launch.api import load


async def main(name: str, *overrides: str) -> None:
    """Print an answer piece by piece, then what it took."""
    async with load(name, *overrides) as model:
        stream = model.stream("Tell me about the sea.")
        async for text in stream:
            print(text, end="", flush=True)
        print(f"\n{stream.generation.count} tokens")


asyncio.run(main(*(sys.argv[1:] or ["smollm2", "sampling.max_new_tokens=40"])))
