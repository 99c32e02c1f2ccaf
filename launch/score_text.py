"""Scores of predictions: `python launch/score_text.py outputs/demo`, or any file of predictions.

Reads run folders, row files, `inferencer_output.jsonl`, and JSONL, CSV or Parquet with responses
and references. Prints a mean for each metric and writes evaluator_output_summary.json,
evaluator_output_detailed.xlsx and .jsonl into --out. Every score of a row lies between 0 and 1.

    exact_match, normalised_match           the same characters, the same words
    bleu_score, rouge_score, chrf_score     by sacreBLEU and rouge-score (ROUGE-L)
    semantic_similarity                     cosine of sentence embeddings: --embedding FOLDER
    answer_accuracy, factual_correctness    a model judges: --judge backend=openai model=...
    answer_correctness, answer_relevancy    need both; docs/scoring.md says what each is

A judge is a run like any other: stopped, it goes on where it was, `--judge run.budget=2` limits
what each metric may cost, and any YAML in conf/task/judge/ is a metric.
"""

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from components.grading.overlap import TOKENIZERS
from components.grading.similarity import SentenceEmbedding
from launch.config.command_line import ended, filled, named
from launch.scoring import files, judged, scores, tracking
from launch.scoring.judged import BY_TEXT, METRICS, Judgements, needs_judge
from launch.scoring.predictions import FIELDS, Predictions, read
from launch.scoring.scores import BY_EMBEDDING, CORRECTNESS, FACTS, SIMILARITY, Scores
from launch.scoring.summary import printed, require_libraries, summary
from pipeline.spec import SpecError, require


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add(
        "paths",
        nargs="+",
        type=filled,
        help="run folders, row files, or files with one prediction a record",
    )
    add("--metrics", nargs="+", metavar="NAME", help=f"of {', '.join(METRICS)}")
    add("--out", type=named, default=Path("outputs/scores"), help="folder; default %(default)s")
    add("--pass", dest="pass_name", default="pass1", metavar="PASS", help="of rows of runs")
    add(
        "--columns",
        nargs="+",
        default=[],
        metavar="FIELD=NAME",
        help=f"where {', '.join(FIELDS)} stand; dots go into nested values",
    )
    add("--bleu-tokenize", choices=TOKENIZERS, default="13a", help="default 13a; Chinese: zh")
    add("--embedding", metavar="MODEL", help="folder or hub id of a sentence-embedding model")
    add("--judge", nargs="+", metavar="KEY=VALUE", help="overrides that choose the judging model")
    add("--tracking", nargs="+", metavar="KEY=VALUE", help="such as tracking=mlflow")
    add("--cost-per-million-input-tokens", type=float, metavar="USD", help="that the judge reads")
    add("--cost-per-million-output-tokens", type=float, metavar="USD", help="that it writes")
    return made


def main(line: Sequence[str] | None = None) -> int:
    """Print and write; status 2 with one sentence when something is wrong, 1 where rows failed."""
    given = parser().parse_args(line)
    return ended(lambda: score(given))


def score(given: argparse.Namespace) -> int:
    """Read, score, write; the status of the judges' runs."""
    metrics, prices = chosen_metrics(given), prices_of(given)
    files.refuse_own_input(given.paths, given.out)
    require_libraries()  # before anything is paid for
    tracker = tracking.tracker_of(given.tracking) if given.tracking else None
    found = read(given.paths, given.pass_name, named_columns(given.columns))
    made = Scores(found.rows)
    add_notes(made, found, given.pass_name)
    embedding = SentenceEmbedding(given.embedding) if given.embedding else None
    scores.add_overlaps(made, metrics, given.bleu_tokenize)
    if embedding and {SIMILARITY, CORRECTNESS} & {*metrics}:
        scores.add_similarity(made, embedding)
    said: dict[str, Judgements] = {}
    status = 0
    if names := judges_of(metrics):
        said, status = judged.judge(
            names, found.rows, given.judge, given.out, embedding is not None
        )
    add_judged(made, said, metrics, embedding)
    if embedding and embedding.truncated:
        made.notes.append(
            f"{embedding.truncated} texts are longer than {given.embedding} reads: what stands "
            "behind says nothing in their similarity"
        )
    whole = summary(made, said, prices, embedding)
    readings = {f"{name}_judgement": by.column_of_readings(found.rows) for name, by in said.items()}
    files.write(made, readings, whole, given.out)
    if tracker is not None:
        params = {"paths": " ".join(given.paths), "judge": " ".join(given.judge or ())}
        tracking.track(tracker, "scores", params, whole, given.out)
    for text in (*printed(whole), *cost_line(whole), *made.notes):
        print(text)
    print(f"{len(found.rows)} rows in {given.out / files.SUMMARY} and {files.SHEET} beside it")
    return status


