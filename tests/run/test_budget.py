"""Money is set aside before every attempt, and what is discarded counts at once."""

import asyncio
from pathlib import Path

import pytest

from pipeline.protocols import Generation, Request
from pipeline.run.budget import Budget, BudgetSpentError, Reserved
from tests.gateways.asking import request


class Asked:
    """A backend of which only the prices are asked for."""

    def worst_cost(self, request: Request) -> float:
        return 0.4

    def may_have_paid(self, request: Request) -> bool:
        return False


def generation(**columns: float) -> Generation:
    return Generation([], "text", "eos", backend_columns=dict(columns))


async def attempts(budget: Budget, num_discarded: int) -> str:
    """One request whose first answers, of 0.1 USD each, have no use; the last one costs 0.1."""
    try:
        async with budget.aside(Asked(), request()) as account:
            spending = account.request.spending
            assert spending is not None
            for _ in range(num_discarded):
                await asyncio.sleep(0)
                spending.discarded(0.1)
                await spending.renew()
            columns = {"cost_usd": 0.1, "discarded_usd": 0.1 * num_discarded}
            account.generations.append(generation(**columns))
    except BudgetSpentError:
        return "spent"
    return "answered"


def test_what_is_discarded_counts_once_and_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        budget = Budget(1.0, reserved=Reserved.read(tmp_path / "reserved.jsonl"))
        async with budget.aside(Asked(), request()) as account:
            assert account.request.spending is not None
            account.request.spending.discarded(0.1)
            assert budget.spent == pytest.approx(0.1) and budget.set_aside == pytest.approx(0.4)
            killed_now = tmp_path / "killed.jsonl"
            killed_now.write_bytes((tmp_path / "reserved.jsonl").read_bytes())
            assert Reserved.read(killed_now).usd == pytest.approx(0.5)
            account.generations.append(generation(cost_usd=0.2, discarded_usd=0.1))
        assert budget.spent == pytest.approx(0.3) and budget.set_aside == 0
        assert Reserved.read(tmp_path / "reserved.jsonl").usd == pytest.approx(0)
        budget.close()

    asyncio.run(work())


def test_requests_that_are_sent_again_never_pass_the_budget_nor_wait_for_each_other() -> None:
    async def work() -> None:
        budget = Budget(1.0)
        many = [attempts(budget, 3) for _ in range(6)]
        async with asyncio.timeout(20):
            found = await asyncio.gather(*many)
        assert "spent" in found and budget.exhausted
        assert budget.spent <= 1.0 and budget.set_aside == pytest.approx(0)

    asyncio.run(work())


def test_what_was_discarded_before_a_failure_is_remembered(tmp_path: Path) -> None:
    async def work() -> None:
        budget = Budget(1.0, reserved=Reserved.read(tmp_path / "reserved.jsonl"))
        with pytest.raises(RuntimeError):
            async with budget.aside(Asked(), request()) as account:
                assert account.request.spending is not None
                account.request.spending.discarded(0.25)
                raise RuntimeError
        assert budget.spent == pytest.approx(0.25)
        budget.close()

    asyncio.run(work())
    assert Reserved.read(tmp_path / "reserved.jsonl").usd == pytest.approx(0.25)
