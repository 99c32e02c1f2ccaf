r"""Finds what a model put into `\boxed{}`."""

_BOX = "\\boxed"


def last_boxed(text: str) -> str | None:
    r"""The content of the last balanced `\boxed{...}`.

    (a blank before the brace is fine), or None.
    """
    start = text.rfind(_BOX)
    while start >= 0:
        brace = start + len(_BOX)
        while brace < len(text) and text[brace].isspace():
            brace += 1
        end = closing_brace(text, brace)
        if end is not None:
            return text[brace + 1 : end].strip()
        start = text.rfind(_BOX, 0, start)
    return None


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
