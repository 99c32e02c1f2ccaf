"""Writes run folders of thousands of rows; their passes are made by the code that runs use."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from components.grading.rush_hour.soft_match import soft_reward
from components.tasks.carpark import judge
from pipeline.protocols import Cue, Example, Generation, Phase
from pipeline.run.pass_fields import SeriesPolicy, build_pass
from pipeline.store.files import encode

PHASES = (
    Phase("think", 60, "<think>\n", ("</think>",), "</think>\n"),
    Phase("answer", 50, "<answer>\n", ("</answer>",), "</answer>"),
)
CUES = (
    Cue("wait", "Wait, let me reconsider."),
    Cue("neutral", "Please write out the answer once more.", control=True),
)
BOARD, MOVES = "AABoCDBoCDoooEEo", "Bv1,A>2"
HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=alert(1)> <!-- ]]>"
WORDS = "so the sum of both sides is even and we divide by two then check each step again".split()


def generation(draw: random.Random, words: Sequence[str], level: float) -> Generation:
    """Words as tokens, each with an entropy drawn around `level`."""
    tokens = [word if i == 0 else f" {word}" for i, word in enumerate(words)]
    ends = [sum(map(len, tokens[: i + 1])) for i in range(len(tokens))]
    entropies = [round(draw.expovariate(1 / level), 6) for _ in tokens]
    return Generation(
        token_ids=list(range(len(tokens))),
        text="".join(tokens),
        finish_reason="stop_token",
        entropies=entropies,
        logprobs=[-entropy / 2 for entropy in entropies],
        ends=ends,
        prompt_tokens=20,
    )


def a_pass(draw: random.Random, example: Example, cue: Cue | None, right: bool) -> dict[str, Any]:
    """One scored pass."""
    level = 0.5 + 0.5 * (not right) - 0.2 * (cue is not None)
    words = draw.choices(WORDS, k=draw.randint(12, 40))
    if draw.random() < 0.2:
        words += ["wait,", "let", "me", "reconsider:", "$\\frac{1}{2}$", "🙂"]
    if example.metadata.get("hostile"):
        words.append(HOSTILE)
    answer = _right(example) if right else _wrong(example)
    parts = [generation(draw, words, level), generation(draw, answer.split(), level)]
    fields = {"prev_output": None} | build_pass(example, PHASES, parts, cue, SeriesPolicy())
    fields |= {"pred_answer": answer, "pred_answer_canon": answer, "is_correct_pred": right}
    if "board" in example.metadata:
        reward, detail = soft_reward(answer, [MOVES])
        fields |= {"soft_reward": reward, "soft_reward_detail": detail}
        fields |= judge(BOARD, 2, answer)
    return fields


def _right(example: Example) -> str:
    return MOVES if "board" in example.metadata else str(example.target)


def _wrong(example: Example) -> str:
    return "Bv1,A>3" if "board" in example.metadata else "\\frac{3}{7}"


def examples(count: int) -> list[Example]:
    """Math problems with formulas, every tenth a board; the first holds hostile text."""
    found = []
    for i in range(count):
        if i % 10 == 1:
            found.append(Example(f"board-{i}", BOARD, MOVES.split(","), {"board": BOARD}))
        else:
            question = f"Problem {i}: what is $\\frac{{{i + 1}}}{{{i + 2}}}$ of $x^2$?"
            gold = f"\\frac{{{i + 1}}}{{{i + 2}}}"
            found.append(Example(f"math-{i}", question, gold, {"hostile": True} if i == 0 else {}))
    return found


def write_run(root: Path, count: int, samples: int, seed: int = 0, bonus: float = 0.0) -> int:
    """A run of `count` examples x `samples` at two steps and two temperatures; returns its rows."""
    draw = random.Random(seed)
    rows = 0
    for step in (0, 50):
        for temperature in (0.3, 0.7):
            folder = root / f"point-T{temperature:g}" / f"step-{step}"
            folder.mkdir(parents=True)
            with (folder / f"step{step:04d}_test.jsonl").open("wb") as file:
                for example in examples(count):
                    for sample in range(samples):
                        row = _row(draw, example, sample, (step, temperature), bonus)
                        file.write(encode(row))
                        rows += 1
            _record(folder, step, temperature, seed)
    return rows


def _row(
    draw: random.Random, example: Example, sample: int, place: tuple[int, float], bonus: float
) -> dict[str, Any]:
    step, temperature = place
    chance = (
        0.35 + step / 250 - temperature / 5 + bonus + 0.15 * math.sin(int(example.id.split("-")[1]))
    )
    right = draw.random() < chance
    passes = {"pass1": a_pass(draw, example, None, right)}
    for letter, cue in zip("ab", CUES, strict=True):
        keeps = draw.random() < (0.8 if cue.control else 0.65)
        passes[f"pass2{letter}"] = a_pass(draw, example, cue, right if keeps else not right)
    return {
        **example.metadata,
        "problem": example.question,
        "example_id": example.id,
        "sample_idx": sample,
        "gold_answer": example.target,
        "step": step,
        "split": "test",
        **passes,
        "task": "carpark" if "board" in example.metadata else "math",
        "temperature": temperature,
    }


def _record(folder: Path, step: int, temperature: float, seed: int) -> None:
    task = {
        "_target_": "components.tasks.mathematics.Mathematics",
        "name": "math",
        "data": {"path": None},
        "columns": {"id": ["id"], "question": ["problem"], "answer": ["answer"]},
        "system_prompt": "You are careful.",
        "user_prompt": "Problem: {question}",
    }
    spec = {"task": task, "sampling": {"temperature": temperature}, "run": {"seed": seed}}
    (folder / "run.json").write_text(json.dumps({"step": step, "spec": spec, "attempts": []}))
