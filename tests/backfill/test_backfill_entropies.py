"""`launch/backfill.py entropy=true`: the numbers that a run would have measured, and whose."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.backends.hf.backend import HfBackend
from launch import backfill as door
from launch.config.compose import compose_task
from launch.rows.backfill_entropies import scoring_backends
from pipeline.backfill.pass_scores import RowScoring
from pipeline.backfill.score_file import ScoreFile
from pipeline.protocols import ForcedTokens
from pipeline.spec import SpecError
from tests.backfill.test_backfill import WAIT, config_of, old, rows_of, run, said
from tests.fakes.hf_requests import backend
from tests.fakes.stored_rows import write_rows

CAPS = ("sampling.think_cap=24", "sampling.answer_cap=6", "run.seed=3")
SERIES = ("entropies", "logprobs", "token_ends")


@pytest.fixture(scope="module")
def model(tiny_llama: Callable[..., Path]) -> list[str]:
    """The words that name a random model in float32."""
    folder = tiny_llama()
    line = ["backend=hf", "backend.device=cpu", "backend.threads=1", "model=local"]
    return [*line, "quantization=fp32", f"model.path={folder}"]


def fill(path: Path, *words: str, task: str = "crossword") -> int:
    given = [f"task={task}", "entropy=true", f"backfill.input={path}", *words]
    if not any(word.startswith("backfill.output") for word in given):
        given.append("backfill.inplace=true")
    return door.backfill(config_of(*given))


def without_entropies(row: dict[str, Any]) -> dict[str, Any]:
    """The row as a run of `run.entropy=none` writes it."""
    bare = copy.deepcopy(row)
    for fields in bare.values():
        if isinstance(fields, dict) and "output" in fields:
            for name in [n for n in fields if n in SERIES]:
                del fields[name]
            fields |= {n: None for n in fields if n.startswith("entropy")}
    return bare


@pytest.mark.parametrize("cue", ["wait", "[wait,neutral]"])
def test_both_passes_get_what_the_decoder_measured(
    tmp_path: Path, model: list[str], smollm2: Path, cue: str
) -> None:
    limit = []
    if cue == "wait":  # a model that writes stop strings, with blanks before them
        model, limit = [*model[:-1], f"model.path={smollm2}"], ["run.limit=1"]
    path = run(tmp_path, *model, *CAPS, *limit, f"cue={cue}")
    measured = rows_of(path)
    write_rows(path, [without_entropies(row) for row in measured])
    assert fill(path, *model, "backend.decoder=generate") == 0
    later = ["pass2"] if cue == "wait" else ["pass2", "pass2a", "pass2b"]
    for row, wanted in zip(rows_of(path), measured, strict=True):
        for name in ("pass1", *later):
            scored = row[name].pop("scored")
            assert scored["ids"] == "stored" and scored["model"] == named(model)
            assert scored["dtype"] == "float32" and scored["fingerprint"]
            assert set(row[name]) == set(wanted[name])
            for key, value in wanted[name].items():
                exact = not key.startswith(("entrop", "logprobs"))
                assert row[name][key] == (value if exact else pytest.approx(value, abs=1e-4)), key
        assert list(row) == list(wanted)
        assert wanted["pass1"]["entropy"] > 0.5


def test_a_run_without_entropies_is_filled_without_arrays_if_none_are_wanted(
    tmp_path: Path, model: list[str]
) -> None:
    path = run(tmp_path, *model, *CAPS, "run.entropy=none", "cue=wait")
    out = tmp_path / "new.jsonl"
    assert fill(path, *model, "run.arrays=false", f"backfill.output={out}") == 0
    assert all(row["pass2"]["entropy"] is None for row in rows_of(path))
    for row in rows_of(out):
        assert row["pass2"]["entropy_think"] > 0 and "entropies" not in row["pass2"]
    assert not list(tmp_path.glob("*.backfill"))


def test_text_of_the_original_is_encoded_and_says_so(tmp_path: Path, model: list[str]) -> None:
    kept = old("has", 0)
    kept["pass1"]["entropy"] = 1.5
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0, pass2=said(WAIT)), kept])
    assert fill(path, *model, "cue=wait") == 0
    row, same = rows_of(path)
    assert same == kept
    for name in ("pass1", "pass2"):
        assert row[name]["scored"]["ids"] == "encoded"
        assert row[name]["entropy_think"] > 0 and row[name]["entropy_answer"] > 0
        assert (
            row[name]["output"] == (said(WAIT) if name == "pass2" else old("q", 0)[name])["output"]
        )
    # "and so on</think>", without the cue that opened it
    assert 4 <= len(row["pass2"]["entropies"]) - len(encoded(model, "6</answer>")) <= 8


def named(model: list[str]) -> str:
    return Path(model[-1].partition("=")[2]).name


def encoded(model: list[str], text: str) -> list[int]:
    return backend(Path(model[-1].partition("=")[2]))._encoder().continued(text)


def test_a_later_pass_whose_cue_nobody_tells_is_left_and_counted(
    tmp_path: Path, model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0, pass2=said(WAIT))])
    assert fill(path, *model) == 0
    assert "in 1 a later pass does not say its cue" in capsys.readouterr().out
    (row,) = rows_of(path)
    assert row["pass1"]["entropy"] > 0 and "entropy" not in row["pass2"]


def gateway(question: str, **fields: Any) -> dict[str, Any]:
    """A row of a service: text of a single phase, and the service's own logprobs."""
    first = {"output": "<think>so</think>\n<answer>5</answer>", "segments": {"output": [0, 36]}}
    first |= {"token_ids": None, "tokens_output": 9, "stop_reason_output": "eos", "tails": {}}
    first |= {"entropy": None, "logprobs": [-0.5] * 9, "token_ends": None, "prev_output": None}
    first["entropy_missing"] = "the service shows no probabilities"
    row = {"problem": question, "example_id": "g", "sample_idx": 0, "model": "gpt", "pass1": first}
    return row | {"phases": "single", "pass2": None} | fields


