"""Workload C: a two-pass job with three cues through the executor, rows written to disk."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shapes import prompts

from components.backends.hf.backend import HfBackend
from pipeline.protocols import Example, Generation, Message, Phase, Prompt
from pipeline.run.executor import execute
from pipeline.run.point import prepare
from pipeline.spec import CueText, ModelSpec, Run, RunSpec, Sampling

CUES = {"wait": "Wait, is that right?", "again": "Look at it again.", "sure": "Are you sure?"}


class Writing:
    """Asks for some text; every output of a pass is as long as its cap."""

    name = "writing"
    max_output_tokens = 1

    def __init__(self, count: int, words: int, cap: int) -> None:
        self.phases: tuple[Phase, ...] = (Phase("output", cap),)
        self._texts = prompts(count, words, seed=-1)

    def examples(self) -> Sequence[Example]:
        """One example per prompt."""
        return [Example(f"e{n}", text) for n, text in enumerate(self._texts)]

    def prompt(self, example: Example) -> Prompt:
        """The example's text as the user's."""
        return Prompt((Message("user", (example.question,)),))

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """Nothing is right or wrong."""
        return {"pred_answer": None, "pred_answer_canon": None, "is_correct_pred": None}


class Ragged:
    """A backend whose requests get the workload's lengths in turn."""

    def __init__(self, backend: HfBackend, caps: Sequence[int]) -> None:
        self._backend = backend
        self._caps = caps
        self._asked = 0

    def __getattr__(self, name: str) -> Any:
        """What the backend has."""
        return getattr(self._backend, name)

    async def __aenter__(self) -> "Ragged":
        """The backend is loaded already."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """The backend stays loaded for what comes next."""

    async def generate(self, request: Any) -> Generation:
        """As the backend's, with the next length for a cap."""
        cap = self._caps[self._asked % len(self._caps)]
        self._asked += 1
        return await self._backend.generate(replace(request, cap=cap))


async def two_pass(backend: HfBackend, load: Any, sampling: Sampling) -> dict[str, Any]:
    """Run the job once."""
    task = Writing(load.count, load.words, load.cap)
    before = backend.describe()
    with tempfile.TemporaryDirectory() as folder:
        spec = RunSpec(
            task={},
            backend={},
            quantization={},
            model=ModelSpec(name="random", path="random"),
            sampling=replace(sampling, num_samples=load.samples),
            cue={name: CueText(text) for name, text in CUES.items()},
            run=Run(root=folder, arrays=True),
        )
        ragged: Any = Ragged(backend, load.caps)
        point = prepare(spec, task, ragged)
        firsts: list[float] = []
        started = time.perf_counter()
        await execute([point], ragged, on_row=lambda *_: firsts.append(time.perf_counter()))
        seconds = time.perf_counter() - started
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.jsonl"))
    after = backend.describe()
    change = {
        k: after[k] - before[k]
        for k in ("prefilled_tokens", "reused_tokens", "steps", "generated_tokens", "evictions")
    }
    tokens = change.pop("generated_tokens")
    return {
        "tokens_per_s": round(tokens / seconds, 1),
        "first_row_s": round(firsts[0] - started, 2),
        "ms_per_step": round(1e3 * seconds / change["steps"], 2),
        "peak_gb": round(after["peak_memory_bytes"] / 1e9, 1),
        "seconds": round(seconds, 2),
        "tokens": tokens,
        "rows": len(firsts),
        "rows_mb": round(size / 1e6, 1),
        **change,
    }
