"""Partial credit for a move sequence by comparing its tokens with gold sequences, not a board."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

WEIGHTS = {
    "prefix": 0.35,
    "pos_exact": 0.25,
    "piece_dir": 0.15,
    "step_close": 0.10,
    "lcs": 0.10,
    "bag_overlap": 0.05,
}
LENGTH_DECAY = 0.92
_PART = re.compile(r"\s*([A-Za-z])([<>^vV])(\d+)\s*")


def canonical(text: str) -> str | None:
    """Moves such as `bV2, a>1` in one spelling, `Bv2,A>1`; None when a part is not a move."""
    tokens = []
    for part in text.replace("\r", " ").replace("\n", " ").split(","):
        if not part.strip():
            continue
        match = _PART.fullmatch(part)
        if match is None:
            return None
        letter, direction, steps = match.groups()
        tokens.append(f"{letter.upper()}{direction.lower()}{steps}")
    return ",".join(tokens) or None


def canonical_set(gold: object) -> list[str]:
    """Gold alternatives, canonical and sorted.

    A string, or a list of tokens, is one sequence; a list of lists or of whole sequences is a set
    of alternatives. Alternatives that do not parse are dropped.
    """
    sequences = (canonical(option) for option in _options(gold))
    return sorted({sequence for sequence in sequences if sequence})


def soft_reward(pred: str | None, golds: Sequence[str]) -> tuple[float, dict[str, Any]]:
    """The best weighted token overlap with a gold alternative, in [0, 1], and how it came about."""
    detail: dict[str, Any] = {
        "pred_canon": pred,
        "gold_canon_options": sorted(golds),
        "components": {},
        "picked_gold": None,
    }
    if pred is None or not golds:
        return 0.0, detail
    scored = [
        (1.0 if gold == pred else _weigh(components(pred, gold)), gold) for gold in sorted(golds)
    ]
    best, picked = max(scored, key=lambda pair: pair[0])
    detail["components"] = components(pred, picked)
    detail["picked_gold"] = picked
    return best, detail


def components(pred: str, gold: str) -> dict[str, float]:
    """Each component for one gold sequence, `length_penalty` and `length_delta` among them."""
    ours, theirs = pred.split(","), gold.split(",")
    long = max(1, len(theirs))
    pairs = list(zip(ours, theirs, strict=False))
    same_way = [(a, b) for a, b in pairs if a[:2] == b[:2]]
    closeness = sum(_step_closeness(a, b) for a, b in same_way)
    have, want = Counter(ours), Counter(theirs)
    delta = abs(len(ours) - len(theirs))
    return {
        "prefix": _common_prefix(pairs) / long,
        "pos_exact": sum(a == b for a, b in pairs) / long,
        "piece_dir": len(same_way) / long,
        "step_close": closeness / long,
        "lcs": _common_subsequence(ours, theirs) / long,
        "bag_overlap": (have & want).total() / max(1, (have | want).total()),
        "length_penalty": LENGTH_DECAY**delta,
        "length_delta": delta,
    }


def _options(gold: object) -> list[str]:
    if isinstance(gold, str):
        return [gold]
    if not isinstance(gold, Sequence):
        return []
    if all(isinstance(item, str) for item in gold):
        whole = [item for item in gold if "," in item]
        return list(gold) if whole else [",".join(gold)]
    return [item if isinstance(item, str) else ",".join(map(str, item)) for item in gold]


def _weigh(parts: dict[str, float]) -> float:
    total = sum(weight * parts[name] for name, weight in WEIGHTS.items())
    return min(1.0, max(0.0, total * parts["length_penalty"]))


def _step_closeness(ours: str, theirs: str) -> float:
    have, want = int(ours[2:]), int(theirs[2:])
    return max(0.0, 1 - abs(have - want) / max(1, want))


def _common_prefix(pairs: Sequence[tuple[str, str]]) -> int:
    for index, (ours, theirs) in enumerate(pairs):
        if ours != theirs:
            return index
    return len(pairs)


def _common_subsequence(ours: Sequence[str], theirs: Sequence[str]) -> int:
    row = [0] * (len(theirs) + 1)
    for a in ours:
        before = 0
        for index, b in enumerate(theirs, start=1):
            before, row[index] = (
                row[index],
                before + 1 if a == b else max(row[index], row[index - 1]),
            )
    return row[-1]
