"""Rush Hour: move sequences judged on the board itself, and against gold sequences."""

from collections.abc import Mapping, Sequence
from typing import Any

from components.tasks import records, tagged
from components.tasks.rush import soft_match
from components.tasks.rush.board import Board, BoardError, IllegalMove, parse_board, parse_moves
from components.tasks.rush.solver import solve_text
from pipeline.protocols import Example, Generation, Message, Prompt

FIELDS = ("id", "board", "moves", "solution", "messages", "difficulty")


class Carpark:
    """Task `carpark`."""

    def __init__(
        self,
        name: str,
        data: Mapping[str, Any],
        columns: Mapping[str, Any],
        system_prompt: str | None,
        user_prompt: str,
        few_shot: Sequence[Mapping[str, str]] = (),
        tagged_phases: bool = True,
        think_cap: int = 750,
        answer_cap: int = 50,
        max_output_tokens: int = 900,
    ) -> None:
        """Cheap: nothing is read before `examples()`."""
        self.name = name
        self.source = records.source(data)
        records.check_columns(columns, FIELDS)
        self.columns = columns
        self.system_prompt = system_prompt
        self.user_prompt = user_prompt
        self.few_shot = few_shot
        self.phases = tagged.phases(tagged_phases, think_cap, answer_cap, max_output_tokens)
        self.max_output_tokens = max_output_tokens

    def examples(self) -> Sequence[Example]:
        """All boards, in order."""
        rows = records.load(self.source, "carpark.jsonl")
        return records.examples([self._example(row) for row in rows])

    def prompt(self, example: Example) -> Prompt:
        """The row's own messages when it has some, else our prompt with the board's size and optimum filled in."""
        meta = example.metadata
        values = {"board": meta.get("board"), "size": meta.get("size"), "moves": meta.get("moves")}
        if meta.get("board"):
            values["rows"] = "\n".join(parse_board(meta["board"]).rows())
        system = tagged.fill(self.system_prompt or "", values)
        if "messages" not in meta:
            return tagged.prompt(system, self.few_shot, tagged.fill(self.user_prompt, values))
        messages = tuple(Message(m["role"], (m["content"],)) for m in meta["messages"])
        if system.strip() and all(m.role != "system" for m in messages):
            messages = (Message("system", (system.strip(),)), *messages)
        return Prompt(messages)

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """Pass fields: parses, legal, solves, optimal, canonical match, and the soft reward."""
        answer = tagged.find(generations).text
        canon = soft_match.canonical(answer)
        golds = list(example.metadata.get("gold_answer_canon_set") or ())
        reward, detail = soft_match.soft_reward(canon, golds)
        fields: dict[str, Any] = {
            "pred_answer": answer,
            "pred_answer_canon": canon,
            "is_valid_pred": canon is not None,
            "is_correct_pred": canon in golds if golds else None,
            "soft_reward": reward,
            "soft_reward_detail": detail,
            "is_legal": None,
            "is_solved": None,
            "is_optimal": None,
        }
        board = example.metadata.get("board")
        if board:
            fields.update(judge(board, example.metadata.get("moves"), canon))
            fields["is_correct_pred"] = fields["is_optimal"] or canon in golds
        return fields

    def _example(self, row: records.Record) -> Example:
        solution = records.pick(row, records.names_of(self.columns, "solution"))
        metadata: dict[str, Any] = {"gold_answer_canon_set": soft_match.canonical_set(solution)}
        text = records.need_text(row, records.names_of(self.columns, "board"), "task.columns.board")
        try:
            board = parse_board(text)
        except BoardError as error:
            raise records.DataError(f"{row.where}: {error}") from error
        moves = records.pick(row, records.names_of(self.columns, "moves"))
        metadata |= {
            "board": str(board),
            "size": board.size,
            "moves": moves or _optimum(row, board),
        }
        difficulty = records.pick(row, records.names_of(self.columns, "difficulty"))
        if difficulty is not None:
            metadata["difficulty"] = difficulty
        identity = records.own_id(row, records.names_of(self.columns, "id"))
        return Example(identity, str(board), solution, metadata)


def judge(board: str, optimum: int | None, canon: str | None) -> dict[str, Any]:
    """Play a canonical sequence: `is_legal`, `is_solved`, `is_optimal`, and why not (`illegal_reason`)."""
    verdict: dict[str, Any] = {"is_legal": False, "is_solved": False, "is_optimal": False}
    if canon is None:
        return verdict
    place = parse_board(board)
    moves = parse_moves(canon)
    try:
        for move in moves:
            place = place.move(move)
    except IllegalMove:
        return verdict
    verdict["is_legal"] = True
    verdict["is_solved"] = place.solved
    if place.solved and optimum is None:
        best = solve_text(board)
        optimum = len(best.moves) if best else None
    verdict["is_optimal"] = place.solved and optimum is not None and len(moves) <= optimum
    return verdict


def _optimum(row: records.Record, board: Board) -> int:
    best = solve_text(str(board))
    if best is None:
        raise records.DataError(f"{row.where}: the board has no solution: {board}")
    return len(best.moves)
