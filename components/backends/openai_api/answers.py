"""What services answer: three response shapes, and the many ways in which they are filled."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from components.backends.openai_api.contents import clean, message_reasoning, text_and_reasoning
from components.backends.openai_api.usage import normal_usage
from pipeline.protocols import FinishReason

# A service's own word for a limit on length, such as `model_length` or `context_window_exceeded`.
LENGTH_LIMIT = re.compile(r"length|context|window|limit|truncat|max.{0,10}token")
ENDINGS: dict[str | None, FinishReason] = {
    "stop": "eos",
    "completed": "eos",
    "end_turn": "eos",
    "end": "eos",
    "eos": "eos",
    "eos_token": "eos",
    "stop_sequence": "eos",
    "length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "max_output_tokens": "max_new_tokens",
}


def finish_reason(reason: str | None) -> FinishReason:
    """Our word for a service's."""
    known = reason if reason is None else reason.lower()
    if known is not None and known not in ENDINGS and LENGTH_LIMIT.search(known):
        return "max_context"
    return ENDINGS.get(known, "other")


# A service's words for a generation that it gave up, whose text is no answer of the model's.
BROKEN_OFF = re.compile(r"error|abort|cancel|fail|time.?out|overload|insufficient", re.IGNORECASE)
UNFINISHED = ("queued", "in_progress")  # of the Responses API
IMPOSSIBLE = -9999.0  # what OpenAI writes
LONGEST_INT = 300  # digits; a longer number is no float


class BadAnswerError(RuntimeError):
    """The service answered with something that holds no answer; asking again may help.

    `status` is the HTTP status that it amounts to, `code` the service's own word. `reported`: the
    service reports an error in place of an answer, under status 200. `usage` is what it says that
    it used.
    """

    def __init__(
        self, message: str, status: int = 502, code: str = "", *, reported: bool = False
    ) -> None:
        """Keep them."""
        super().__init__(message)
        self.status, self.code, self.reported = status, code, reported
        self.usage: dict[str, Any] = {}

    @property
    def may_be_paid(self) -> bool:
        """Whether it may have to be paid all the same."""
        return bool(self.usage) or not self.reported


@dataclass(slots=True)
class Said:
    """One choice of a response: its text, why it ended, and what else it tells."""

    text: str
    ending: FinishReason
    matched: str | None = None  # the stop string that ended it, where the service says so
    tells_stop: bool = False  # the service says whether a stop string ended it
    tokens: Sequence[Mapping[str, Any]] | None = None  # token, logprob, top: {token: logprob}
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Answered:
    """A whole response: its choices, the usage under one set of names, the model's exact name.

    `discarded_usd` is what earlier answers to the same request cost that could not be used;
    `batched` says that the Batch API's price holds; `num_told` are the characters of the text that
    were handed on while it came.
    """

    choices: list[Said]
    usage: dict[str, Any]
    model: str | None
    discarded_usd: float = 0.0
    num_told: int = 0
    batched: bool = False


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object of a response's body."""
    try:
        value = _parsed(body)
    except (ValueError, RecursionError):
        shown = body[:80].decode(errors="replace")
        raise BadAnswerError(f"the response is no JSON: {shown!r}") from None
    if not isinstance(value, dict):
        raise BadAnswerError(f"the response is no JSON object but {type(value).__name__}")
    return refuse_error(value)


def refuse_error(value: dict[str, Any]) -> dict[str, Any]:
    """The same body, if it does not report an error under status 200."""
    try:
        _refuse_error(value.get("error"))
    except BadAnswerError as error:
        error.usage = normal_usage(value.get("usage"))
        raise
    return value


def _parsed(body: bytes) -> Any:
    """JSON, also between the comments and the end mark that some gateways put around it."""
    try:
        return loads(body)
    except ValueError:
        lines = body.decode().splitlines()
        told = [line for line in lines if not line.startswith((":", "data: [DONE]"))]
        if len(told) == len(lines):
            raise
        return loads("\n".join(told).removeprefix("data:"))


def loads(text: str | bytes) -> Any:
    """JSON, with None in place of numbers that no row could hold."""
    return json.loads(text, parse_constant=_constant, parse_float=_float, parse_int=_int)


