"""Scores of predictions, one number from 0 to 1 for each row and metric (similarity: from -1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from components.grading import overlap, text
from components.grading.similarity import SentenceEmbedding
from launch.scoring.predictions import Prediction

Column = list[float | None]

MATCHES = {"exact_match": text.exact, "normalised_match": text.normalised}
OVERLAPS = ("bleu_score", "rouge_score", "chrf_score")
SIMILARITY = "semantic_similarity"
RELEVANCY, FACTS, CORRECTNESS = "answer_relevancy", "factual_correctness", "answer_correctness"
BY_EMBEDDING = (SIMILARITY, CORRECTNESS, RELEVANCY)
# What answer_correctness is made of, with the weights that the metric of this name has elsewhere.
OF_CORRECTNESS = {FACTS: 0.75, SIMILARITY: 0.25}


@dataclass(slots=True)
class Scores:
    """Columns of scores beside the rows, in the rows' order; None: the row has no such score.

    `metrics` names those that were asked for, `parts` what else is shown for each row. `corpora`
    are scores of all responses together. `notes` are sentences about rows that were cut or left
    out.
    """

    rows: Sequence[Prediction]
    metrics: dict[str, Column] = field(default_factory=dict)
    parts: dict[str, Column] = field(default_factory=dict)
    corpora: dict[str, overlap.Corpus] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, count: int, sentence: str) -> None:
        """Say how many rows something happened to, if any."""
        if count:
            self.notes.append(f"{count} of {len(self.rows)} rows {sentence}")


def add_overlaps(scores: Scores, metrics: Sequence[str], tokenize: str) -> None:
    """Matches, BLEU, ROUGE and chrF, as far as they are asked for. Raises SpecError."""
    for name in (name for name in MATCHES if name in metrics):
        scores.metrics[name] = _by_row(scores.rows, _best_match(name))
    sacre: dict[str, overlap.Bleu | overlap.Chrf] = {}
    if "bleu_score" in metrics:
        sacre["bleu_score"] = overlap.Bleu(tokenize)
    if "chrf_score" in metrics:
        sacre["chrf_score"] = overlap.Chrf()
    pairs = [(row.response, row.references) for row in scores.rows if row.references]
    for name, metric in sacre.items():
        scores.metrics[name] = _by_row(scores.rows, metric.of)
        if pairs:
            scores.corpora[name] = metric.of_all(pairs)
    if "rouge_score" in metrics:
        _add_rouge(scores)
    texts = [(row.response, *row.references) for row in scores.rows]
    longer = sum(max(map(len, row)) > overlap.MAX_LENGTH for row in texts)
    if set(metrics) & {*OVERLAPS}:
        scores.note(longer, f"hold a text of which {overlap.MAX_LENGTH:,} characters were compared")


def _by_row(
    rows: Sequence[Prediction], metric: Callable[[str, Sequence[str]], float | None]
) -> Column:
    return [metric(row.response, row.references) if row.references else None for row in rows]


def _best_match(name: str) -> Callable[[str, Sequence[str]], float]:
    """1 where a response matches any of its references; an empty one matches nothing."""

    def match(response: str, references: Sequence[str]) -> float:
        shown = response[: text.MAX_LENGTH]
        return float(bool(shown.strip()) and any(MATCHES[name](g, shown)[0] for g in references))

    return match


def _add_rouge(scores: Scores) -> None:
    metric = overlap.RougeScores()
    found = [metric.of(r.response, r.references) if r.references else None for r in scores.rows]
    scores.metrics["rouge_score"] = [rouge.rouge_l if rouge else None for rouge in found]
    scores.parts["rouge1"] = [rouge.rouge1 if rouge else None for rouge in found]
    scores.parts["rouge2"] = [rouge.rouge2 if rouge else None for rouge in found]
    unread = sum(rouge is not None and rouge.rouge_l is None for rouge in found)
    scores.note(unread, "have no rouge_score: it reads a to z and 0 to 9, their references none")
    cut = sum(rouge is not None and rouge.cut for rouge in found)
    scores.note(cut, "are so long that rouge_score looked at their beginnings only")


def add_similarity(scores: Scores, embedding: SentenceEmbedding) -> None:
    """The cosine of a response and its closest reference; 0 where the response is empty.

    A model makes some vector of an empty text as well, which means nothing.
    """
    rows = [row for row in scores.rows if row.references]
    embedding.read([text for row in rows for text in (row.response, *row.references)])
    scores.metrics[SIMILARITY] = _by_row(
        scores.rows,
        lambda said, golds: (
            max(embedding.cosine(said, gold) for gold in golds) if said.strip() else 0.0
        ),
    )


def relevancy(
    rows: Sequence[Prediction],
    judged: Sequence[Sequence[Sequence[str]]],
    embedding: SentenceEmbedding,
) -> Column:
    """How close the questions that a judge wrote to a response are to the one that was asked.

    `judged` holds, for each row, the questions of each of its judgements; none: an evasive answer,
    which is relevant to nothing.
    """
    written = [question for lists in judged for questions in lists for question in questions]
    embedding.read([*written, *(row.question for row in rows)])
    column: Column = []
    for row, lists in zip(rows, judged, strict=True):
        each = [
            fmean(embedding.cosine(row.question, question) for question in questions)
            if questions
            else 0.0
            for questions in lists
        ]
        column.append(fmean(each) if each and row.question.strip() else None)
    return column


def add_correctness(scores: Scores, facts: Column) -> None:
    """The weighted mean of factual correctness and semantic similarity."""
    columns = {FACTS: facts, SIMILARITY: scores.metrics[SIMILARITY]}
    values = []
    for number in range(len(scores.rows)):
        known = {name: column[number] for name, column in columns.items()}
        parts = [OF_CORRECTNESS[name] * v for name, v in known.items() if v is not None]
        values.append(sum(parts) if len(parts) == len(known) else None)
    scores.metrics[CORRECTNESS] = values