def test_rows_of_a_service_get_entropies_of_the_model_that_is_named(
    tmp_path: Path, model: list[str]
) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [gateway("What?")])
    with pytest.raises(SpecError, match=r"model must be gpt.*backfill.other_model=true"):
        fill(path, *model)
    assert fill(path, *model, "backfill.other_model=true") == 0
    (row,) = rows_of(path)
    fields = row["pass1"]
    assert fields["logprobs"] == [-0.5] * 9, "the service's own"
    assert "entropy_missing" not in fields
    assert fields["scored"] | {"fingerprint": ""} == {
        "model": named(model),
        "backend": "hf",
        "quantization": "fp32",
        "dtype": "float32",
        "fingerprint": "",
        "ids": "encoded",
    }
    assert fields["token_ends"][-1] == 36 and len(fields["entropies"]) == len(fields["token_ends"])


def test_ids_of_another_tokenizer_are_not_scored_as_if_they_were_ours(
    tmp_path: Path, model: list[str]
) -> None:
    path = run(tmp_path, *model, *CAPS, "run.entropy=none")
    rows = rows_of(path)
    for row in rows:
        row["pass1"]["token_ids"] = [n + 1 for n in row["pass1"]["token_ids"]]
    write_rows(path, rows)
    assert fill(path, *model) == 0
    assert all(row["pass1"]["scored"]["ids"] == "encoded" for row in rows_of(path))


def test_what_was_scored_before_a_kill_is_not_scored_again(
    tmp_path: Path, model: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.backfill.score_file.ROWS_AT_ONCE", 2)
    path = write_rows(tmp_path / "step0.jsonl", [old(f"q{n}", 0) for n in range(5)])
    before = path.read_bytes()
    scored: list[str] = []
    real_passes, real_put = RowScoring.passes, ScoreFile.put

    def passes(self: RowScoring, row: Any) -> Any:
        scored.append(row["problem"])
        return real_passes(self, row)

    def killed(self: ScoreFile, rows: Any) -> None:
        real_put(self, rows)
        with self.path.open("ab") as file:
            file.write(b'{"offset": 9999, "pas')  # the line under way when it died
        raise KeyboardInterrupt

    monkeypatch.setattr(RowScoring, "passes", passes)
    monkeypatch.setattr(ScoreFile, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        fill(path, *model)
    assert path.read_bytes() == before
    monkeypatch.setattr(ScoreFile, "put", real_put)
    assert fill(path, *model) == 0
    assert scored == ["q0", "q1", "q2", "q3", "q4"]
    assert all(row["pass1"]["entropy"] > 0 for row in rows_of(path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step0.jsonl", "step0.jsonl.bak_pass2"]


def test_a_row_that_cannot_be_scored_is_told_and_the_others_are_scored(
    tmp_path: Path, model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [old("q", 0), old("long " * 3000, 0), old("r", 0)]
    path = write_rows(tmp_path / "step0.jsonl", rows)
    assert fill(path, *model) == 1
    assert "1 rows were not scored" in capsys.readouterr().err
    assert [row["pass1"].get("entropy") is None for row in rows_of(path)] == [False, True, False]


def test_the_pass_1_that_was_shown_is_found_by_what_it_said(model: list[str]) -> None:
    asked: list[Any] = []

    class Backend:
        def force(self, prompt: Any, generation: Any) -> ForcedTokens:
            asked.append(prompt)
            return ForcedTokens([1], [2], generation.spelled, [1], True)

    other = old("q", 1)["pass1"]
    later = said(WAIT) | {"prev_output": other["output"]}
    found: list[str] = []

    def first_pass(row: Any, output: str) -> Any:
        found.append(output)
        return other

    made: Any = Backend()
    scoring = RowScoring(compose_task(["task=crossword"]), made, (), first_pass)
    row = old("q", 0, pass2=later | {"cue_text": WAIT, "cue": "wait"})
    passes = scoring.passes(row)
    assert found == [other["output"]]
    assert [one.name for one in passes] == ["pass1", "pass2"]
    assert "q1" in str(asked[-1].messages[-2].content) and WAIT in str(asked[-1].prefill[0])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["backend=echo"], r"backend must be hf.*which can score given ids, got 'echo'"),
        (["run.entropy=none"], "run.entropy must be full or means"),
        (["backfill.add=true"], "backfill.add must be left out with entropy=true"),
        (["backfill.flush_every=5"], "backfill.flush_every must be left out"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, words: list[str], sentence: str
) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [old("q", 0)])
    with pytest.raises(SpecError, match=sentence):
        fill(path, *words)
    assert [p.name for p in tmp_path.iterdir()] == ["step0.jsonl"]


def test_the_backends_that_score_are_those_that_say_so() -> None:
    assert "hf" in scoring_backends() and "openai" not in scoring_backends()
    assert HfBackend.capabilities.scores
