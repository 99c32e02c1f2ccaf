"""Rush Hour: move sequences judged on the board itself, and against gold sequences.

A record of a data set, of which only the board is needed:

    {"board": "AABoooBooooooooo", "moves": 2, "solution": ["Bv1", "A>2"], "difficulty": "easy"}

`is_valid_pred`: every token parses. `is_legal`: every move can be made. `is_solved`: A ends at the
right edge. `is_optimal`: solved in the fewest moves. `is_gold_match`: the canonical sequence is a
stored gold one. `is_correct_pred` is `is_optimal` where there is a board, so any optimal answer
counts, else `is_gold_match`.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.data_sets import columns, records
from components.grading import answers
from components.grading.rush_hour import soft_match
from components.grading.rush_hour.board import (
    Board,
    BoardError,
    IllegalMove,
    parse_board,
    parse_moves,
)
from components.grading.rush_hour.solver import solve_text
from components.grading.verdict import Verdict
from components.tasks import tag_phases
from components.tasks.questions import Questions
from pipeline.protocols import Example, Generation, Message, Prompt

_BAKED_TAG = re.compile(r"\s*<think>\s*$", re.IGNORECASE)


@dataclass(kw_only=True, eq=False)
class Carpark(Questions):
    """Task `carpark`; the arguments are the keys of `conf/task/carpark.yaml`."""

    FIELDS = ("id", "board", "moves", "solution", "messages", "difficulty")
    JUDGE = "the board"

    user_prompt: str

    def examples(self) -> Sequence[Example]:
        """All boards, in order; a board without its optimum is solved."""
        return self._read("carpark.jsonl")

    def prompt(self, example: Example) -> Prompt:
        """The row's own messages when it has some, else the task's prompt for its board."""
        meta = example.metadata
        values = {name: meta[name] for name in ("board", "size", "moves") if name in meta}
        if "board" in meta:
            values["rows"] = "\n".join(parse_board(meta["board"]).rows())
        system = tag_phases.fill(self.system_prompt or "", values)
        if "messages" not in meta:
            return tag_phases.prompt(
                system, self.few_shot, tag_phases.fill(self.user_prompt, values)
            )
        messages = tuple(Message(turn["role"], (turn["content"],)) for turn in meta["messages"])
        if system.strip() and all(message.role != "system" for message in messages):
            messages = (Message("system", (system.strip(),)), *messages)
        return Prompt(messages)

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """Pass fields: parses, legal, solves, optimal, canonical match, and the soft reward."""
        extracted = answers.extract(generations)
        answer = extracted.text
        answered = bool(answer) and not extracted.unfinished
        canon = soft_match.canonical(answer)
        meta = example.metadata
        board = meta.get("board")
        golds = list(meta["gold_answer_canon_set"])
        reward, detail = soft_match.soft_reward(canon, golds or _solved(board))
        match = canon in golds if golds else None
        verdict = judge(board, meta["moves"], canon) if board else {}
        right = verdict.get("is_optimal", match)
        return {
            "pred_answer": answer,
            "pred_answer_canon": canon,
            "answer_status": "answered" if answered else extracted.missing_status,
            "is_valid_pred": canon is not None,
            "is_legal": verdict.get("is_legal"),
            "is_solved": verdict.get("is_solved"),
            "is_optimal": verdict.get("is_optimal"),
            "illegal_reason": verdict.get("illegal_reason"),
            "is_gold_match": match,
            "is_correct_pred": right and answered if right is not None else None,
            "soft_reward": reward,
            "soft_reward_detail": detail,
        }

    def grade(self, gold: Any, pred: str, row: Mapping[str, Any]) -> Verdict:
        """Judge moves on the row's `board` when it has one, else by the gold sequences."""
        started = time.monotonic()
        canon = soft_match.canonical(pred)
        golds = soft_match.canonical_set(gold)
        if row.get("board"):
            board = str(row["board"])
            best = solve_text(board)
            verdict = judge(board, len(best.moves) if best else 0, canon)
            equal = verdict["is_optimal"]
            reason = verdict.get("illegal_reason") or _outcome(verdict)
        else:
            equal = canon in golds
            reason = "a gold sequence" if equal else "no gold sequence"
        return Verdict(equal, reason, time.monotonic() - started)

    def _example(self, row: records.Record) -> Example:
        solution = columns.optional(row, self.columns, "solution")
        golds = _gold_set(row, solution)
        metadata: dict[str, Any] = {"gold_answer_canon_set": golds}
        turns = columns.optional(row, self.columns, "messages")
        text = columns.optional(row, self.columns, "board")
        question = ""
        if text is not None or turns is None:
            board = _board(row, columns.need_text(row, self.columns, "board"))
            question = str(board)
            moves = _moves(row, columns.optional(row, self.columns, "moves"), board)
            metadata |= {"board": str(board), "size": board.size, "moves": moves}
        if turns is not None:
            metadata["messages"] = _messages(row, turns)
            question = " ".join(turn["content"] for turn in metadata["messages"])
        difficulty = columns.optional(row, self.columns, "difficulty")
        if difficulty is not None:
            metadata["difficulty"] = difficulty
        return Example(columns.own_id(row, self.columns), question, solution, metadata)


