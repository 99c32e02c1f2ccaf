"""What the requests to one deployment cost: at most, in truth, and where the answer had no use."""

from collections.abc import Callable, Mapping
from typing import Any

from components.backends.openai_api.prices import Price, Tally, find
from pipeline.protocols import BackendLostError, Request, spelled


class Money:
    """Prices the requests of one deployment and counts them.

    `tally` is the count of this attempt.
    """

    def __init__(
        self,
        service: str,
        deployment: str,
        prices: Mapping[str, Any],
        batched: Callable[[], bool],
        lose: Callable[[BackendLostError], None],
    ) -> None:
        """`batched` says whether the next request goes in a batch, `lose` ends the run.

        Raises:
            SpecError: the entry of the price table has an unknown or missing field.
        """
        self._service, self._deployment = service, deployment
        self._price: Price | None = find(prices, deployment)
        self._batched, self._lose = batched, lose
        self._budgeted = False
        self.tally = Tally()

    def priced(self) -> bool:
        """Whether the price table knows the deployment; asked where there is a budget."""
        self._budgeted = True
        return self._price is not None

    def at_most(self, request: Request) -> float:
        """USD for a request that uses its cap, every byte of its prompt counted as a token."""
        assert self._price is not None
        messages = request.prompt.messages
        texts = [spelled(m.content) for m in messages] + [spelled(request.prompt.prefill)]
        prompt_tokens = sum(len(text.encode()) + 16 for text in texts)
        return self._price.at_most(prompt_tokens, request.cap, self._batched())

    def answered(self, request: Request, usage: dict[str, Any], batched: bool) -> float | None:
        """Count an answer; its USD, None where nothing says it. `cost` is taken out of `usage`."""
        reported = usage.pop("cost", None)
        cost = self._cost(usage, batched) if reported is None else float(reported)
        if reported is not None:
            self._compare(request, float(reported))
        self.tally.add(usage, cost)
        return cost

    def discarded(
        self, request: Request, usage: Mapping[str, Any] | None, num_samples: int, batched: bool
    ) -> float:
        """Count an answer that cannot be used; its USD, at worst where its usage is unknown."""
        self.tally.discarded += 1
        usd = (usage or {}).get("cost")
        if usd is None and self._price is not None:
            known = self._cost(usage or {}, batched)
            usd = num_samples * self.at_most(request) if known is None else known
        self.tally.cost_usd += usd or 0.0
        if request.spending is not None:
            request.spending.discarded(usd or 0.0)
        return float(usd or 0.0)

    def _cost(self, usage: Mapping[str, Any], batched: bool) -> float | None:
        """USD by the price table; None without a price, or without usage that says it all."""
        if self._price is None or not usage.get("total_tokens"):
            return None
        return self._price.of(usage, batched)

    def _compare(self, request: Request, reported: float) -> None:
        """Under a budget, a price table below what the service charges ends the run.

        The answers under way are kept.
        """
        if not self._budgeted or self._price is None:
            return
        worst = self.at_most(request) + 1e-9
        if reported > worst:
            self._lose(
                BackendLostError(
                    f"{self._service} reports {reported:.6g} USD for a request that backend.prices "
                    f"puts at {worst:.6g} USD at most, so run.budget cannot hold: set "
                    f"backend.prices.{self._deployment}, or run.budget=null"
                )
            )
