"""launch/score_text.py: predictions of every kind, every metric, judges, and what it writes."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from openpyxl import load_workbook

from launch import api
from launch.score_text import main
from launch.scoring import judged
from pipeline.protocols import Backend, Capabilities, Generation, Request, spelled
from tests.fakes.configs import ROOT

SEVEN = "bleu_score rouge_score factual_correctness semantic_similarity answer_accuracy "
SEVEN += "answer_relevancy answer_correctness"
HOSTILE = '=HYPERLINK("http://x","{__class__} {{ 7*7 }}")' + "[" * 40_000 + "\x01"
ROWS: list[dict[str, Any]] = [
    {
        "system_prompt": None,
        "user_prompt": "Capital of Portugal?",
        "assistant_response": "Lisbon",
        "ground_truth": "Lisbon",
    },
    {
        "system_prompt": None,
        "user_prompt": "Sides of a hexagon?",
        "assistant_response": "the six!",
        "ground_truth": "Six",
    },
    {
        "system_prompt": None,
        "user_prompt": "{question} ${oc.env:HOME}",
        "assistant_response": HOSTILE,
        "ground_truth": "nothing of it",
    },
]


class Scripted(Backend):
    """A judge whose answers are known: by what stands in its prompt."""

    name = "scripted"
    capabilities = Capabilities(runs_model=False)

    def __init__(self, answers: Sequence[tuple[str, str]]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def generate(self, request: Request) -> Generation:
        prompt = spelled(request.prompt.messages[-1].content)
        self.asked.append(prompt)
        said = next(answer for part, answer in self.answers if part in prompt)
        return Generation([], said, "eos", num_tokens=100, prompt_tokens=1000)


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    """What the fine-tuner's inferencer writes."""
    path = tmp_path / "inferencer_output.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    return path


def scripted(
    monkeypatch: pytest.MonkeyPatch, answers: Sequence[tuple[str, str]]
) -> Callable[[], Scripted]:
    """Judge with a backend that answers so; what it was asked."""
    backend = Scripted(answers)
    monkeypatch.setattr(judged, "open_backend", lambda setup: backend)
    return lambda: backend


def summary_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "evaluator_output_summary.json").read_text("utf-8"))
    return found