def add_notes(made: Scores, found: Predictions, pass_name: str) -> None:
    """Say what of the files has no score."""
    made.note(sum(not row.references for row in found.rows), "have no reference to compare with")
    if found.without_pass:
        made.notes.append(f"{found.without_pass} more rows have no {pass_name}, or it failed")
    if found.broken:
        made.notes.append(f"{found.broken} lines are no JSON object and were left out")


def chosen_metrics(given: argparse.Namespace) -> list[str]:
    """The metrics that are asked for, else those that the rest of the line makes possible."""
    metrics = list(dict.fromkeys(given.metrics or _possible(given)))
    elsewhere = any("searchpath" in word for word in given.judge or ())
    for name in metrics:
        known = name in METRICS or elsewhere
        require(known, "--metrics", f"hold names of {', '.join(METRICS)}", name)
        if needs_judge(name) and not given.judge:
            raise SpecError(
                f"{name} is judged by a model: choose one with --judge, such as "
                "--judge backend=openai model=hosted model.name=NAME"
            )
        if name in BY_EMBEDDING and not given.embedding:
            raise SpecError(f"{name} compares sentence embeddings: name a model with --embedding")
    if given.judge and not judges_of(metrics):
        raise SpecError(f"--judge judges nothing: no metric of {', '.join(metrics)} needs it")
    return metrics


def _possible(given: argparse.Namespace) -> list[str]:
    by_embedding = [SIMILARITY] if given.embedding else []
    return [*BY_TEXT, *by_embedding, *(["answer_accuracy"] if given.judge else [])]


def judges_of(metrics: Sequence[str]) -> list[str]:
    """The judges that metrics need."""
    plain = [name for name in metrics if needs_judge(name) and name != CORRECTNESS]
    needed = [FACTS] if CORRECTNESS in metrics else []
    return list(dict.fromkeys([*plain, *needed]))


def prices_of(given: argparse.Namespace) -> tuple[float, float] | None:
    """USD for a million input and output tokens, or None; SpecError where only one is there."""
    prices = (given.cost_per_million_input_tokens, given.cost_per_million_output_tokens)
    for price in prices:
        rule = "be 0 or more and finite, for input and output tokens or for neither"
        fits = (price is None) == (None in prices) and (price is None or 0 <= price < math.inf)
        require(fits, "--cost-per-million-...-tokens", rule, price)
    return None if None in prices else prices


def named_columns(words: Sequence[str]) -> dict[str, str]:
    """`FIELD=NAME` words as a mapping. Raises SpecError."""
    named = dict(word.partition("=")[::2] for word in words)
    for field, name in named.items():
        rule = f"be FIELD=NAME with a field of {', '.join(FIELDS)}"
        require(field in FIELDS and bool(name), "--columns", rule, f"{field}={name}")
    return named


def add_judged(
    made: Scores,
    said: Mapping[str, Judgements],
    metrics: Sequence[str],
    embedding: SentenceEmbedding | None,
) -> None:
    """The columns that come from judges, and a note on judgements that are not there."""
    for name, judgements in said.items():
        if judgements.writes_questions:
            assert embedding is not None
            written = [judgements.questions(row) for row in made.rows]
            made.metrics[name] = scores.relevancy(made.rows, written, embedding)
        else:
            made.metrics[name] = judgements.column(made.rows)
        where = f"the run is {judgements.folder}, and the same command goes on with it"
        made.note(judgements.missing, f"have no judgement by {name} yet, or too few: {where}")
        if judgements.unread:  # of several judgements of a row, some may be read
            made.notes.append(
                f"{judgements.unread} judgements by {name} have no score, since what the judge "
                "wrote does not end as its prompt asks"
            )
    if CORRECTNESS in metrics:
        scores.add_correctness(made, made.metrics[FACTS])
    made.parts |= {name: c for name, c in made.metrics.items() if name not in metrics}
    made.metrics = {name: made.metrics[name] for name in metrics}


def cost_line(whole: Mapping[str, Any]) -> Iterator[str]:
    """What the judges used."""
    cost = whole["details"]["cost"]
    if cost:
        usd = "unknown" if cost["usd"] is None else f"{cost['usd']:.4f} USD"
        yield (
            f"judges: {cost['input_tokens']} input tokens, {cost['output_tokens']} output tokens, "
            f"cost {usd}"
        )


if __name__ == "__main__":
    sys.exit(main())
