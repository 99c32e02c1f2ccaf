"""Equality of math answers.

A table of pairs, MATH-500 and its near misses, hostile input, threads.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from components.grading.math.boxed import boxed_answer
from components.grading.math.canonical import canonical, contains
from components.grading.math.compare import compare
from components.grading.math.pool import GraderError, Pool
from tests.grading.near_misses import near_misses

HERE = Path(__file__).parent
MATH500 = HERE.parents[2] / "shared" / "data" / "math500.jsonl"
PAIRS = [
    json.loads(line)
    for name in ("pairs", "spellings", "kinds", "answers")
    for line in (HERE / f"math_{name}.jsonl").read_text("utf-8").splitlines()
]
LIMIT = 5.0

HOSTILE = [
    "9^{9^{9^9}}",
    "2^{2^{2^{2^{2^{2}}}}}",
    "100000000!",
    r"\sum_{k=1}^{10^{12}} \frac{1}{k^k}",
    r"\prod_{k=1}^{99999999} k",
    r"(x+1)^{100000}",
    "(" * 900 + "x" + ")" * 900,
    r"\sqrt{" * 250 + "2" + "}" * 250,
    "1" * 1900 + "!",
    "a" + "^" * 600,
    r"\frac{" * 300,
    "{" * 1000,
    "$" * 1999,
    r"\int_0^1 x^{x^{x}} dx",
    "x" * 1_000_000,
    "\x00\ud800",
]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(workers=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def impatient() -> Iterator[Pool]:
    made = Pool(workers=1, seconds=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def math500() -> list[str]:
    if not MATH500.is_file():
        pytest.skip("MATH-500 is not beside the repository (../shared/data/math500.jsonl)")
    return [json.loads(line)["answer"] for line in MATH500.read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    "pair", PAIRS, ids=lambda p: f"{p['gold']} | {p['pred']} | {p['why']}"[:90]
)
def test_the_pair_is_judged_as_the_table_says(pool: Pool, pair: dict[str, object]) -> None:
    verdict = pool.grade(str(pair["gold"]), str(pair["pred"]))
    assert verdict.equal is pair["equal"], verdict


def test_the_table_is_large_and_two_sided() -> None:
    verdicts = Counter(pair["equal"] for pair in PAIRS)
    assert len(PAIRS) >= 1400 and verdicts[False] >= 500
    assert len({(pair["gold"], pair["pred"]) for pair in PAIRS}) == len(PAIRS)


def test_every_math500_answer_equals_itself_and_its_boxed_forms(math500: list[str]) -> None:
    for answer in math500:
        forms = (answer, f"\\boxed{{{answer}}}", f"${answer}$", f"$\\boxed {{{answer}}}$.")
        for form in forms:
            equal, reason = compare(answer, form)
            assert equal, (answer, form, reason)


def test_sixty_math500_answers_equal_other_forms_of_themselves(math500: list[str]) -> None:
    covered = {pair["gold"] for pair in PAIRS if pair["equal"]} & set(math500)
    assert len(covered) >= 60


def test_five_hundred_near_misses_of_math500_are_wrong(pool: Pool, math500: list[str]) -> None:
    kinds: Counter[str] = Counter()
    for place, answer in enumerate(math500):
        for kind, miss in near_misses(answer, place):
            verdict = pool.grade(answer, miss)
            assert not verdict.equal, (kind, answer, miss, verdict)
            kinds[kind] += 1
    assert kinds.total() >= 500
    assert set(kinds) == {"base", "unit", "order", "word", "sign", "digit"}


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:24]))
def test_hostile_input_ends_within_the_limit_and_is_wrong(impatient: Pool, text: str) -> None:
    begun = time.monotonic()
    verdict = impatient.grade(r"x+\sqrt{2}", text)
    assert not verdict.equal
    assert time.monotonic() - begun < impatient.seconds + 2


def test_a_row_takes_at_most_five_seconds_by_default(pool: Pool) -> None:
    begun = time.monotonic()
    assert "longer than" in pool.grade(r"x+\sqrt{2}", "9^{9^{9^9}}").reason
    assert time.monotonic() - begun < LIMIT


def test_the_next_answer_after_a_killed_one_is_graded_at_once(impatient: Pool) -> None:
    assert "longer than" in impatient.grade("1", "9^{9^{9^9}}").reason
    begun = time.monotonic()
    assert impatient.grade(r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}").equal
    assert time.monotonic() - begun < impatient.seconds


@pytest.mark.parametrize(
    "code",
    [
        "__import__('os').system('touch {mark}')",
        "open('{mark}','w')",
        r"\text{{__import__('pathlib').Path('{mark}').touch()}}",
        "exec(\"open('{mark}','w')\")",
    ],
)
def test_model_text_is_never_run(pool: Pool, tmp_path: Path, code: str) -> None:
    mark = tmp_path / "ran"
    pool.grade("3", code.format(mark=mark))
    pool.grade(code.format(mark=mark), "3")
    assert not mark.exists()


def test_threads_share_the_pool(pool: Pool) -> None:
    work = [pair for pair in PAIRS if "slow" not in pair["why"]] * 2
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda p: pool.grade(p["gold"], p["pred"]), work))
    assert [verdict.equal for verdict in verdicts] == [pair["equal"] for pair in work]


def test_a_closed_pool_starts_again() -> None:
    pool = Pool(workers=1)
    assert pool.grade("1", "1.0").equal
    pool.close()
    assert pool.grade("1", "1.0").equal
    pool.close()


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"so \boxed{5}", "5"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {x}", "x"),
        ("\\boxed\n{x}", "x"),
        (r"\boxed{2} and cut \boxed{3", "2"),
        (r"\boxed{2", None),
        (r"put it in \boxed please", None),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        ("no box, only 7", None),
        (r"\boxed{1} and \boxed{2}", "1, 2"),
        (r"$\boxed{1}$, $\boxed{2}$ and $\boxed{3}$", "1, 2, 3"),
        (r"$x=\boxed{-2}$ or $x=\boxed{1}$", "x=-2, x=1"),
        (r"x=\boxed{-2} \text{ or } x=\boxed{1}", "x=-2, x=1"),
        (r"\boxed{1}. Check: and \boxed{2}", "2"),
        (r"\boxed{1} is wrong, and \boxed{2}", "2"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"{ \boxed{5}", "5"),
    ],
)
def test_the_last_balanced_box_is_found(text: str, box: str | None) -> None:
    assert boxed_answer(text) == box


@pytest.mark.parametrize(
    ("gold", "pred", "inside"),
    [
        ("5", "15", True),
        (r"\dfrac{1}{2}", "1/2", False),
        (r"\frac{1}{2}", "1/2", True),
        (r"(1,2)", "12", True),
        (r"[1,2]", "(1,2)", True),
        ("1,234", "1234", True),
        (r"\pi", "2pi", True),
        ("\u22125", "-5", True),
        ("", "5", False),
    ],
)
def test_the_published_substring_rule_is_kept_with_its_faults(
    gold: str, pred: str, inside: bool
) -> None:
    assert contains(canonical(gold), canonical(pred)) is inside


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (r"\dfrac{1}{2}", r"\dfrac12"),
        (r"\frac{\sqrt{3}}{2}", r"\frac\sqrt32"),
        (r" \left(1,\,2\right). ", "12"),
        ("+x--y", "x-y"),
        (r"$\boxed{X}$", "x"),
        ("90\u00b0", "90\u00b0"),
    ],
)
def test_the_published_canonical_form(text: str, form: str) -> None:
    assert canonical(text) == form


def test_a_grader_whose_asker_was_killed_ends_without_a_traceback() -> None:
    line = [sys.executable, "-m", "components.grading.math.worker", "5", "2000"]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, cwd=HERE.parents[1], stdin=pipe, stdout=pipe, stderr=pipe) as asked:
        assert asked.stdin and asked.stdout and asked.stderr
        asked.stdout.readline()  # ready
        asked.stdout.close()
        asked.stdin.write(b'{"gold": "1", "pred": "1"}\n')
        asked.stdin.close()
        assert b"Traceback" not in asked.stderr.read()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_grading_process_that_dies_never_gives_a_verdict() -> None:
    pool = Pool(workers=1)
    assert pool.grade("1", "1").equal
    (supervisor,) = pool.pids()
    for victim in (*children(supervisor), supervisor):
        os.kill(victim, signal.SIGKILL)
        assert pool.grade(r"\frac{1}{2}", "0.5").equal
    pool.close()


def test_a_grader_killed_twice_on_one_pair_fails_the_row() -> None:
    pool = Pool(workers=1, seconds=20)
    assert pool.grade("1", "1").equal
    with ThreadPoolExecutor(1) as threads:
        (supervisor,) = pool.pids()
        asked = threads.submit(pool.grade, "x", "9^{9^{9^9}}")
        for _ in range(2):
            (grader,) = children(supervisor)
            time.sleep(0.3)
            os.kill(grader, signal.SIGKILL)
            while grader in children(supervisor) or not children(supervisor):
                time.sleep(0.01)
        with pytest.raises(GraderError, match="died twice"):
            asked.result()
    pool.close()


def test_a_hard_memory_limit_below_ours_still_grades() -> None:
    code = (
        "from components.grading.math.pool import Pool\n"
        "pool = Pool(workers=1)\n"
        "print(pool.grade('4', '4.0').equal, pool.grade('4', '5').equal)\n"
    )
    limit = (1500 << 20, 1500 << 20)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )
    assert done.stdout == "True False\n", done.stderr


def test_a_grading_process_that_cannot_start_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(GraderError, match="math-verify"):
        Pool(workers=1).grade("4", "4")