def lines_of(out: Path) -> list[dict[str, Any]]:
    text = (out / "evaluator_output_detailed.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_texts_are_scored_and_written_for_every_row(
    predictions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main([str(predictions.parent), "--out", str(out)]) == 0
    summary, lines = summary_of(out), lines_of(out)
    assert summary["exact_match"] == pytest.approx(1 / 3)
    assert summary["normalised_match"] == pytest.approx(2 / 3)
    assert [line["rouge_score"] for line in lines] == pytest.approx([1, 2 / 3, 0])
    assert lines[0]["bleu_score"] == 1 and lines[2]["chrf_score"] < 0.05
    assert summary["bleu_score"] == pytest.approx(sum(line["bleu_score"] for line in lines) / 3)
    assert "tok:13a" in summary["details"]["corpus"]["bleu_score"]["signature"]
    printed = capsys.readouterr().out
    assert "exact_match" in printed and max(map(len, printed.splitlines()[:-1])) <= 160


def test_no_cell_of_the_sheet_is_a_formula_and_long_ones_are_said(
    predictions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main([str(predictions), "--metrics", "exact_match", "--out", str(out)]) == 0
    sheet = load_workbook(out / "evaluator_output_detailed.xlsx").active
    table = list(sheet.iter_rows())
    assert [cell.value for cell in table[0]][:3] == ["run", "example_id", "sample_idx"]
    assert len(table) == 4 and {cell.data_type for row in table for cell in row} <= {"s", "n"}
    hostile = table[3][4].value
    assert hostile.startswith("'=HYPERLINK") and len(hostile) == 32_767
    assert lines_of(out)[2]["response"] == HOSTILE
    assert ["1 cells" in note for note in summary_of(out)["notes"]] == [True]


ANSWERS = [
    ("<answer_to_judge>\nLisbon", "Rating: 4\nSupported: 1\nUnsupported: 0\nMissing: 0"),
    ("<answer_to_judge>\nthe six!", "Rating: 2\nSupported: 1\nUnsupported: 1\nMissing: 1"),
    (HOSTILE[:-1], "I cannot tell."),
]


def test_judgements_become_scores_and_their_tokens_a_cost_at_a_millionth_each(
    predictions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = scripted(monkeypatch, ANSWERS)
    line = [str(predictions), "--out", str(tmp_path / "out"), "--judge", "backend=echo"]
    line += ["--metrics", "answer_accuracy", "factual_correctness"]
    line += ["--cost-per-million-input-tokens", "2", "--cost-per-million-output-tokens", "10"]
    assert main(line) == 0
    lines, summary = lines_of(tmp_path / "out"), summary_of(tmp_path / "out")
    assert [row["answer_accuracy"] for row in lines] == [1, 0.5, None]
    assert [row["factual_correctness"] for row in lines] == [1, 0.5, None]
    counts = {"supported": 1, "unsupported": 1, "missing": 1}
    assert lines[1]["factual_correctness_judgement"] == [counts]
    assert summary["answer_accuracy"] == 0.75
    cost = {"input_tokens": 6000, "output_tokens": 600, "usd": pytest.approx(0.018)}
    assert summary["details"]["cost"] == cost
    assert summary["details"]["judges"]["answer_accuracy"]["unread"] == 1
    hostile = [prompt for prompt in backend().asked if HOSTILE in prompt]
    assert len(hostile) == 2 and all("{question} ${oc.env:HOME}" in prompt for prompt in hostile)


def test_judgements_that_cannot_be_read_are_counted_as_what_they_are(
    predictions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [("", "I cannot tell.")])
    line = [str(predictions), "--out", str(tmp_path / "out"), "--metrics", "answer_accuracy"]
    assert main([*line, "--judge", "backend=echo", "sampling.num_samples=2"]) == 0
    note = summary_of(tmp_path / "out")["notes"][0]
    assert note.startswith("6 judgements by answer_accuracy have no score"), "2 of each of 3 rows"


def test_the_same_command_asks_no_judge_again(
    predictions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [str(predictions), "--out", str(tmp_path / "out"), "--judge", "backend=echo"]
    line += ["--metrics", "answer_accuracy"]
    begun = scripted(monkeypatch, ANSWERS)
    assert main([*line[:4], "run.limit=1", *line[4:]]) == 0 and len(begun().asked) == 1
    notes = summary_of(tmp_path / "out")["notes"]
    assert any(
        note.startswith("2 of 3 rows have no judgement by answer_accuracy") for note in notes
    )
    first = scripted(monkeypatch, ANSWERS)
    assert main(line) == 0 and len(first().asked) == 2
    again = scripted(monkeypatch, ANSWERS)
    assert main(line) == 0 and again().asked == []
    assert [row["answer_accuracy"] for row in lines_of(tmp_path / "out")] == [1, 0.5, None]


def test_rows_of_runs_are_scored_and_judged_by_echo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("task=qa", "backend=echo", "run.limit=3", "sampling.num_samples=2")
    ran = api.run(api.compose(*words, f"run.root={tmp_path}", "run.name=asked"))
    out = tmp_path / "out"
    line = [str(ran.folder), "--out", str(out), "--judge", "backend=echo"]
    assert main([*line, "--metrics", "exact_match", "answer_accuracy"]) == 0
    lines = lines_of(out)
    stored = {(row["example_id"], row["sample_idx"]): row for row in ran.rows()}
    assert {(row["example_id"], row["sample_idx"]) for row in lines} == set(stored)
    for row in lines:
        source = stored[row["example_id"], row["sample_idx"]]
        assert row["response"] == source["pass1"]["pred_answer"]
        assert row["question"] == source["problem"] and row["reference"] == source["gold_answer"]
    [about] = summary_of(out)["details"]["judges"].values()
    assert about["missing"] == 0 and about["unread"] + about["judged"] >= 6
    assert "does not end as its prompt asks" in capsys.readouterr().out


def test_several_runs_have_a_line_each_and_rows_without_the_pass_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, answer in (("good", "yes"), ("bad", "no")):
        folder = tmp_path / name / "step-0"
        folder.mkdir(parents=True)
        rows = [
            {
                "problem": "Q",
                "example_id": str(number),
                "sample_idx": 0,
                "gold_answer": "yes",
                "pass1": {"output": answer, "pred_answer": answer},
            }
            for number in range(3)
        ]
        rows.append({"problem": "Q", "example_id": "9", "pass1": {"answer_status": "failed"}})
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "step0000_test.jsonl").write_text(text)
    assert main([str(tmp_path), "--metrics", "exact_match", "--out", str(tmp_path / "out")]) == 0
    means = {
        line["run"]: line["mean"] for line in summary_of(tmp_path / "out")["details"]["by_run"]
    }
    assert means == {"good step 0": 1, "bad step 0": 0} or means == {"good": 1, "bad": 0}
    assert "2 more rows have no pass1" in capsys.readouterr().out


def refused(line: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(line) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--metrics bleu", "--metrics must hold names of exact_match"),
        ("--metrics answer_accuracy", "choose one with --judge"),
        ("--metrics semantic_similarity", "name a model with --embedding"),
        ("--metrics answer_relevancy --judge backend=echo", "name a model with --embedding"),
        ("--metrics exact_match --judge backend=echo", "--judge judges nothing"),
        ("--cost-per-million-input-tokens 1", "--cost-per-million-...-tokens must"),
        (
            "--cost-per-million-input-tokens inf --cost-per-million-output-tokens 1",
            "be 0 or more and finite",
        ),
        ("--columns answer=x", "--columns must be FIELD=NAME"),
        ("--columns response=said", "there is no column said .*--columns response=NAME"),
        ("--embedding ./nowhere", "there is no ./nowhere"),
        ("--tracking run.root=x", "--tracking must choose a tracker"),
        ("--judge backend=echoo", "backend must be one of"),
    ],
)
def test_what_cannot_be_scored_is_said_before_anything_is_written(
    words: str, said: str, predictions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [str(predictions), "--out", str(tmp_path / "out"), *words.split()]
    assert re.search(said, refused(line, capsys))
    assert not (tmp_path / "out/evaluator_output_summary.json").exists()


def test_a_file_of_any_columns_is_scored_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("said,gold\nfour,four\nfive,\n")
    line = [str(path), "--columns", "response=said", "reference=gold", "--out", str(tmp_path)]
    assert main([*line, "--metrics", "exact_match", "chrf_score"]) == 0
    summary = summary_of(tmp_path)
    assert summary["exact_match"] == 1 and summary["details"]["by_run"][0]["rows"] == 1
    assert summary["notes"] == ["1 of 2 rows have no reference to compare with"]


def test_the_seven_metrics_of_the_fine_tuners_evaluator(
    predictions: Path,
    tmp_path: Path,
    smollm2: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.fakes.tiny_models import tiny_encoder  # loads torch

    relevant = "Question: Capital of Portugal?\nQuestion: Capital of Portugal?\nEvasive: no\n"
    scripted(
        monkeypatch,
        [
            (ANSWERS[0][0], relevant + ANSWERS[0][1]),
            (ANSWERS[1][0], f"Question: Why?\nEvasive: yes\n{ANSWERS[1][1]}"),
            ANSWERS[2],
        ],
    )
    out = tmp_path / "out"
    line = [str(predictions), "--out", str(out), "--judge", "backend=echo"]
    line += [
        "--embedding",
        str(tiny_encoder(smollm2, tmp_path / "encoder")),
        "--metrics",
        *SEVEN.split(),
    ]
    assert main(line) == 0
    summary, lines = summary_of(out), lines_of(out)
    assert list(summary)[:7] == SEVEN.split()
    assert summary["details"]["embedding"]["max_tokens"] == 512
    assert lines[0]["semantic_similarity"] == pytest.approx(1, abs=1e-5)
    assert lines[0]["answer_relevancy"] == pytest.approx(1, abs=1e-5)
    assert [row["answer_relevancy"] for row in lines[1:]] == [0, None]
    similar = lines[1]["semantic_similarity"]
    assert lines[1]["answer_correctness"] == pytest.approx(0.75 * 0.5 + 0.25 * similar)
    assert lines[2]["answer_correctness"] is None
    sheet = load_workbook(out / "evaluator_output_detailed.xlsx").active
    assert {cell.value for cell in next(sheet.iter_rows())} >= {*SEVEN.split(), "rouge1"}


def test_an_empty_response_is_similar_to_nothing(tmp_path: Path, smollm2: Path) -> None:
    from tests.fakes.tiny_models import tiny_encoder  # loads torch

    path, blank = tmp_path / "mine.jsonl", ("", " \n", None)
    rows = [{"response": text, "reference": ["four", "five"]} for text in (*blank, "five")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = str(tiny_encoder(smollm2, tmp_path / "encoder"))
    names = "exact_match bleu_score chrf_score rouge_score semantic_similarity".split()
    line = [str(path), "--out", str(tmp_path), "--embedding", encoder, "--metrics", *names]
    assert main(line) == 0
    for row in lines_of(tmp_path)[:3]:
        assert [row[name] for name in names] == [0, 0, 0, 0, 0]
    similar = lines_of(tmp_path)[3]["semantic_similarity"]
    assert 1 - 1e-5 < similar <= 1, "the closest reference counts, and no cosine is above 1"


def test_a_judge_of_ones_own_is_a_yaml_as_the_page_has_it(
    predictions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/scoring.md").read_text("utf-8")
    [yaml] = re.findall(r"```yaml\n# conf/task/judge/politeness.yaml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "conf/task/judge/politeness.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml)
    backend = scripted(monkeypatch, [("", "Rating: 3")])
    line = [str(predictions), "--out", str(tmp_path / "out"), "--metrics", "politeness"]
    assert main([*line, "--judge", "backend=echo"]) == 2
    searched = f"hydra.searchpath=[file://{tmp_path}/conf]"
    assert main([*line, "--judge", "backend=echo", searched]) == 0
    assert summary_of(tmp_path / "out")["politeness"] == 0.5
    assert backend().asked[0].startswith("How polite") and len(backend().asked) == 3


def test_a_local_judge_is_held_to_the_form_and_a_row_that_it_cannot_read_costs_no_other(
    predictions: Path,
    tmp_path: Path,
    tiny_llama: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    model = ["backend=hf", "backend.device=cpu", "model=local", f"model.path={tiny_llama()}"]
    form = ["sampling.max_new_tokens=10", 'sampling.regex="Rating: (0|2|4)"']
    line = [str(predictions), "--out", str(out), "--metrics", "answer_accuracy"]
    assert main([*line, "--judge", *model, *form]) == 1  # a hostile text of 40,000 characters
    scores = [row["answer_accuracy"] for row in lines_of(out)]
    assert all(score in (0, 0.5, 1) for score in scores[:2]) and scores[2] is None
    assert "1 of 3 rows have no judgement by answer_accuracy" in capsys.readouterr().out


class Paid(Scripted):
    """A judge whose service counts tokens and tells a price."""

    async def generate(self, request: Request) -> Generation:
        made = await super().generate(request)
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        made.backend_columns = {"usage": usage, "cost_usd": 0.25}
        return made


def test_without_prices_the_cost_is_what_the_service_said(
    predictions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged, "open_backend", lambda setup: Paid(ANSWERS))
    line = [str(predictions), "--out", str(tmp_path / "out"), "--judge", "backend=echo"]
    assert main([*line, "--metrics", "answer_accuracy"]) == 0
    cost = {"input_tokens": 21, "output_tokens": 9, "usd": 0.75}
    assert summary_of(tmp_path / "out")["details"]["cost"] == cost


def test_a_file_that_is_read_is_not_replaced(
    predictions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main([str(predictions), "--out", str(out)]) == 0
    lines = out / "evaluator_output_detailed.jsonl"
    before = lines.read_bytes()
    assert main([str(lines), "--out", str(out)]) == 2
    assert "--out must name another folder than that of" in capsys.readouterr().err
    assert lines.read_bytes() == before
