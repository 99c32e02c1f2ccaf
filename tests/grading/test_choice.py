"""Which choice a text settles on."""

import pytest

from components.grading import text as text_grading
from components.grading.choice import chosen_letter

CHOICES = ["0", "100", "50", "25", "75"]

CASES = [
    ("A) 0 B) 100 C) 50", None),
    ("I think it's B", "B"),
    ("It must be D.", "D"),
    ("It is A.", "A"),
    ("It is A good idea.", None),
    ("It is not B.", None),
    ("It is B. But wait, it is C.", "C"),
    ("It's C, not D.", "C"),
    ("Both A and B are wrong, so C.", "C"),
    ("We can rule out A, B and C. So D.", "D"),
    ("D - the sun", "D"),
    ("A - B = 3", None),
    ("Answer - C", "C"),
    ("Answer - A common mistake is to add", None),
    ("the answer range is 3 - B", None),
    ("B", "B"),
    ("b", "B"),
    ("b)", "B"),
    ("(b)", "B"),
    ("B.", "B"),
    ("(B)", "B"),
    ("[B]", None),
    ("**B**", "B"),
    ("**(C)**", "C"),
    ("`D`", "D"),
    ("$C$", "C"),
    ("Answer: $C$", "C"),
    ("Answer: B", "B"),
    ("Answer:B", "B"),
    ("answer: b", "B"),
    ("**Answer:** B", "B"),
    ("**Answer: B**", "B"),
    ("Answer = B", "B"),
    ("ANSWER: (B)", "B"),
    (r"\boxed{B}", "B"),
    (r"\boxed{\text{B}}", "B"),
    (r"\boxed{\textbf{(C)}}", "C"),
    (r"\boxed{\mathrm{D}}", "D"),
    (r"\boxed{(E)}", "E"),
    (r"\boxed{\textbf{(B) } 100}", "B"),
    (r"$\boxed{B}$.", "B"),
    (r"\boxed{A} no, \boxed{B}", "B"),
    (r"\boxed{E} ... Answer: D", "D"),
    (r"Answer: D, that is \boxed{E}", "E"),
    ("B. 100", "B"),
    ("B) 100", "B"),
    ("B: 100", "B"),
    ("(B) 100", "B"),
    ("B, because it is larger", "B"),
    ("B because it is larger", "B"),
    ("The answer is B.", "B"),
    ("The answer is (B), not A", "B"),
    ("The answer is option B", "B"),
    ("The correct answer is therefore B", "B"),
    ("The correct option is C", "C"),
    ("The best choice would be D.", "D"),
    ("So the answer must be E", "E"),
    ("The answer to this question is B", "B"),
    ("the answer is b.", "B"),
    ("The answer is B. Note that option A is a common distractor.", "B"),
    ("The correct answer is not C but B.", "B"),
    ("The answer is not C but rather B", "B"),
    ("The answer isn't A. The answer is D", "D"),
    ("The answer is D. The answer is not A.", "D"),
    ("I first thought the answer is A. The answer is B", "B"),
    ("The answer is A. Wait, B is correct.", "B"),
    ("Option C is correct", "C"),
    ("C is the right answer", "C"),
    ("A is not correct, so B is correct", "B"),
    ("I choose C", "C"),
    ("I would go with option D", "D"),
    ("We pick (A).", "A"),
    ("It must be option C, by symmetry", "C"),
    ("Long reasoning about options.\n\nC", "C"),
    ("Long reasoning.\n\n**(C)**", "C"),
    ("A. 0\nB. 100\nC. 50\n\nAnswer: B", "B"),
    ("A. 0\nB. 100\nC. 50\n\nB", "B"),
    ("A. 0\nB. 100\nC. 50", None),
    ("(A) 0 (B) 100 (C) 50", None),
    ("(B) is larger than (A)", "B"),
    ("The answer is A or B", None),
    ("The answer is A and C.", None),
    (r"\boxed{A, C}", None),
    ("Maybe option A, maybe option B", None),
    ("A triangle has three sides.", None),
    ("I think so.", None),
    ("Because of that.", None),
    ("The answer is a prime number.", None),
    ("The answer: I do not know", None),
    ("The answer is not A.", None),
    ("Z", None),
    ("The answer is Z", None),
    ("", None),
    ("42", None),
]


@pytest.mark.parametrize(("text", "letter"), CASES)
def test_the_letter_that_a_text_settles_on(text: str, letter: str | None) -> None:
    assert chosen_letter(text, CHOICES) == letter


def test_the_table_has_sixty_cases() -> None:
    assert len({text for text, _ in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize(
    ("pred", "equal"),
    [("It is 100", True), ("100 or 50", False), ("It is 1000", False), ("Answer: B", True)],
)
def test_the_only_choice_whose_text_is_repeated_counts(pred: str, equal: bool) -> None:
    assert text_grading.grade("choice", "B", pred, CHOICES).equal is equal


@pytest.mark.parametrize(
    ("grader", "gold", "pred", "equal"),
    [
        ("normalised", "-5", "5", False),
        ("normalised", "-5", "-5.", True),
        ("normalised", "3.5", "3 5", False),
        ("normalised", "1,000", "1000", True),
        ("contains", "5", "It is 3.5", False),
        ("contains", "5", "It is -5", False),
        ("contains", "5", "It is 5.", True),
        ("contains", "5", "It is 15", False),
        ("contains", "1000", "It is 1,000 euros", True),
        ("contains", "well known", "well-known", True),
        ("number", "1500", "1.5e3", True),
        ("number", "1", "1.5e3", False),
        ("number", "2", "about 2 %", True),
        ("number", "5", "3-5", True),
    ],
)
def test_a_number_keeps_its_sign_and_its_point(
    grader: str, gold: str, pred: str, equal: bool
) -> None:
    assert text_grading.grade(grader, gold, pred).equal is equal
