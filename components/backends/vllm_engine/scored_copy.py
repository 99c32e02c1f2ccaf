"""Entropies of what vLLM has drawn, read by a copy of the model in Transformers."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from components.backends.hf.backend import HfBackend
from components.backends.vllm_engine.together import Together
from pipeline.protocols import ForcedTokens, TokenScores

_ROWS = 16  # rows that are read together


class ScoredCopy:
    """Makes and loads the copy at the first question: until then it takes no memory."""

    def __init__(self, make: Callable[[], HfBackend]) -> None:
        """`make` makes the backend of the copy, which need not be entered."""
        self._make = make
        self._loaded: HfBackend | None = None
        self._entered = AsyncExitStack()
        self._calls = Together(self._score, _ROWS)

    async def scores(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> TokenScores:
        """Entropies and logprobs of ids that follow a prompt, raw, at temperature 1."""
        return await self._calls.ask(ForcedTokens(prompt_ids, token_ids))

    async def close(self) -> None:
        """Free the copy."""
        await self._calls.close()
        await self._entered.aclose()
        self._loaded = None

    async def _score(self, rows: Sequence[ForcedTokens]) -> Sequence[TokenScores]:
        if self._loaded is None:
            self._loaded = await self._entered.enter_async_context(self._make())
        return await self._loaded.score(rows)
