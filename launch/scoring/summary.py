"""Means of scores with their errors, what the judges cost, and the table that is printed."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from components.grading.libraries import library
from components.grading.similarity import SentenceEmbedding
from launch.reporting.terminal import blocks
from launch.running.console import WIDTH
from launch.scoring.judged import Judgements
from launch.scoring.scores import Scores

PER_TOKEN = 1e-6  # of a price for a million
Line = dict[str, Any]


def require_libraries() -> None:
    """Raise SpecError where a library for errors or for files is missing."""
    for module, package in {"openpyxl": "openpyxl", "statsmodels.api": "statsmodels"}.items():
        library(module, package, "what is written")


def means(scores: Scores) -> list[Line]:
    """A line for each run and metric: mean, standard error clustered by example, rows scored."""
    from pipeline.analysis.estimates import clustered_mean  # statsmodels, which loads slowly

    lines = []
    for run in dict.fromkeys(row.run for row in scores.rows):
        for name, column in scores.metrics.items():
            pairs = [
                (value, row.example)
                for row, value in zip(scores.rows, column, strict=True)
                if row.run == run and value is not None
            ]
            values, examples = [value for value, _ in pairs], [example for _, example in pairs]
            mean, error = clustered_mean(values, examples)
            lines.append(
                {
                    "run": run,
                    "metric": name,
                    "mean": mean if pairs else None,
                    "stderr": error if error == error else None,  # NaN: fewer than two examples
                    "rows": len(pairs),
                }
            )
    return lines


def summary(
    scores: Scores,
    judged: Mapping[str, Judgements],
    prices: tuple[float, float] | None,
    embedding: SentenceEmbedding | None,
) -> Line:
    """Each metric with its mean over all rows at the top, and under `details` everything else."""
    found: Line = {}
    for name, column in scores.metrics.items():
        known = [value for value in column if value is not None]
        found[name] = sum(known) / len(known) if known else None
    found["details"] = {
        "rows": len(scores.rows),
        "by_run": means(scores),
        "corpus": {name: asdict(corpus) for name, corpus in scores.corpora.items()},
        "embedding": embedding.about() if embedding else None,
        "judges": {name: _judge(judgements) for name, judgements in judged.items()},
        "cost": cost(judged, prices) if judged else None,
    }
    return found


def _judge(judgements: Judgements) -> Line:
    return {
        "folder": str(judgements.folder),
        "judged": len(judgements.by_key),
        "unread": judgements.unread,
        "missing": judgements.missing,
    }


def cost(judged: Mapping[str, Judgements], prices: tuple[float, float] | None) -> Line:
    """Tokens of all judges and their price in USD: by `prices` for a million, else as recorded.

    `prices` are those of input and of output tokens. `usd` is None where nobody says.
    """
    tokens_in = sum(judgements.input_tokens for judgements in judged.values())
    tokens_out = sum(judgements.output_tokens for judgements in judged.values())
    recorded = [judgements.usd for judgements in judged.values()]
    if prices is not None:
        usd: float | None = (tokens_in * prices[0] + tokens_out * prices[1]) * PER_TOKEN
    else:
        usd = None if None in recorded else sum(value or 0.0 for value in recorded)
    return {"input_tokens": tokens_in, "output_tokens": tokens_out, "usd": usd}


def printed(found: Line) -> Iterator[str]:
    """The table by run and metric, as lines for a terminal."""
    corpus, lines = found["details"]["corpus"], found["details"]["by_run"]
    several = len({line["run"] for line in lines}) > 1
    heads = ["run", "metric", "mean", "rows"] if several else ["metric", "mean", "rows"]
    columns = [[head, *(_text(line, head) for line in lines)] for head in heads]
    yield from blocks(columns, len(heads) - 2, WIDTH)
    for name, of_all in corpus.items():
        yield f"{name} of the corpus: {of_all['score']:.2f} of 100 ({of_all['signature']})"


def _text(line: Line, head: str) -> str:
    if head != "mean":
        return str(line[head])
    if line["mean"] is None:
        return "-"
    error = "" if line["stderr"] is None else f" ± {line['stderr']:.4f}"
    return f"{line['mean']:.4f}{error}"
