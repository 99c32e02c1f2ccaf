"""Answers that come in pieces, as server-sent events, and what of them is certain on the way."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx2
from openai import APIConnectionError, APITimeoutError

from components.backends.openai_api.answers import BadAnswerError, loads
from components.backends.openai_api.contents import clean, reasoning_piece, text_and_reasoning
from pipeline.protocols import Request

LARGEST_BODY = 64 * 2**20  # bytes, decompressed
JOINED = ("reasoning_content", "reasoning", "refusal")  # texts beside the content
LISTS = ("tool_calls", "reasoning_details")
PARALLEL = ("tokens", "token_logprobs", "top_logprobs", "content")
REASONING_EVENTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
DONE = "[DONE]"
Value = dict[str, Any]


async def chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The body of a response that is still being received.

    Raises:
        BadAnswerError: it is larger than any answer.
        APIConnectionError: the connection broke.
    """
    size = 0
    try:
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > LARGEST_BODY:
                raise BadAnswerError(f"the response is longer than {LARGEST_BODY >> 20} MiB")
            yield chunk
    except httpx2.TimeoutException as error:
        raise APITimeoutError(request=response.request) from error
    except httpx2.RequestError as error:
        raise APIConnectionError(request=response.request) from error
    finally:
        await response.aclose()


class ListenerError(RuntimeError):
    """Whoever listened to an answer failed. The service did not: nothing is asked for again."""


def _hand_on(listener: Callable[[str], None], text: str) -> None:
    """Call a listener. Raises ListenerError for whatever it raises, such as a pipe that broke."""
    try:
        listener(clean(text))
    except Exception as error:
        raise ListenerError(
            f"whoever listened to the answer failed: {type(error).__name__}: {error}"
        ) from error


class Told:
    """Hands the text of one request to its `on_token` as it becomes certain.

    What could begin a stop string waits, and so does half a surrogate pair. Reasoning that comes
    apart goes to `on_reasoning`. A later attempt tells what is longer than what was told before.
    """

    def __init__(self, request: Request) -> None:
        """Nothing is told yet."""
        self._request = request
        self._text = self._reasoning = ""
        self.num_told = self._num_reasoned = 0

    def restart(self) -> None:
        """Another attempt begins."""
        self._text = self._reasoning = ""

    def add(self, delta: str) -> None:
        """The text goes on."""
        self._text += delta
        end = self._certain()
        if end > self.num_told and self._request.on_token is not None:
            _hand_on(self._request.on_token, self._text[self.num_told : end])
            self.num_told = end

    def reason(self, delta: str) -> None:
        """The reasoning beside the text goes on."""
        self._reasoning += delta
        end = _whole_length(self._reasoning)
        if end > self._num_reasoned and self._request.on_reasoning is not None:
            _hand_on(self._request.on_reasoning, self._reasoning[self._num_reasoned : end])
            self._num_reasoned = end

    def _certain(self) -> int:
        """How much of the text no later piece can change."""
        if self._text.startswith("<|"):  # channels, which are taken apart once all is there
            return 0
        stops = self._request.stop
        found = [at for at in (self._text.find(stop) for stop in stops) if at >= 0]
        if found:
            return min(found)
        held = (n for stop in stops for n in range(1, len(stop)) if self._text.endswith(stop[:n]))
        return _whole_length(self._text[: len(self._text) - max(held, default=0)])


