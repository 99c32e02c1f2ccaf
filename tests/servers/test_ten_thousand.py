"""Ten thousand requests, a fifth of which fail; minutes, so `make test-gateways` runs it."""

from pathlib import Path

from tests.gateways.test_runs import run_with_kills


def test_ten_thousand_requests_a_fifth_failing_two_kills_every_row_right(tmp_path: Path) -> None:
    run_with_kills(tmp_path, 10_000)
