"""One model under several quantizations: quality against full precision, size, speed, load time."""

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from components.backends.hf.backend import HfBackend
from components.quantization.quality import Compared, KeptLogits, windows
from pipeline.protocols import Backend, ForcedTokens, Generation, Group, Prompt, Request
from pipeline.spec import RunSpec, Sampling, SpecError, digest, refuse_empty, require
from pipeline.store.files import encode, read_lines, read_text, repair

SAMPLE = Path(__file__).parents[2] / "components/quantization/sample.txt"
ROWS = "checks.jsonl"
# What libraries raise where a device or a version lets them down.
_FAILS = (RuntimeError, NotImplementedError, ValueError, ArithmeticError, MemoryError, ImportError)
_PROMPT = 200  # characters of the text that an answer goes on from
_ROUNDS = 3  # the machine may be busy during one of them
_LOG = logging.getLogger(__name__)
Row = dict[str, Any]


@dataclass(slots=True)
class Check:
    """What a check reads and how it times.

    `text`: a file; null: a page that comes with the code. `tokens` of it are read, in rows of
    `length`. Speed is that of `batch` greedy answers of `new_tokens` each. `reference` is the
    option that the others are compared with.
    """

    text: str | None = None
    tokens: int = 1024
    length: int = 256
    batch: int = 4
    new_tokens: int = 32
    reference: str = "none"

    def __post_init__(self) -> None:
        """Check ranges."""
        refuse_empty(self, "check")
        for name in ("batch", "new_tokens"):
            value = getattr(self, name)
            require(value >= 1, f"check.{name}", "be 1 or more", value)
        require(self.length >= 2, "check.length", "be 2 or more", self.length)
        require(self.tokens >= 2, "check.tokens", "be 2 or more", self.tokens)

    def read(self) -> str:
        """The text."""
        path = SAMPLE if self.text is None else Path(self.text)
        return read_text(path, "check.text")


@dataclass(slots=True)
class CheckSpec(RunSpec):
    """A run's spec, of which model, backend and quantization count, and what is checked."""

    check: Check = field(default_factory=Check)
    out: str = "outputs/quantize_check"