def _float(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else _constant("-Infinity" if value < 0 else "")


def _int(digits: str) -> int | None:
    return int(digits) if len(digits) < LONGEST_INT else None


def _constant(name: str) -> float | None:
    """Some servers write the log probability of the impossible as -Infinity, which is no JSON."""
    return IMPOSSIBLE if name == "-Infinity" else None


def read(value: Mapping[str, Any]) -> Answered:
    """The choices of a decoded chat, completion or Responses answer."""
    usage = normal_usage(value.get("usage"))
    try:
        choices = [_response(value)] if "output" in value else _choices(value)
        if not choices:
            raise BadAnswerError("the response holds no choice")
    except BadAnswerError as error:
        error.usage = usage
        raise
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        bad = BadAnswerError(f"the response has an unknown shape ({what[:200]})")
        bad.usage = usage
        raise bad from None
    model = value.get("model")
    return Answered(choices, usage, model if isinstance(model, str) else None)


def _refuse_error(error: object) -> None:
    """Some services report an error under status 200."""
    if not error:
        return
    found = error if isinstance(error, Mapping) else {"message": str(error)}
    code = found.get("code")
    status = code if isinstance(code, int) and 100 <= code < 600 else 502
    word = code if isinstance(code, str) else ""
    text = f"the service reports: {told(found, 'message')}"
    raise BadAnswerError(text, status, word, reported=True)


def told(error: Mapping[str, Any], name: str) -> str:
    """An error's text under a name, and what a gateway adds of the words of its provider."""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    return f"{error.get(name)}: {raw}" if raw else str(error.get(name))


def _choices(value: Mapping[str, Any]) -> list[Said]:
    ordered = sorted(value.get("choices") or (), key=lambda choice: choice.get("index") or 0)
    return [_choice(choice) for choice in ordered]


def _choice(choice: Mapping[str, Any]) -> Said:
    _refuse_error(choice.get("error"))
    message = choice.get("message")
    content = choice["text"] if message is None else message.get("content")
    text, reasoning = text_and_reasoning(content)
    extra = {} if message is None else _aside(message, reasoning)
    reason = choice.get("finish_reason")
    reason = reason if reason is None or isinstance(reason, str) else str(reason)
    _refuse_broken(reason)
    if reason is not None and reason.lower() not in ENDINGS:
        extra["ended_by"] = reason
    if content is None:
        _explain_null(extra, reason)
    # vLLM's name and SGLang's: a stop string, or the id of a token that ended the turn.
    matched = choice.get("stop_reason", choice.get("matched_stop"))
    return Said(
        text=text,
        ending=finish_reason(reason),
        matched=matched if isinstance(matched, str) else None,
        tells_stop="stop_reason" in choice or "matched_stop" in choice,
        tokens=_tokens_or_reason(choice.get("logprobs"), extra),
        extra=extra,
    )


def _refuse_broken(reason: object) -> None:
    """A generation that ended in the service's trouble is asked for again."""
    if isinstance(reason, str) and (BROKEN_OFF.search(reason) or reason in UNFINISHED):
        raise BadAnswerError(f"the service broke the generation off (finish_reason {reason})")


def _explain_null(extra: dict[str, Any], reason: str | None) -> None:
    """A null content is an empty answer where the service says why, else no answer at all."""
    why = [name for name in ("reasoning", "refusal", "tool_calls") if name in extra]
    if not why and reason in (None, "stop"):
        raise BadAnswerError("the content is null and nothing says why")
    extra["content_null"] = why[0] if why else reason


def _aside(message: Mapping[str, Any], inside: str) -> dict[str, Any]:
    """What a message holds beside its text: reasoning (`inside` its content or not), a refusal."""
    extra: dict[str, Any] = {}
    reasoning = message_reasoning(message) or inside
    if reasoning:
        extra["reasoning"] = reasoning
    for name in ("refusal", "tool_calls"):
        if message.get(name):
            extra[name] = message[name]
    return extra


def _tokens_or_reason(found: object, extra: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Token logprobs; None, with the reason in `extra`, where their shape is unknown."""
    try:
        return _tokens(found)
    except (TypeError, KeyError, AttributeError, ValueError):
        extra["entropy_missing"] = "the service returned probabilities of an unknown shape"
        return None


def _tokens(found: object) -> list[dict[str, Any]] | None:
    """Token logprobs, from the chat shape or the older one of parallel lists."""
    if not isinstance(found, Mapping):
        return None
    if found.get("content") is not None:
        return [_token(item) for item in found["content"]] or None
    texts, chosen = found.get("tokens"), found.get("token_logprobs")
    if not isinstance(texts, Sequence) or not isinstance(chosen, Sequence):
        return None
    tops = found.get("top_logprobs") or [None] * len(texts)
    triples = zip(texts, chosen, tops, strict=True)
    return [{"token": t, "logprob": p, "top": list((top or {}).values())} for t, p, top in triples]


def _token(item: Mapping[str, Any]) -> dict[str, Any]:
    top = [other["logprob"] for other in item.get("top_logprobs") or ()]
    return {"token": item.get("token", ""), "logprob": item.get("logprob"), "top": top}


def _response(value: Mapping[str, Any]) -> Said:
    """The one answer of the Responses API: messages and reasoning in a list of items."""
    items = value.get("output") or ()
    extra: dict[str, Any] = {}
    texts: list[str] = []
    tokens: list[dict[str, Any]] = []
    for item in items:
        if item.get("type") == "reasoning":
            parts = item.get("summary") or item.get("content") or ()
            said, aside = text_and_reasoning(parts)
            extra["reasoning"] = extra.get("reasoning", "") + said + aside
        for part in (item.get("content") or ()) if item.get("type") == "message" else ():
            if part.get("type") == "refusal":
                extra["refusal"] = part.get("refusal")
            else:
                texts.append(clean(part.get("text") or ""))
                content = {"content": part["logprobs"]} if part.get("logprobs") else None
                tokens += _tokens_or_reason(content, extra) or []
    extra = {name: text for name, text in extra.items() if text}
    reason = (value.get("incomplete_details") or {}).get("reason") or value.get("status")
    _refuse_broken(reason)
    if reason not in ENDINGS:
        extra["ended_by"] = reason
    if not texts:
        _explain_null(extra, "stop" if reason == "completed" else reason)
    return Said("".join(texts), finish_reason(reason), tokens=tokens or None, extra=extra)
