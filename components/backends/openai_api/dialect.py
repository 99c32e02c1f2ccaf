"""Requests on the wire, and what a service turned out not to take."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from components.backends.openai_api.complaints import Complaint
from pipeline.protocols import Message, Prompt, Request, spelled
from pipeline.spec import Sampling

APIS = ("chat", "completions", "responses")
PATHS = {"chat": "/chat/completions", "completions": "/completions", "responses": "/responses"}
CAP_NAMES = {
    "chat": ("max_tokens", "max_completion_tokens"),
    "completions": ("max_tokens",),
    "responses": ("max_output_tokens",),
}
# Parameters that may be left out without changing what is asked for: the value that makes it so.
NEUTRAL: dict[str, object] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": None,
}
# Parameters of Sampling that the API itself has. They are sent where they are on.
OF_THE_API = {
    "chat": ("presence_penalty", "frequency_penalty", "logit_bias", "json_schema"),
    "completions": ("presence_penalty", "frequency_penalty", "logit_bias"),
    "responses": ("json_schema",),
}
FORMATS = ("response_format", "text")  # what json_schema is called on the wire
OPTIONAL = ("seed", "n", "stop", "store", "usage", "stream_options", "stream")
PROBABILITIES = ("logprobs", "top_logprobs", "include")
SEEDS = 2**31
TOO_LARGE = re.compile(r"too large|too high|exceed|greater|at most|maximum", re.IGNORECASE)
EITHER = ("temperature", "top_p")  # of which some services take one alone
EXTENSIONS = ("top_k", "min_p", "repetition_penalty")  # not in the official API


class RefusedParameterError(RuntimeError):
    """A service does not take a parameter that the run cannot do without.

    `rule` completes "must ..."; `key` is the config key.
    """

    def __init__(self, key: str, rule: str, value: object) -> None:
        """Name all three."""
        super().__init__(f"{key} must {rule}, got {value!r}")


@dataclass(slots=True)
class Dialect:
    """How one service wants to be asked. It is learned from refusals while the run goes on.

    `sends` are filters beyond the official API that the service takes; `extra` is added to every
    body, `prefill_extra` to those that open the assistant's turn.
    """

    api: str
    deployment: str
    cap_name: str
    sends: tuple[str, ...] = ()
    top_logprobs: int = 0
    seed: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    prefill_extra: Mapping[str, Any] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    renamed: bool = False

    def body(
        self, request: Request, count: int = 1, prompt_text: str | None = None
    ) -> dict[str, Any]:
        """The JSON body that asks for `count` samples; completions are given `prompt_text`."""
        fields = self._prompt(request.prompt, prompt_text)
        fields |= {"model": self.deployment, self.cap_name: request.cap}
        fields |= self._sampling(request.sampling)
        if self.api != "responses":
            fields |= {"stop": list(request.stop)} if request.stop else {}
            fields |= {"seed": request.seed % SEEDS} if self.seed else {}
            fields |= {"n": count} if count > 1 else {}
        if request.entropy and self.top_logprobs:
            fields |= self._logprobs()
        if request.prompt.prefill and self.api == "chat":
            fields |= self.prefill_extra
        fields |= self.extra
        return {name: value for name, value in fields.items() if name not in self.dropped}

    def streaming(self) -> dict[str, Any]:
        """The fields that ask for the answer in pieces, with its usage at the end."""
        fields: dict[str, Any] = {"stream": True}
        if self.api != "responses":
            fields["stream_options"] = {"include_usage": True}
        if "stream" in self.dropped:
            return {}
        return {name: value for name, value in fields.items() if name not in self.dropped}

    def _prompt(self, prompt: Prompt, text: str | None) -> dict[str, Any]:
        if self.api == "completions":
            assert text is not None
            return {"prompt": text}
        messages = chat_messages(prompt)
        return (
            {"input": messages, "store": False}
            if self.api == "responses"
            else {"messages": messages}
        )

    def _sampling(self, sampling: Sampling) -> dict[str, Any]:
        names = ["temperature", "top_p", *self.sends]
        fields = {name: getattr(sampling, name) for name in names}
        if sampling.temperature == 0:
            fields["top_p"] = 1.0
        for name in ("presence_penalty", "frequency_penalty"):
            if value := getattr(sampling, name):
                fields[name] = value
        if sampling.logit_bias:
            fields["logit_bias"] = {str(token): v for token, v in sampling.logit_bias.items()}
        if sampling.json_schema is not None:
            fields |= self._format(sampling.json_schema)
        return fields

    def _format(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        named = {"name": "answer", "strict": True, "schema": schema}
        if self.api == "responses":
            return {"text": {"format": {"type": "json_schema", **named}}}
        return {"response_format": {"type": "json_schema", "json_schema": named}}

    def _logprobs(self) -> dict[str, Any]:
        if self.api == "chat":
            return {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.api == "completions":
            return {"logprobs": self.top_logprobs}
        return {"include": ["message.output_text.logprobs"], "top_logprobs": self.top_logprobs}

    def learn(self, body: Mapping[str, Any], complaint: Complaint) -> bool:
        """Take from a refusal which parameter to leave out or to call by its other name.

        Returns whether the same request is worth sending again.

        Raises:
            RefusedParameterError: the run asks for something that the service does not do.
        """
        if set(EITHER) <= set(complaint.names) and "both" in complaint.text:
            return self._drop_either(body)
        return any([self._take(name, body, complaint) for name in complaint.names])

    def _drop_either(self, body: Mapping[str, Any]) -> bool:
        """Leave out the one of temperature and top_p that changes nothing."""
        neutral = next((name for name in ("top_p", "temperature") if body[name] == 1), None)
        if neutral is None:
            rule = f"be 1, as {self.deployment} takes either temperature or top_p"
            raise RefusedParameterError("sampling.top_p", rule, body["top_p"])
        self.dropped |= {neutral}
        return True

    def _take(self, name: str, body: Mapping[str, Any], complaint: Complaint) -> bool:
        if name in CAP_NAMES[self.api]:
            return self._rename_cap(name, complaint)
        if name in NEUTRAL:
            return self._drop_neutral(name, body[name])
        if name in FORMATS and name not in self.extra:
            rule = f"be null, or a schema that {self.deployment} takes"
            raise RefusedParameterError("sampling.json_schema", rule, "a schema")
        if name in PROBABILITIES:
            self.dropped |= set(PROBABILITIES)
        elif name in OPTIONAL:
            self.dropped |= {name}
        return name in (*PROBABILITIES, *OPTIONAL)

    def _rename_cap(self, name: str, complaint: Complaint) -> bool:
        """Once, and only where it is the name that is refused: a number may be too large."""
        others = [other for other in CAP_NAMES[self.api] if other != name]
        if self.cap_name != name:
            return True  # learned while this request was under way
        of_the_name = complaint.is_about_names or any(one in complaint.text for one in others)
        other_value = TOO_LARGE.search(complaint.text) and not complaint.is_about_names
        if self.renamed or not others or not of_the_name or other_value:
            return False
        self.cap_name, self.renamed = others[0], True
        return True

    def _drop_neutral(self, name: str, value: object) -> bool:
        if value != NEUTRAL[name] and not (name == "top_p" and value == 1.0):
            off = json.dumps(NEUTRAL[name]).removesuffix(".0")
            rule = f"be {off}, the only value that {self.deployment} takes"
            raise RefusedParameterError(f"sampling.{name}", rule, value)
        self.dropped |= {name}
        return True


def chat_messages(prompt: Prompt) -> list[dict[str, str]]:
    """Role and text of every message; a prefill is one more of the assistant."""
    turns = [_turn(message) for message in prompt.messages]
    if prompt.prefill:
        turns.append({"role": "assistant", "content": spelled(prompt.prefill)})
    return turns


def _turn(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": spelled(message.content)}