class Assembly:
    """The body that a service would have sent at once, put together from its events."""

    def __init__(self, told: Told) -> None:
        """Nothing has come."""
        self._told = told
        self._body: Value = {}
        self._choices: dict[int, Value] = {}
        self._whole: Value | None = None
        self._ended = False

    async def read(self, body: AsyncIterator[bytes]) -> Value:
        """The whole body.

        Raises:
            BadAnswerError: an event is no JSON, or the stream ended before the answer did.
        """
        rest = b""
        async for chunk in body:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._line(line)
        self._line(rest)
        if self._whole is not None:
            return self._whole
        if self._body.get("error"):
            return self._body
        if not self._ended:
            error = BadAnswerError("the stream ended before the answer did")
            error.usage = {}
            raise error
        return self._body | {"choices": [_closed(one) for one in self._choices.values()]}

    def _line(self, line: bytes) -> None:
        field, _, data = line.decode("utf-8", "replace").rstrip("\r").partition(":")
        data = data.strip()
        if field != "data" or not data:
            return
        if data == DONE:
            self._ended = True
            return
        try:
            self._event(loads(data))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            raise BadAnswerError(f"an event of the stream is unreadable: {data[:80]!r}") from None

    def _event(self, event: Mapping[str, Any]) -> None:
        if str(event.get("type", "")).startswith(("response.", "error")):
            self._responses_event(event)
            return
        for name in ("id", "object", "model", "usage", "error"):
            if event.get(name) is not None:
                self._body[name] = event[name]
        for choice in event.get("choices") or ():
            self._choice(choice)

    def _responses_event(self, event: Mapping[str, Any]) -> None:
        """The Responses API sends the whole answer once more at its end."""
        if event["type"] == "response.output_text.delta":
            self._told.add(str(event["delta"]))
        elif event["type"] in REASONING_EVENTS:
            self._told.reason(str(event["delta"]))
        elif event["type"] == "error":
            self._body["error"] = event.get("error") or {"message": event.get("message")}
        elif event["type"] in ("response.completed", "response.incomplete", "response.failed"):
            self._whole = dict(event["response"])

    def _choice(self, choice: Mapping[str, Any]) -> None:
        index = choice.get("index") or 0
        whole = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        for name in ("finish_reason", "stop_reason", "error"):
            if choice.get(name) is not None:
                whole[name] = choice[name]
        self._ended = self._ended or choice.get("finish_reason") is not None
        if "stop_reason" in choice:
            whole.setdefault("stop_reason", None)
        if choice.get("logprobs") is not None:
            _extend(whole.setdefault("logprobs", {}), choice["logprobs"])
        if "text" in choice:
            whole["text"] = whole.get("text", "") + choice["text"]
            self._tell(index, choice["text"])
        delta = choice.get("delta") or choice.get("message")  # some send one event with it all
        if delta:
            self._delta(whole.setdefault("message", {"content": None}), delta, index)

    def _delta(self, message: Value, delta: Mapping[str, Any], index: int) -> None:
        for name in JOINED:
            if delta.get(name):
                message[name] = message.get(name, "") + str(delta[name])
        for name in LISTS:
            if delta.get(name):
                message[name] = [*message.get(name, []), *delta[name]]
        if delta.get("content") is not None:
            message["content"] = _joined(message["content"], delta["content"])
            self._tell(index, delta["content"])
        if index == 0 and (reasoning := reasoning_piece(delta)):
            self._told.reason(reasoning)

    def _tell(self, index: int, content: object) -> None:
        if index == 0:
            plain = (content, "") if isinstance(content, str) else None  # perhaps half a pair
            said, reasoning = plain or text_and_reasoning(content)
            self._told.add(said)
            self._told.reason(reasoning)


def _whole_length(text: str) -> int:
    """The length of a text without half a surrogate pair at its end."""
    return len(text) - ("\ud800" <= text[-1:] <= "\udbff")


def _joined(before: Any, delta: str | Sequence[Any]) -> Any:
    """Content with its next piece: one string, or a list of parts where there are parts."""
    if before is None:
        return delta
    if isinstance(before, str) and isinstance(delta, str):
        return before + delta
    parts = [before] if isinstance(before, str) else list(before)
    return [*parts, *([delta] if isinstance(delta, str) else delta)]


def _extend(whole: Value, delta: Mapping[str, Any]) -> None:
    for name in PARALLEL:
        if delta.get(name) is not None:
            whole[name] = [*whole.get(name, []), *delta[name]]


def _closed(choice: Value) -> Value:
    """A choice without a piece of text is one of null content."""
    return choice if {"message", "text"} & set(choice) else choice | {"message": {"content": None}}
