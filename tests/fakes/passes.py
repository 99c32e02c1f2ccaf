"""Generations of one pass, as a trace hands them to `score`."""

from pipeline.protocols import FinishReason, Generation

Pass = dict[str, Generation]


def generation(text: str, finish: FinishReason = "stop_token", tail: str = "") -> Generation:
    return Generation([1], text, finish, tail=tail)


def tagged(answer: str, think: str = "so", finish: FinishReason = "stop_token") -> Pass:
    return {"think": generation(think), "answer": generation(answer, finish)}


def single(output: str, finish: FinishReason = "eos", tail: str = "") -> Pass:
    return {"output": generation(output, finish, tail)}
