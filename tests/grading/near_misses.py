"""Makes answers that are almost a given answer: other base, unit, order, sign or digit."""

import re

_UNITS = (
    (r"\mbox{ cm}^2", r"\mbox{ cm}^3"),
    (r"\mbox{ inches}^2", r"\mbox{ feet}^2"),
    (r"\text{ cents}", r"\text{ dollars}"),
    (r"\text{ degrees}", r"\text{ radians}"),
    (r"\$", r"\text{cents }"),
    (r"^\circ", r"\text{ radians}"),
)


def other_base(answer: str) -> str | None:
    """Another base behind the same digits."""
    found = re.fullmatch(r"(\d+)_\{?(\d)\}?", answer)
    return None if found is None else f"{found[1]}_{(int(found[2]) % 9) + 1}"


def other_unit(answer: str) -> str | None:
    """Another unit behind the same number."""
    for ours, theirs in _UNITS:
        if ours in answer:
            swapped = answer.replace(ours, "")
            return f"{swapped}{theirs}" if ours != r"\$" else f"{swapped}\\text{{ cents}}"
    return None


def other_order(answer: str) -> str | None:
    """A pair or triple turned round; not for bare lists and sets, which have no order."""
    found = re.fullmatch(r"(\\left)?\(([^()\[\]]*)(\\right)?\)", answer.replace(" ", ""))
    if found is None or "," not in found[2]:
        return None
    items = found[2].split(",")
    return f"({','.join(items[::-1])})" if items != items[::-1] else None


def other_sign(answer: str) -> str | None:
    """A plus for a minus, or a minus in front."""
    if "\\pm" in answer or "text" in answer or "=" in answer or "{pmatrix}" in answer:
        return None
    if re.search(r"\d ?- ?\d|[a-z] ?- ?\d|[a-z] ?- ?[a-z]", answer):
        return re.sub(r"(?<=[\da-z]) ?- ?(?=[\da-z])", "+", answer, count=1)
    if answer.startswith("-"):
        return answer[1:]
    if re.match(r"0$|[(\[]|x\b|\\[{$]|\\(?:begin|left)", answer):
        return None
    return f"-({answer})" if re.search(r"[-+]", answer) else f"-{answer}"


def other_digit(answer: str, place: int) -> str | None:
    """One digit moved up by one; `place` picks which."""
    digits = [match.start() for match in re.finditer(r"\d", answer)]
    if not digits:
        return None
    at = digits[place % len(digits)]
    return f"{answer[:at]}{(int(answer[at]) + 1) % 10}{answer[at + 1 :]}"


def other_word(answer: str) -> str | None:
    """One letter of a word changed."""
    found = re.fullmatch(r"\\text\{(.*)\}", answer)
    if found is None:
        return None
    letters = re.sub(r"[A-Za-z](?=\)?$)", lambda m: "q" if m[0] != "q" else "z", found[1])
    return f"\\text{{{letters}}}"


def near_misses(answer: str, place: int) -> list[tuple[str, str]]:
    """Every (kind, near miss) that the answer allows."""
    made = [
        ("base", other_base(answer)),
        ("unit", other_unit(answer)),
        ("order", other_order(answer)),
        ("word", other_word(answer)),
        ("sign", other_sign(answer)),
        ("digit", other_digit(answer, place)),
    ]
    return [(kind, text) for kind, text in made if text is not None and text != answer]
