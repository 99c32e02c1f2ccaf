"""A run in this process, as the command line makes it."""

from collections.abc import Callable

import pytest

from launch import api
from launch.config.setup import setup_of
from pipeline.protocols import BackendLostError
from pipeline.spec import SpecError
from pipeline.store.files import StoreError
from tests.gateways.asking import configured
from tests.gateways.running import BASE, KEY


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`here(url, *overrides, key=, status=)`: the same in this process; returns what it showed."""

    def run(url: str, *overrides: str, key: str = KEY, status: int = 0) -> str:
        monkeypatch.setenv("OPENAI_API_KEY", key)
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        try:
            outcome = api.run(setup_of(configured(*BASE, *overrides), overrides))
            found = outcome.status
        except (SpecError, StoreError, BackendLostError) as error:
            print(f"error: {error}")
            found = 2
        shown = "".join(capfd.readouterr())
        assert found == status, shown
        return shown

    return run
