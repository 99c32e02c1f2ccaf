"""How much of its references a response repeats: BLEU and chrF by sacreBLEU, ROUGE by rouge-score.

All scores lie between 0 and 1. BLEU and chrF take several references at once, as they are defined;
of ROUGE the best reference counts. What they look at of a text is bounded, since a model that
repeats itself may have written megabytes: rows that were cut say so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from components.grading.libraries import library
from pipeline.spec import require

TOKENIZERS = ("13a", "intl", "zh", "char", "none")  # of sacreBLEU, those that need no download
MAX_LENGTH = 100_000  # characters of a text that are looked at
# ROUGE-L compares every word with every word, in Python: more pairs take longer than a second.
MAX_PAIRS = 4_000_000
ROUGE = ("rouge1", "rouge2", "rougeL")


@dataclass(frozen=True, slots=True)
class Rouge:
    """F-measures of one response; None where a reference has no word that ROUGE can read."""

    rouge1: float | None
    rouge2: float | None
    rouge_l: float | None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Corpus:
    """A score of all responses together, on sacreBLEU's scale of 0 to 100, and how it was made."""

    score: float
    signature: str


class Bleu:
    """BLEU of a response and of many, with sacreBLEU's `tokenize`."""

    def __init__(self, tokenize: str = "13a") -> None:
        """Import the library. Raises SpecError without it, or for another tokenizer."""
        require(tokenize in TOKENIZERS, "--bleu-tokenize", f"be one of {TOKENIZERS}", tokenize)
        module = library("sacrebleu.metrics", "sacrebleu", "bleu_score")
        self._sentence = module.BLEU(tokenize=tokenize, effective_order=True)
        self._corpus = module.BLEU(tokenize=tokenize)

    def of(self, response: str, references: Sequence[str]) -> float:
        """BLEU of one response; orders that it is too short for do not count."""
        return _of_one(self._sentence, response, references)

    def of_all(self, pairs: Sequence[tuple[str, Sequence[str]]]) -> Corpus:
        """BLEU of a corpus: n-grams are counted over all responses, it is no mean."""
        return _of_all(self._corpus, pairs)


class Chrf:
    """chrF2: F-score of character n-grams up to six, recall counted twice."""

    def __init__(self) -> None:
        """Import the library. Raises SpecError without it."""
        self._metric = library("sacrebleu.metrics", "sacrebleu", "chrf_score").CHRF()

    def of(self, response: str, references: Sequence[str]) -> float:
        """The chrF2 of one response."""
        return _of_one(self._metric, response, references)

    def of_all(self, pairs: Sequence[tuple[str, Sequence[str]]]) -> Corpus:
        """The chrF2 of a corpus."""
        return _of_all(self._metric, pairs)


def _of_one(metric: Any, response: str, references: Sequence[str]) -> float:
    golds = [text[:MAX_LENGTH] for text in references]
    # sacreBLEU means 1 to be 100, which rounding can leave a little above.
    return min(float(metric.sentence_score(response[:MAX_LENGTH], golds).score) / 100, 1.0)


def _of_all(metric: Any, pairs: Sequence[tuple[str, Sequence[str]]]) -> Corpus:
    responses = [response[:MAX_LENGTH] for response, _ in pairs]
    most = max(len(references) for _, references in pairs)
    golds = [
        [refs[at][:MAX_LENGTH] if at < len(refs) else None for _, refs in pairs]
        for at in range(most)
    ]
    score = float(metric.corpus_score(responses, golds).score)
    return Corpus(score, str(metric.get_signature()))


class RougeScores:
    """ROUGE-1, ROUGE-2 and ROUGE-L without stemming, of which the best reference counts.

    rouge-score reads the letters a to z and digits only: a text in another script has no words for
    it, so a reference without any gives no score.
    """

    def __init__(self) -> None:
        """Import the library. Raises SpecError without it."""
        module = library("rouge_score.rouge_scorer", "rouge-score", "rouge_score")
        words = library("rouge_score.tokenizers", "rouge-score", "rouge_score")
        self._words = words.DefaultTokenizer(use_stemmer=False)
        self._scorer = module.RougeScorer(list(ROUGE), tokenizer=_Blanks())

    def of(self, response: str, references: Sequence[str]) -> Rouge:
        """The best F-measure of each kind over the references."""
        theirs = self._words.tokenize(response[:MAX_LENGTH])
        scores, cut = [], False
        for reference in references:
            ours = self._words.tokenize(reference[:MAX_LENGTH])
            if not ours:
                continue
            given, wanted = _fitted(theirs, ours)
            cut = cut or len(given) < len(theirs) or len(wanted) < len(ours)
            scores.append(self._scorer.score(" ".join(wanted), " ".join(given)))
        if not scores:
            return Rouge(None, None, None)
        one, two, longest = (max(float(score[kind].fmeasure) for score in scores) for kind in ROUGE)
        return Rouge(one, two, longest, cut)


class _Blanks:
    """Words that were found already."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


def _fitted(given: list[str], wanted: list[str]) -> tuple[list[str], list[str]]:
    """The beginnings of two texts, the longer one cut first, with at most `MAX_PAIRS` pairs."""
    if len(given) * len(wanted) <= MAX_PAIRS:
        return given, wanted
    side = int(MAX_PAIRS**0.5)
    shorter = min(len(given), len(wanted), side)
    longest = MAX_PAIRS // max(shorter, 1)
    return (
        given[: longest if len(given) > len(wanted) else side],
        wanted[: longest if len(wanted) >= len(given) else side],
    )
