"""One point being run: its open files, what is still to do, and what failed."""

import asyncio
import datetime
import traceback
from io import FileIO
from typing import Any

from pipeline.journal import Journal
from pipeline.passes import generations_of
from pipeline.point import Point
from pipeline.protocols import Backend, Example
from pipeline.rows import Key, Row, Rows, StoreError, append, encode
from pipeline.run_record import RunRecord
from pipeline.trace import Passed, Trace

SAMPLING_COLUMNS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class Session:
    """The run folder of one point, opened for writing by this process alone."""

    def __init__(self, point: Point) -> None:
        """Refuse another fingerprint, take the lock, repair, find what is left to do."""
        self.point = point
        try:
            point.folder.mkdir(parents=True, exist_ok=True)
            self.record = RunRecord(point)
            self.rows = Rows(point.rows_path, point.is_complete)
            self.journal = Journal(point.folder, self.rows.complete)
        except OSError as error:
            raise StoreError(
                f"the run folder {point.folder} cannot be written: {error.strerror}; "
                "set run.root or run.dir to a folder that can"
            ) from error
        self.todo = [(e, s) for e, s in point.keys() if Key(e.id, s) not in self.rows.complete]
        self.total = len(point.examples) * point.spec.sampling.num_samples
        self.failures: list[BaseException] = []
        self._shown: dict[str, asyncio.Future[Passed]] = {}
        if self.todo:
            self.record.begin()

    @property
    def broken(self) -> bool:
        """Whether more traces failed than `run.max_failed` allows."""
        return len(self.failures) > self.point.spec.run.max_failed

    async def run_trace(self, example: Example, sample: int, number: int, backend: Backend) -> Row:
        """Run one trace to its row and write it."""
        key, point = Key(example.id, sample), self.point
        stored = self.rows.read(key) if key in self.rows.lines else None
        shares = point.spec.run.second_pass_sample is not None and point.cues
        trace = Trace(
            spec=point.spec,
            task=point.task,
            phases=point.phases,
            cues=point.cues,
            backend=backend,
            journal=self.journal,
            example=example,
            sample=sample,
            number=number,
            row=stored,
            shown=(lambda own: self._show(example, sample, own)) if shares else None,
        )
        try:
            passes = await trace.run()
        finally:
            backend.release(number)
        row = self._row(example, sample, backend, passes)
        await asyncio.to_thread(self.rows.append, row)
        self.record.row_done(_tokens(passes))
        return row

    async def _show(self, example: Example, sample: int, own: Passed) -> Passed:
        """The pass 1 every sample of `example` reconsiders: sample `run.second_pass_sample`'s."""
        future = self._shown_future(example)
        if sample == self.point.spec.run.second_pass_sample and not future.done():
            future.set_result(own)
        return await future

    def _shown_future(self, example: Example) -> asyncio.Future[Passed]:
        if example.id not in self._shown:
            future = self._shown[example.id] = asyncio.get_running_loop().create_future()
            shared = self.point.spec.run.second_pass_sample
            key = Key(example.id, -1 if shared is None else shared)
            if key in self.rows.complete:
                stored = self.rows.read(key)
                future.set_result(generations_of(stored["pass1"], self.point.phases))
        return self._shown[example.id]

    def _withhold(self, example: Example, sample: int, error: BaseException) -> None:
        """Tell the traces that wait for this pass 1 that it will not come."""
        if sample == self.point.spec.run.second_pass_sample:
            future = self._shown_future(example)
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting

    def _row(self, example: Example, sample: int, backend: Backend, passes: dict[str, Any]) -> Row:
        spec, point = self.point.spec, self.point
        caps = {phase.name: phase.cap for phase in point.phases}
        return {
            **example.metadata,
            "problem": example.question,
            "example_id": example.id,
            "sample_idx": sample,
            "gold_answer": example.target,
            "step": point.step,
            "split": spec.run.split,
            **passes,
            "task": point.task.name,
            "phases": "tagged" if len(point.phases) > 1 else "single",
            "model": spec.model.name,
            "revision": spec.model.revision,
            "backend": backend.name,
            "quantization": point.identity.get("quantization"),
            **{name: getattr(spec.sampling, name) for name in SAMPLING_COLUMNS},
            "think_cap": caps.get("think"),
            "answer_cap": caps.get("answer"),
            "max_new_tokens": caps.get("output"),
            "seed": spec.run.seed,
            "fingerprint": point.fingerprint,
            "attempt": self.record.attempt["attempt"],
        }

    def fail(self, example: Example, sample: int, error: BaseException) -> None:
        """Record a trace that failed; what it had finished stays in the journal."""
        self.failures.append(error)
        self._withhold(example, sample, error)
        self.record.attempt["failed"] += 1
        item = {
            "example_id": example.id,
            "sample_idx": sample,
            "error": f"{type(error).__name__}: {error}",
            "traceback": "".join(traceback.format_exception(error)),
            "attempt": self.record.attempt["attempt"],
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        with FileIO(self.point.folder / "failures.jsonl", "ab") as file:
            append(file, encode(item))

    @property
    def status(self) -> str:
        """`complete`, `interrupted` (rows are missing) or `failed`."""
        if self.failures:
            return "failed"
        wanted = self.point.canonical_order()
        return "complete" if self.rows.complete.issuperset(wanted) else "interrupted"

    def close(self, backend: dict[str, Any]) -> None:
        """Give the files their final form if the point is complete; end the attempt's record."""
        status = self.status
        if status == "complete":
            self.rows.settle(self.point.canonical_order())
        self.journal.close(everything_finished=status == "complete")
        if self.record.attempt:
            self.record.close(status, backend)
        self.rows.close()


def _tokens(passes: dict[str, Any]) -> int:
    """Tokens of all passes, `pass2` as a repetition of a lettered one not counted twice."""
    lettered = any(name.startswith("pass2") and len(name) == 6 for name in passes)
    names = [name for name in passes if not (lettered and name == "pass2")]
    return sum(passes[name]["tokens_total"] for name in names if passes[name])
