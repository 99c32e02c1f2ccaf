"""Prompts of the completions API: plain text, written here with the model's chat template."""

from pathlib import Path
from typing import Any

from components.decoding.chat_template import ChatTemplate
from components.models.checkpoint import Checkpoint, prepare, resolve
from components.models.tokenizer_loading import load_tokenizer
from pipeline.protocols import Prompt, spelled
from pipeline.spec import ModelSpec, SpecError

BETWEEN = "\n\n"


class PromptText:
    """Writes prompts with the template of `model.tokenizer`; without one, messages as they are."""

    def __init__(self, model: ModelSpec, cache: Path) -> None:
        """Nothing is loaded."""
        self._model, self._cache = model, cache
        self._found: Checkpoint | None = None
        self._template: ChatTemplate | None = None
        self._bos = ""

    def identity(self) -> dict[str, Any]:
        """The tokenizer's and the template's hashes, and the template's own arguments."""
        if self._model.tokenizer is None:
            return {"tokenizer": None}
        found = self._checkpoint().identity
        return {
            "tokenizer": found["tokenizer"],
            "chat_template": found["chat_template"],
            "template_kwargs": dict(self._model.template_kwargs),
        }

    def of(self, prompt: Prompt) -> str:
        """The prompt as one text, through its prefill."""
        if self._model.tokenizer is None:
            turns = [spelled(message.content) for message in prompt.messages]
            return BETWEEN.join([*turns, spelled(prompt.prefill)])
        if self._template is None:
            self._load()
        assert self._template is not None
        return spelled(self._template.runs(prompt)).removeprefix(self._bos)

    def _checkpoint(self) -> Checkpoint:
        if self._found is None:
            assert self._model.tokenizer is not None
            spec = ModelSpec(path=self._model.tokenizer, chat_template=self._model.chat_template)
            try:
                self._found = resolve(spec, self._cache)
            except SpecError as error:
                raise SpecError(f"model.tokenizer={self._model.tokenizer}: {error}") from error
        return self._found

    def _load(self) -> None:
        checkpoint = prepare(self._checkpoint(), self._cache)
        tokenizer = load_tokenizer(checkpoint, self._model)
        self._template = ChatTemplate(tokenizer, self._model.template_kwargs)
        # A server's tokenizer that writes the first token itself must not be given it too.
        bos = tokenizer.bos_token_id
        if bos is not None and tokenizer.encode("a")[:1] == [bos]:
            self._bos = str(tokenizer.bos_token)
