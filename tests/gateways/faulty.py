"""A service that knows every answer and fails a fifth of the time, in every way that we know of."""

import hashlib
import itertools
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tests.gateways.service import Reply, Seen, chat, refusal

TOP = [{"token": "a", "logprob": -0.7}, {"token": "b", "logprob": -1.4}]
SHAPES: list[Any] = [
    {"content": [{"token": "a", "logprob": -0.7, "top_logprobs": TOP}] * 3},
    {"content": [{"token": "a", "logprob": -0.7, "top_logprobs": []}]},
    {"content": []},
    {"tokens": ["a"], "token_logprobs": [-0.7], "top_logprobs": [{"a": -0.7, "b": -1.4}]},
    None,
]


def trouble(number: int) -> Reply:
    """The n-th kind of trouble."""
    kinds = [
        Reply(refusal("too many"), 429, {"Retry-After": "0.05"}),
        Reply(refusal("oops"), 500),
        Reply(text="<html>", status=502),
        Reply(refusal("busy"), 503, {"retry-after-ms": "20"}),
        Reply(refusal("locked"), 409),
        Reply(chat("never seen whole" * 50), cut=True),
        Reply(text='{"choices": [{"mess'),
        Reply(chat(None)),
        Reply({"choices": []}),
        Reply({"error": {"code": 503, "message": "upstream"}}),
        Reply(chat("too late"), hang=1.5),
    ]
    return kinds[number % len(kinds)]


def of(*parts: object) -> int:
    """A number drawn from parts, the same in every process."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:12], 16)


class Faulty:
    """Answers clues that ask for a word backwards; every good answer carries a serial number."""

    def __init__(self, share: float = 0.2) -> None:
        self.share = share
        self.served = itertools.count()
        self.good = 0
        self.faults: Counter[int] = Counter()
        self._tries: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, seen: Seen) -> Reply:
        body = seen.body
        name = json.dumps([body["messages"], body.get("seed")])
        with self._lock:
            self._tries[name] += 1
            tries = self._tries[name]
            drawn = of(name, tries)
            if drawn % 1000 < 1000 * self.share:
                self.faults[drawn % 11] += 1
                return trouble(drawn // 1000)
            self.good += 1
        return Reply(self.answer(body, drawn), delay=0.002)

    def answer(self, body: dict[str, Any], drawn: int) -> dict[str, Any]:
        clue = next(m["content"] for m in body["messages"] if m["role"] == "user")
        word = clue.split("backwards: ")[1].split()[0]
        text = f"<think>serial {next(self.served)} end</think>\n<answer>{word[::-1]}"
        reply = chat(text, reasoning="because" if drawn % 3 == 0 else None)
        reply["choices"][0]["logprobs"] = SHAPES[drawn % len(SHAPES)]
        return reply


def write_clues(path: Path, count: int) -> Path:
    """Questions whose answers are their own words backwards."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def word(number: int) -> str:
        return "".join(letters[of(number, i) % 26] for i in range(8)) + letters[number % 26]

    rows = (
        {"id": f"c{i}", "clue": f"backwards: {word(i)} {i}", "answer": word(i)[::-1]}
        for i in range(count)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
