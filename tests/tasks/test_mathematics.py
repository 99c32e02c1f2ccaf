"""Task math: where the answer is found, what its status is, loaders, presets, and the prompt."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy

from components.backends.echo import Echo
from launch.rows.stored_task import prompt_of
from pipeline.protocols import Example
from pipeline.run.point import prepare
from pipeline.spec import ModelSpec, Run, RunSpec, Sampling, SpecError
from tests.fakes.configs import ROOT
from tests.fakes.passes import Pass, generation, single, tagged
from tests.fakes.tasks import SHARED, task

MODEL = ModelSpec(name="echo", path="echo")
HALF = Example("half", "What is one half?", r"\frac{1}{2}")
VARIANTS = [f"legacy/math_q15b_promptv{n}" for n in range(1, 6)]


@pytest.fixture(scope="module")
def math() -> Any:
    return task("math")


@pytest.mark.parametrize(
    ("generations", "answer", "status", "right"),
    [
        (tagged("0.5\n"), "0.5", "answered", True),
        (tagged(r"\boxed{1/2}"), r"\boxed{1/2}", "answered", True),
        (tagged("it is \\boxed{1/2} I say", finish="max_new_tokens"), None, "truncated", False),
        (tagged(r"\boxed{0.5}, no", finish="max_context"), None, "truncated", False),
        (single("<think>\\boxed{0.5} but", "max_new_tokens"), None, "truncated", False),
        (single("<think>\\boxed{0.5} but", "max_context"), None, "truncated", False),
        (single("<think>x</think> \\boxed{0.5} as", "max_new_tokens"), "0.5", "answered", True),
        (single("<answer>\\boxed{0.5} no \\boxed{7", "max_new_tokens"), None, "truncated", False),
        (single("<answer>1/2</answer> Also", "max_new_tokens"), "1/2", "answered", True),
        (single("the answer", "max_context"), "", "truncated", False),
        (tagged("0.5 because of", finish="max_new_tokens"), "0.5 because of", "truncated", False),
        (tagged(r"\boxed{0.", finish="max_new_tokens"), r"\boxed{0.", "truncated", False),
        (tagged(""), "", "no_answer", False),
        (tagged("", think=r"I get \boxed{0.5}"), "0.5", "answered", True),
        (tagged("0.5", finish="eos"), "0.5", "answered", True),
        (single("<think>x</think>\n<answer>1/2</answer>"), "1/2", "answered", True),
        (
            single("<THINK>x</THINK>\n<Answer>\n1/2\n</ANSWER> and <answer>3</answer>"),
            "1/2",
            "answered",
            True,
        ),
        (single("<answer>\n1/2", "stop_token"), "1/2", "answered", True),
        (single("<answer>\n1/2", "stop_token", tail="</answer>"), "1/2", "answered", True),
        (single("<answer>\n1/", "max_new_tokens"), "", "truncated", False),
        (single(r"first \boxed{7}, no: \boxed {\frac12}."), r"\frac12", "answered", True),
        (single("the answer is 1/2"), "", "no_answer", False),
        (single("the answer is", "max_new_tokens"), "", "truncated", False),
        (single(r"\boxed{2", "max_new_tokens"), "", "truncated", False),
    ],
)
def test_answer_status_and_verdict(
    math: Any, generations: Pass, answer: str | None, status: str, right: bool
) -> None:
    fields = math.score(HALF, generations)
    assert fields["answer_status"] == status
    assert fields["is_correct_pred"] is right
    if answer is not None:
        assert fields["pred_answer"] == answer


def test_prose_counts_only_when_asked_for() -> None:
    strict, lenient = task("math"), task("math", last_number=True)
    output = single("<think>3 or 4</think> There are 7 of them, or 1/2.")
    assert strict.score(HALF, output)["answer_status"] == "no_answer"
    fields = lenient.score(HALF, output)
    assert fields["answer_status"] == "answered" and fields["is_correct_pred"]
    cut = lenient.score(HALF, single("There are 7 of them, or 1/2", "max_new_tokens"))
    assert cut["answer_status"] == "truncated" and not cut["is_correct_pred"]


def test_a_comparison_that_a_limit_ended_is_told_in_the_row() -> None:
    math = task("math", grading_seconds=0.5)
    slow = math.score(Example("e", "q", "x"), tagged("9^{9^{9^9}}"))
    assert slow["is_correct_pred"] is False and slow["grading"] == "timeout"
    assert "grading" not in math.score(Example("e", "q", "x"), tagged("y"))


def test_grade_takes_the_result_of_a_worked_solution_as_a_run_does() -> None:
    solution = r"Halve it: $x=\boxed{\frac{1}{2}}$."
    assert task("math").grade(solution, "0.5", {}).equal
    assert task("gsm8k").grade("2*3=<<2*3=6>>6\n#### 6", "6", {}).equal
    assert task("gsm8k").grade("6", "6", {}).equal


def test_a_megabyte_of_unclosed_tags_and_boxes_is_read(math: Any) -> None:
    for piece in ("<answer>", "\\boxed{", "\\boxed{1} and ", "<think>", "{", "\\\\"):
        fields = math.score(HALF, single(piece * (1_000_000 // len(piece)), "max_new_tokens"))
        assert fields["is_correct_pred"] is False


def test_the_substring_score_stands_beside_the_strict_one(math: Any) -> None:
    fields = math.score(Example("e", "q", "5"), tagged("15"))
    assert fields["is_correct_pred"] is False and fields["is_correct_substring"] is True
    assert fields["pred_answer_canon"] == "15"


def test_without_gold_nothing_is_right_or_wrong(math: Any) -> None:
    fields = math.score(Example("e", "q", None), tagged("15"))
    assert fields["is_correct_pred"] is None and fields["is_correct_substring"] is None


def test_phases_are_think_and_answer_with_forced_tags(math: Any) -> None:
    think, answer = math.phases
    assert (think.name, think.cap, think.opening, think.stop, think.closing) == (
        "think",
        750,
        "<think>\n",
        ("</think>",),
        "</think>\n",
    )
    assert (answer.name, answer.cap, answer.opening, answer.stop, answer.closing) == (
        "answer",
        50,
        "<answer>\n",
        ("</answer>",),
        "</answer>",
    )
    assert math.max_output_tokens == 900


def test_the_embedded_problems_grade_their_own_gold_and_no_other(math: Any) -> None:
    problems = math.examples()
    assert len(problems) == 24 and len({p.id for p in problems}) == 24
    for problem, other in zip(problems, [*problems[1:], problems[0]], strict=True):
        assert math.score(problem, tagged(problem.target))["is_correct_pred"], problem
        assert not math.score(problem, tagged(other.target))["is_correct_pred"], problem


def test_some_embedded_golds_are_what_sympy_computes() -> None:
    x, k, n = sympy.symbols("x k n")
    assert sympy.expand((x - 2) * (x**2 + 3 * x - 1)) == x**3 + x**2 - 7 * x + 2
    assert (
        sympy.simplify(
            sympy.summation((2 * k - 1) ** 2, (k, 1, n)) - n * (2 * n - 1) * (2 * n + 1) / 3
        )
        == 0
    )
    assert sympy.Rational(5, 14) * sympy.Rational(4, 13) == sympy.Rational(10, 91)
    assert int("244", 6) == 100 and 2**40 == 1099511627776 and 3 / 16 == 0.1875
    assert sympy.expand((3 + 2 * sympy.I) * (1 - 4 * sympy.I)) == 11 - 10 * sympy.I
    assert sympy.Matrix([[1, 2], [3, 4]]) * sympy.Matrix([[0, 1], [1, 0]]) == sympy.Matrix(
        [[2, 1], [4, 3]]
    )


def test_the_prompt_is_system_then_the_problem(math: Any) -> None:
    system, user = math.prompt(HALF).messages
    assert system.role == "system" and user.role == "user"
    assert user.content == ("Problem: What is one half?",)
    text = " ".join("".join(map(str, system.content)).split())
    for needed in (
        "no solution",
        "underdetermined",
        "750",
        "reduced",
        "radicals",
        "<answer>",
        "</think>",
    ):
        assert needed in text


@pytest.mark.parametrize(
    ("tagged", "cap"), [(True, "task.think_cap"), (False, "task.max_output_tokens")]
)
def test_the_prompt_states_the_cap_that_holds(tagged: bool, cap: str) -> None:
    short = task("math", f"{cap}=321", tagged_phases=tagged)
    assert "321 tokens" in "".join(map(str, short.prompt(HALF).messages[0].content))


def test_the_prompt_states_a_cap_that_sampling_overrides() -> None:
    def system(phases: str, **sampling: int) -> str:
        spec = RunSpec({}, {}, {}, MODEL, Sampling(**sampling), {}, Run(phases=phases))  # type: ignore[arg-type]
        point = prepare(spec, task("math"), Echo(MODEL))
        return str(point.task.prompt(HALF).messages[0].content)

    assert "750 tokens" in system("tagged")
    assert "33 tokens" in system("tagged", think_cap=33)
    assert "900 tokens" in system("single")
    assert "44 tokens" in system("single", max_new_tokens=44)


def test_a_stored_row_is_asked_again_under_the_caps_that_it_states() -> None:
    row = {"phases": "tagged", "think_cap": 33}
    example = replace(HALF, metadata=row)
    assert "33 tokens" in str(prompt_of(task("math"), example).messages[0].content)


def test_braces_in_a_problem_reach_the_prompt_unharmed(math: Any) -> None:
    problem = Example("e", r"Find {question} in $\{1\}$", "1")
    assert math.prompt(problem).messages[-1].content == (r"Problem: Find {question} in $\{1\}$",)


def test_few_shot_examples_are_turns(math: Any) -> None:
    shots = [{"user": "Problem: 1+1", "assistant": "<think>\n</think>\n<answer>2</answer>"}]
    messages = task("math", few_shot=shots).prompt(HALF).messages
    assert [m.role for m in messages] == ["system", "user", "assistant", "user"]
    with pytest.raises(SpecError, match="task.few_shot"):
        task("math", few_shot=[{"question": "1+1"}]).prompt(HALF)


def test_five_prompt_variants_differ_and_meet_the_requirements() -> None:
    asked = [task(name).prompt(HALF).messages[0] for name in ["math", *VARIANTS]]
    prompts = {"".join(map(str, system.content)) for system in asked}
    assert len(prompts) == 6
    for text in prompts:
        for needed in ("no solution", "underdetermined", "750", "<think>", "</answer>"):
            assert needed in " ".join(text.split())


@pytest.mark.parametrize("name", ["math-qwen", "math-llama", "math-azure"])
def test_presets_are_one_phase_of_900_tokens(name: str) -> None:
    preset = task(f"legacy/{name}")
    assert [(phase.name, phase.cap) for phase in preset.phases] == [("output", 900)]
    assert preset.name == name and "<think>" in preset.system_prompt
    user = preset.prompt(HALF).messages[-1].content[0]
    assert user == ("What is one half?" if name == "math-azure" else "Problem: What is one half?")


def test_openr1_is_one_phase_of_1224_tokens_over_the_train_split() -> None:
    openr1 = task("openr1")
    assert [(phase.name, phase.cap) for phase in openr1.phases] == [("output", 1224)]
    assert openr1.source.split == "train" and openr1.source.hub == "open-r1/OpenR1-Math-220k"
    messages = openr1.prompt(HALF).messages
    assert [m.role for m in messages] == ["user"] and "What is one half?" in str(
        messages[0].content[0]
    )


def test_math500_has_mirrors_also_under_its_plain_name() -> None:
    assert task("math", "task.data.hub=math-500").source == task("math500").source
    assert len(task("math500").source.hub) >= 3


def test_the_gold_of_a_worked_solution_is_its_result(tmp_path: Path) -> None:
    path = tmp_path / "gsm.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": "He has 2*3=<<2*3=6>>6.\n#### 1,006"}))
    (example,) = task("gsm8k", data={"hub": None, "path": str(path)}).examples()
    assert example.target == "1,006"
    path.write_text(json.dumps({"problem": "q", "solution": r"Then $x=\boxed{\frac{1}{2}}$."}))
    (example,) = task("math", data={"path": str(path)}).examples()
    assert example.target == r"\frac{1}{2}"
    path.write_text(json.dumps({"question": "q", "answer": "no hashes"}))
    with pytest.raises(SpecError, match=r"gsm.jsonl:1: task.answer_pattern"):
        task("gsm8k", data={"hub": None, "path": str(path)}).examples()


@pytest.mark.parametrize("question", ["problem", "question", "prompt", "instruction", "query"])
@pytest.mark.parametrize("answer", ["answer", "solution", "final_answer", "boxed_answer", "target"])
def test_every_field_name_of_published_files_is_read(
    tmp_path: Path, question: str, answer: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({question: "q", answer: 0}))
    (example,) = task("math", data={"path": str(path)}).examples()
    assert (example.question, example.target) == ("q", "0")
    assert example.metadata["gold_answer_canon"] == "0"


def test_aime_columns_are_capitalised(tmp_path: Path) -> None:
    path = tmp_path / "aime.jsonl"
    path.write_text(json.dumps({"ID": "2024-I-1", "Problem": "q", "Answer": 204}))
    (example,) = task("aime", data={"hub": None, "path": str(path)}).examples()
    assert (example.id, example.target) == ("2024-I-1", "204")


def test_math500_loads_from_a_file_with_its_own_ids() -> None:
    path = SHARED / "math500.jsonl"
    if not path.is_file():
        pytest.skip("MATH-500 is not beside the repository (../shared/data/math500.jsonl)")
    examples = task("math", data={"path": str(path)}).examples()
    assert len(examples) == 500 and examples[0].id == "test/precalculus/807.json"


@pytest.mark.parametrize("pattern", ["(", "no group", "(a)(b)"])
def test_an_answer_pattern_that_cannot_work_is_refused(pattern: str) -> None:
    with pytest.raises(SpecError, match="task.answer_pattern"):
        task("math", answer_pattern=pattern)


def test_a_cut_think_phase_with_a_whole_answer_is_answered(math: Any) -> None:
    generations = {"think": generation("long", "max_new_tokens"), "answer": generation("0.5")}
    fields = math.score(HALF, generations)
    assert fields["answer_status"] == "answered" and fields["is_correct_pred"]


def test_prompts_are_block_scalars_in_yaml() -> None:
    for name in ["math", "crossword", "carpark", *VARIANTS]:
        text = (ROOT / "conf" / "task" / f"{name}.yaml").read_text("utf-8")
        assert "system_prompt: |" in text, name