class Checks:
    """The rows of one folder: one per option, model, text and device; what is there stays."""

    def __init__(self, folder: Path, check: Check, model: str) -> None:
        """Read the rows that are there; `model` is what rows call it."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / ROWS
        self.check, self.text, self.model = check, check.read(), model
        repair(self.path)
        kept = (row for _, row in read_lines(self.path) if row is not None)
        self.rows = {row["key"]: row for row in kept if isinstance(row.get("key"), str)}

    def key(self, backend: HfBackend) -> str:
        """What makes a row what it is."""
        about = backend.describe()
        settings = asdict(self.check) | {"text": digest(self.text)}
        machine = [about["device"], about["versions"], about["threads"]]
        return digest([backend.identity(), settings, machine])[:16]

    def has(self, backend: HfBackend) -> bool:
        """Whether an earlier check has measured the same."""
        return self.key(backend) in self.rows

    def put(self, row: Row) -> None:
        """Append one row."""
        with self.path.open("ab") as file:
            file.write(encode(row))
        self.rows[row["key"]] = row


def run_checks(
    checks: Checks,
    names: Sequence[str],
    backend_of: Callable[[str], HfBackend],
    tell: Callable[[Row], None],
) -> list[Row]:
    """Measure every option that has no row yet; the reference comes first, then `names` in order.

    An option that cannot be had here becomes a row with `refused`, one that breaks while it is
    measured a row with `failed`; neither is kept. `tell` hears of every row as soon as it is known.

    Raises:
        SpecError: the reference cannot be had.
    """
    reference = checks.check.reference
    order = [reference, *(name for name in names if name != reference)]
    backends = {name: _made(backend_of, name, needed=name == reference) for name in order}
    missing = [n for n, b in backends.items() if not isinstance(b, str) and not checks.has(b)]
    rows = []
    with tempfile.TemporaryDirectory(prefix="rethink-logits-") as scratch:
        comparison = _Comparison(checks, Path(scratch) / "logits")
        for name, made in backends.items():
            if isinstance(made, str):
                row: Row = {"quantization": name, "refused": made}
            elif name in missing or (missing and name == reference):
                row = comparison.row_of(name, made, needed=name == reference)
            else:
                row = checks.rows[checks.key(made)]
            rows.append(row)
            tell(row)
    return rows


def _made(backend_of: Callable[[str], HfBackend], name: str, needed: bool) -> HfBackend | str:
    """The backend of an option, not entered; or why it cannot be had."""
    try:
        return backend_of(name)
    except SpecError as error:
        if needed:
            raise
        return str(error)


class _Comparison:
    """Measures options one after the other against the first, which is the reference."""

    def __init__(self, checks: Checks, scratch: Path) -> None:
        """`scratch` is a file for the reference's logits."""
        self._checks, self._scratch = checks, scratch
        self._kept: KeptLogits | None = None
        self._rows: list[ForcedTokens] = []

    def row_of(self, name: str, backend: HfBackend, needed: bool) -> Row:
        """The row of an option, which is written; or one that says what broke."""
        try:
            row = asyncio.run(self._measured(backend))
        except SpecError as error:  # the device can, and the model or the library's version cannot
            if needed:
                raise
            return {"quantization": name, "refused": str(error)}
        except _FAILS as error:
            if needed:
                raise
            _LOG.warning("quantization=%s broke", name, exc_info=error)
            return {"quantization": name, "failed": f"{type(error).__name__}: {error}"}
        row = {"key": self._checks.key(backend), "quantization": name, **row}
        self._checks.put(row)
        return row

    async def _measured(self, backend: HfBackend) -> Row:
        started = time.perf_counter()
        async with backend:
            load_seconds = time.perf_counter() - started
            if self._kept is None:
                check = self._checks.check
                ids = backend.encode(Prompt((), (self._checks.text,)))
                self._rows = windows(ids, check.length, check.tokens)
                self._kept = KeptLogits(self._scratch, self._rows)
                await backend.read_logits(self._rows, self._kept)
            compared = Compared(self._kept, self._rows)
            await backend.read_logits(self._rows, compared)
            speed = await self._tokens_per_second(backend)
            about = backend.describe()
        weights = about["weights"]
        return {
            "model": self._checks.model,
            **asdict(compared.quality()),
            "bytes": sum(weights["bytes"].values()),
            "bytes_by_type": weights["bytes"],
            "parts": weights["parts"],
            "cache": about["cache"],
            "load_seconds": round(load_seconds, 3),
            "tokens_per_second": round(speed, 2),
            "peak_memory_bytes": about["peak_memory_bytes"],
            **{name: about[name] for name in ("device", "dtype", "decoder", "versions")},
        }

    async def _tokens_per_second(self, backend: HfBackend) -> float:
        """Of greedy answers that go on from parts of the text: the best of some rounds."""
        check = self._checks.check

        async def answers(cap: int) -> list[Generation]:
            asked = [self._request(number, cap) for number in range(check.batch)]
            return await asyncio.gather(*map(backend.generate, asked))

        await answers(min(2, check.new_tokens))
        fastest = 0.0
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            made = await answers(check.new_tokens)
            count = sum(generation.count for generation in made)
            fastest = max(fastest, count / (time.perf_counter() - started))
        return fastest

    def _request(self, number: int, cap: int) -> Request:
        text = self._checks.text
        start = number * len(text) // self._checks.check.batch
        return Request(
            prompt=Prompt((), (text[start : start + _PROMPT],)),
            stop=(),
            cap=cap,
            sampling=Sampling(temperature=0.0),
            seed=number,
            trace_id=number,
            group=Group(str(number), 0, 1),
        )


def measurable(backend: Backend) -> HfBackend:
    """The backend, if its logits can be read. Raises SpecError."""
    rule = "be hf, whose logits can be read"
    require(isinstance(backend, HfBackend), "backend", rule, backend.name)
    assert isinstance(backend, HfBackend)
    return backend