def judge(board: str, optimum: int, canon: str | None) -> dict[str, Any]:
    """Play a canonical sequence on the board."""
    verdict: dict[str, Any] = {"is_legal": False, "is_solved": False, "is_optimal": False}
    if canon is None:
        return {**verdict, "illegal_reason": "not a sequence of moves"}
    place = parse_board(board)
    moves = parse_moves(canon)
    try:
        for move in moves:
            place = place.move(move)
    except IllegalMove as error:
        return {**verdict, "illegal_reason": str(error)}
    optimal = place.solved and len(moves) <= optimum
    return {"is_legal": True, "is_solved": place.solved, "is_optimal": optimal}


def _outcome(verdict: Mapping[str, Any]) -> str:
    if not verdict["is_solved"]:
        return "legal, but the board is not solved"
    return (
        "solved in the fewest moves"
        if verdict["is_optimal"]
        else "solved, but not in the fewest moves"
    )


def _board(row: records.Record, text: str) -> Board:
    try:
        return parse_board(text)
    except BoardError as error:
        raise records.DataError(f"{row.where}: {error}") from error


def _moves(row: records.Record, value: Any, board: Board) -> int:
    """The data set's optimum, else the solver's."""
    if value is None:
        best = solve_text(str(board))
        if best is None:
            raise records.DataError(f"{row.where}: the board has no solution: {board}")
        return len(best.moves)
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if type(value) is not int or value < 1:
        rule = "the column of task.columns.moves must hold a number of moves from 1"
        raise records.DataError(f"{row.where}: {rule}, got {value!r}")
    return value


def _solved(board: str | None) -> list[str]:
    """The solver's sequence, against which partial credit is measured where there is no gold."""
    best = solve_text(board) if board else None
    return [] if best is None else [str(best)]


def _gold_set(row: records.Record, solution: Any) -> list[str]:
    if solution is None:
        return []
    golds = soft_match.canonical_set(solution)
    if not golds:
        rule = "the column of task.columns.solution must hold moves such as Bv2,A>1"
        raise records.DataError(f"{row.where}: {rule}, got {solution!r}")
    return golds


def _messages(row: records.Record, turns: Any) -> list[dict[str, str]]:
    """Role and content per turn, without assistant turns, which hold the gold.

    A think tag at the end of a turn is taken off: the task forces its own.
    """
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    if isinstance(turns, Mapping) and {"role", "content"} <= set(turns):
        pairs = zip(turns["role"], turns["content"], strict=True)
        turns = [{"role": role, "content": content} for role, content in pairs]
    kept = []
    for turn in turns if isinstance(turns, list) else [turns]:
        well_formed = isinstance(turn, Mapping) and all(
            isinstance(turn.get(name), str) for name in ("role", "content")
        )
        if not well_formed:
            rule = "the column of task.columns.messages must hold turns with role and content"
            raise records.DataError(f"{row.where}: {rule}, got {turn!r}")
        if turn["role"] != "assistant":
            kept.append({"role": turn["role"], "content": _BAKED_TAG.sub("", turn["content"])})
    if not any(turn["role"] == "user" for turn in kept):
        raise records.DataError(f"{row.where}: task.columns.messages must hold a user turn")
    return kept
