"""Where a text ends: at its stop string, at the cap, or where the model ended it."""

import re
from collections.abc import Sequence

from components.backends.openai_api.answers import Said
from pipeline.protocols import FinishReason, Request, spelled

CLOSING = re.compile(r"</(\w+)>")
KEPT, LEFT_OUT = "kept", "left_out"
STOP_TEXTS = (LEFT_OUT, KEPT)


def ending(
    said: Said, request: Request, stop_text: str, num_tokens: int | None = None
) -> tuple[str, str, FinishReason]:
    """Text up to the stop string, the stop string if it was reached, and the finish reason.

    Most services leave the stop string out and call both kinds of end `stop`. `stop_text` says
    which kind this service is; where it leaves the string out, a closing tag counts as reached if
    its opening tag is still open. Some services say `stop` at the cap too: a text of `num_tokens`
    tokens that fills the cap and leaves its tag open was cut.
    """
    at, stop = _first(said.text, request.stop)
    if stop:
        return said.text[:at], stop, "stop_token"
    if said.matched in request.stop:
        return said.text, said.matched or "", "stop_token"
    if said.ending == "eos" and stop_text == LEFT_OUT and not said.tells_stop:
        written = spelled(request.prompt.prefill) + said.text
        reached = next((stop for stop in request.stop if _is_open(written, stop)), None)
        if reached is not None and num_tokens is not None and num_tokens >= request.cap:
            return said.text, "", "max_new_tokens"
        if reached is not None:
            return said.text, reached, "stop_token"
    return said.text, "", said.ending


def _first(text: str, stops: Sequence[str]) -> tuple[int, str]:
    """The earliest stop string in the text and its place."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    return min(found) if found else (len(text), "")


def _is_open(text: str, stop: str) -> bool:
    closing = CLOSING.fullmatch(stop)
    if closing is None:
        return False
    low, name = text.lower(), closing[1].lower()
    return low.count(f"<{name}>") > low.count(f"</{name}>")
