"""BLEU, chrF and ROUGE by their libraries: published numbers, and texts of any shape and length."""

import time

import pytest

from components.grading.overlap import MAX_PAIRS, Bleu, Chrf, RougeScores, _fitted
from pipeline.spec import SpecError

# The example of sacreBLEU's README, and the numbers that stand there.
SAID = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
FIRST = ["The dog bit the man.", "It was not unexpected.", "The man bit him first."]
SECOND = ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."]
PAIRS = [(said, references) for said, *references in zip(SAID, FIRST, SECOND, strict=True)]


def test_a_corpus_has_the_published_bleu_and_chrf() -> None:
    bleu, chrf = Bleu().of_all(PAIRS), Chrf().of_all(PAIRS)
    assert bleu.score == pytest.approx(48.53, abs=0.005)
    assert chrf.score == pytest.approx(59.73, abs=0.005)
    assert "tok:13a" in bleu.signature and "nrefs:2" in bleu.signature


def test_references_may_differ_in_number() -> None:
    one = Bleu().of_all([*PAIRS[:2], (SAID[2], [FIRST[2]])])
    assert 0 < one.score < Bleu().of_all(PAIRS).score


@pytest.mark.parametrize("metric", [Bleu, Chrf])
def test_a_response_is_1_against_itself_and_0_against_other_words(metric: type) -> None:
    assert metric().of("the same words here", ["no", "the same words here"]) == 1
    assert metric().of("zzz", ["the same words here"]) < 0.01
    assert metric().of("", ["the same words here"]) == 0


def test_rouge_of_its_authors_example_is_what_counting_by_hand_gives() -> None:
    target = "The quick brown fox jumps over the lazy dog"  # nine words
    found = RougeScores().of("The quick brown dog jumps on the log.", [target])  # eight
    assert found.rouge1 == pytest.approx(2 * 6 / 17)  # all but on, log
    assert found.rouge2 == pytest.approx(2 * 2 / 15)  # the quick, quick brown
    assert found.rouge_l == pytest.approx(2 * 5 / 17)  # the quick brown jumps the
    assert not found.cut


def test_the_best_reference_counts_for_rouge() -> None:
    assert RougeScores().of("general kenobi", ["hello there", "general kenobi"]).rouge_l == 1


def test_rouge_has_no_score_for_a_script_that_it_cannot_read() -> None:
    assert RougeScores().of("\u5317\u4eac", ["\u5317\u4eac"]).rouge_l is None
    assert Bleu("zh").of("\u5317\u4eac\u5e02\u5929", ["\u5317\u4eac\u5e02\u5929"]) == 1


@pytest.mark.parametrize("text", ["[" * 1_000_000, "a b " * 250_000, "{__class__}" * 90_000])
def test_a_megabyte_is_compared_in_seconds(text: str) -> None:
    begun = time.process_time()
    for metric in (Bleu(), Chrf()):
        assert 0 <= metric.of(text, [text, "a word"]) <= 1
    found = RougeScores().of(text, ["a word", text[::-1]])
    assert found.rouge_l is None or 0 <= found.rouge_l <= 1
    assert time.process_time() - begun < 20


@pytest.mark.parametrize(("given", "wanted"), [(50_000, 3), (3, 50_000), (9_000, 9_000), (2, 2)])
def test_the_longer_of_two_texts_is_cut_first(given: int, wanted: int) -> None:
    ours, theirs = _fitted(["a"] * given, ["b"] * wanted)
    assert len(ours) * len(theirs) <= MAX_PAIRS
    assert given * wanted > MAX_PAIRS or (len(ours), len(theirs)) == (given, wanted)
    assert len(ours) >= min(given, 2000) and len(theirs) >= min(wanted, 2000)


def test_an_unknown_tokenizer_is_refused() -> None:
    with pytest.raises(SpecError, match="--bleu-tokenize"):
        Bleu("flores200")
