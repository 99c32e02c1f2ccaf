r"""Finds what a model put into `\boxed{}`, in time linear in the length of the text."""

import re

_TOKEN = re.compile(r"\\{1,3}(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_JOIN = re.compile(
    r"[\s$)]*(?:\\[)\]!,;: ]|\s)*(?:\\text\s*\{)?"
    r"\s*(?:[,;]\s*(?:and|or)?|and|or|\\(?:and|or))\s*\}?"
    r"[\s$(]*(?:\\[(\[!,;: ]|\s)*((?:[A-Za-z](?:_\{?\w\}?)?|\\[a-z]+)\s*=\s*)?[\s$]*",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<![\w\\])([A-Za-z](?:_\{?\w\}?)?|\\[a-z]+)\s*=\s*\$?\s*$")
_NAME_LENGTH = 24  # characters before a box in which its name is looked for
MAX_JOIN = 40  # characters between two boxes that make one answer


def boxed_answer(text: str) -> str | None:
    r"""The answer in the last balanced box, or in the boxes that end in it, joined by commas.

    Boxes make one answer when only a comma, `and` or `or` stands between them, as in
    `x=\boxed{1} or x=\boxed{2}`. None without a balanced box.
    """
    boxes = _boxes(text)
    if not boxes:
        return None
    first = len(boxes) - 1
    while first and _joined(text, boxes[first - 1], boxes[first]):
        first -= 1
    if first == len(boxes) - 1:
        return text[boxes[-1][1] : boxes[-1][2]].strip()
    return ", ".join(_named(text, box) for box in boxes[first:])


def _boxes(text: str) -> list[tuple[int, int, int]]:
    """(start, start of the content, end of the content) of every outermost balanced box."""
    open_braces: list[tuple[int, int] | None] = []
    boxes: list[tuple[int, int, int]] = []
    for token in _TOKEN.finditer(text):
        if token[0] == "{":
            open_braces.append(None)
        elif token[0] == "}":
            box = open_braces.pop() if open_braces else None
            if box is not None:
                while boxes and boxes[-1][0] > box[0]:
                    boxes.pop()
                boxes.append((*box, token.start()))
        elif token[0].endswith("{") and token[0] != "\\{":
            open_braces.append((token.start(), token.end()))
    return boxes


def _joined(text: str, left: tuple[int, int, int], right: tuple[int, int, int]) -> bool:
    between = text[left[2] + 1 : right[0]] if right[0] - left[2] <= MAX_JOIN else ""
    return bool(between) and _JOIN.fullmatch(between) is not None


def _named(text: str, box: tuple[int, int, int]) -> str:
    """The box's content behind the name that it is the value of, if it stands before it."""
    name = _NAME.search(text[max(0, box[0] - _NAME_LENGTH) : box[0]])
    content = text[box[1] : box[2]].strip()
    return f"{name[1]}={content}" if name else content


def closing_brace(text: str, brace: int) -> int | None:
    """Index of the brace that closes the one at `brace`; None when there is no such pair."""
    if brace >= len(text) or text[brace] != "{":
        return None
    depth, index = 0, brace
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return index
        index += 1
    return None
