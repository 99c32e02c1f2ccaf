"""What happens to one (example, sample) when something fails on the way."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from components.backends.echo import Echo
from pipeline.analysis.row_files import find
from pipeline.analysis.summary import passes
from pipeline.analysis.table import load
from pipeline.protocols import BackendLostError, Generation, PromptTooLongError, Request
from pipeline.run.executor import execute
from pipeline.run.point import Point, prepare
from pipeline.run.session import Session
from pipeline.spec import CueText, ModelSpec, Run, RunSpec, Sampling
from pipeline.store.files import Row, read_lines
from tests.fakes.toy_task import ToyTask

MODEL = ModelSpec(name="echo", path="echo")
CUES = {"fails": CueText("Fail, please."), "slow": CueText("Slowly, please.")}


class Disturbed(Echo):
    """Echo whose requests under the first cue raise, and those under the second take long."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(MODEL)
        self.error = error
        self.asked: list[str] = []
        self.finished: list[str] = []

    async def generate(self, request: Request) -> Generation:
        last = str(request.prompt.messages[-1].content[0])
        self.asked.append(last)
        if last.startswith("Fail") and self.error:
            raise self.error
        if last.startswith("Slow"):
            await asyncio.sleep(0.05)
        generation = await super().generate(request)
        self.finished.append(last)
        return generation


def point(folder: Path, backend: Echo, cues: dict[str, CueText], **run: Any) -> Point:
    spec = RunSpec(
        task={},
        backend={},
        quantization={},
        model=MODEL,
        sampling=Sampling(),
        cue=cues,
        run=Run(dir=str(folder), limit=1, **run),
    )
    return prepare(spec, ToyTask(), backend)


def run(folder: Path, backend: Echo, cues: dict[str, CueText] = CUES, **changes: Any) -> Session:
    return asyncio.run(execute([point(folder, backend, cues, **changes)], backend))[0]


def row_of(session: Session) -> Row:
    ((_, row),) = read_lines(session.point.rows_path)
    assert row is not None
    return row


def test_a_failing_cue_waits_for_the_others_whose_generations_are_asked_once(
    tmp_path: Path,
) -> None:
    broken = Disturbed(RuntimeError("on purpose"))
    session = run(tmp_path, broken)
    assert session.status == "failed"
    assert [str(error) for error in session.failures] == ["on purpose"]
    assert broken.finished.count("Slowly, please.") == 2  # both phases, before the trace ended
    mended = Disturbed(None)
    assert run(tmp_path, mended).status == "complete"
    assert set(mended.asked) == {"Fail, please."}


def test_an_error_that_ends_the_run_does_not_wait_for_the_other_cues(tmp_path: Path) -> None:
    lost = Disturbed(BackendLostError("the key was refused"))
    with pytest.raises(BackendLostError, match="the key was refused"):
        run(tmp_path, lost)
    assert "Slowly, please." not in lost.finished


def test_a_trace_that_is_dropped_drops_all_of_its_cues(tmp_path: Path) -> None:
    backend = Disturbed(None)

    async def stopped() -> Session:
        stop = asyncio.Event()
        work = asyncio.create_task(execute([point(tmp_path, backend, CUES)], backend, stop))
        while "Slowly, please." not in backend.asked:
            await asyncio.sleep(0)
        stop.set()
        (session,) = await work
        await asyncio.sleep(0.1)
        return session

    assert asyncio.run(stopped()).status == "interrupted"
    assert "Slowly, please." not in backend.finished


def test_a_pass_2_that_does_not_fit_is_flagged_and_the_row_keeps_its_other_passes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = run(tmp_path, Disturbed(PromptTooLongError("9 tokens, the model reads 8")))
    assert session.status == "complete"
    row, undisturbed = row_of(session), row_of(run(tmp_path / "undisturbed", Disturbed(None)))
    for name in ("pass1", "pass2b"):
        assert row[name]["output"] == undisturbed[name]["output"]
    failed = row["pass2a"]
    assert failed["answer_status"] == "failed" and "reads 8" in failed["error"]
    assert failed["is_correct_pred"] is failed["improved_over_pass1"] is None
    assert failed["pred_answer"] is None and not failed["valid_tag_structure"]
    assert (failed["cue"], failed["tokens_total"]) == ("fails", 0)
    assert undisturbed["pass2a"].keys() - failed.keys() == set()
    assert "cue fails, phase think" in caplog.text and "reads 8" in caplog.text
    again = Disturbed(None)
    assert run(tmp_path, again).status == "complete" and not again.asked


@pytest.mark.parametrize("name", ["pass1", "pass2"])
def test_a_pass_that_used_up_the_context_in_its_reasoning_is_cut_and_not_correct(
    tmp_path: Path, name: str
) -> None:
    class Filled(Echo):
        async def generate(self, request: Request) -> Generation:
            about_answer = request.stop == ("</answer>",)
            if about_answer and len(request.prompt.messages) >= (2 if name == "pass1" else 4):
                raise PromptTooLongError("the context is full")
            return await super().generate(request)

    session = run(tmp_path, Filled(MODEL), {"slow": CUES["slow"]})
    assert session.status == "complete"
    cut = row_of(session)[name]
    assert cut["tokens_think"] > 0 == cut["tokens_answer"] and cut["entropies"]
    assert cut["stop_reason_answer"] == "max_context" and cut["error"] == "the context is full"
    assert cut["is_correct_pred"] is False
    lines = passes(load(find([session.point.rows_path]), workers=1), by=("pass",))
    assert lines.set_index("pass").loc[name, ["accuracy", "truncated"]].tolist() == [0.0, 1.0]


def test_a_summary_counts_a_failed_pass_and_takes_no_verdict_from_it(tmp_path: Path) -> None:
    session = run(tmp_path, Disturbed(PromptTooLongError("too long")), {"fails": CUES["fails"]})
    lines = passes(load(find([session.point.rows_path]), workers=1), by=("pass",))
    second = lines[lines["pass"] == "pass2"].iloc[0]
    assert second["rows"] == 1 and second["no_answer"] == 1.0
    assert second[["accuracy", "improved"]].isna().all()


def test_a_pass_1_that_does_not_fit_fails_its_row(tmp_path: Path) -> None:
    class TooShort(Echo):
        async def generate(self, request: Request) -> Generation:
            raise PromptTooLongError("too long")

    session = run(tmp_path, TooShort(MODEL))
    assert session.status == "failed" and not session.point.rows_path.read_bytes()
    failure = json.loads((tmp_path / "failures.jsonl").read_text())
    assert failure["error"] == "PromptTooLongError: too long"


def test_what_max_length_cut_off_a_prompt_is_said_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Cutting(Echo):
        async def generate(self, request: Request) -> Generation:
            generation = await super().generate(request)
            generation.prompt_cut = 5 if request.stop == ("</answer>",) else 2
            return generation

    with caplog.at_level(logging.INFO):
        session = run(tmp_path, Cutting(MODEL), {})
    assert row_of(session)["pass1"]["prompt_cut"] == 5  # of the phase that lost most
    assert "phase think: model.max_length cut 2 tokens" in caplog.text
    assert "phase answer: model.max_length cut 5 tokens" in caplog.text
