"""A `Prompt` as token ids: text is encoded, earlier generations keep their own ids."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from components.decoding.byte_fallback import byte_ids_of
from components.decoding.byte_level import pieces_of
from components.decoding.chat_template import ChatTemplate
from pipeline.protocols import Piece, Prompt
from pipeline.spec import ModelSpec

_TEXTS = 1024  # texts whose ids are remembered
# Ends of a chat turn by name, for checkpoints that do not declare theirs.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<turn|>")
_ANCHORS = ("\n", "=", "x")  # texts whose ids are likely to stay the same when text follows


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt's ids, and how many were lost to `model.max_length`."""

    ids: list[int]
    cut: int = 0


class PromptEncoder:
    """Turns prompts into ids with one tokenizer and one chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: ModelSpec) -> None:
        """`model` gives the template's arguments and the longest prompt."""
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, model.template_kwargs)
        self._longest = model.max_length
        self._side = model.truncation_side
        bos: int | None = tokenizer.bos_token_id
        self._bos = bos
        self._last: tuple[Prompt, Encoded] | None = None
        self._adds_bos = bos is not None and (
            not tokenizer.chat_template or tokenizer.encode("x")[:1] == [bos]
        )
        # What stands between turns is the same in every prompt.
        self._known = lru_cache(_TEXTS)(self._encode_text)
        first = tokenizer.convert_ids_to_tokens(self._plain("x"))[:1]
        self.pieces = pieces_of(tokenizer, self.decode) or byte_ids_of(tokenizer, self.decode)
        self._spaces = bool(first) and first[0].startswith("\u2581")

    def encode(self, prompt: Prompt) -> Encoded:
        """The ids that the model is to continue.

        They start with one beginning-of-sequence id if the template writes it, the tokenizer adds
        it, or there is no template and the tokenizer has one.

        Raises:
            SpecError: the chat template refuses the messages or loses a turn.
        """
        if self._last is None or self._last[0] != prompt:  # samples of a prompt come together
            self._last = (prompt, self._encode(prompt))
        return self._last[1]

    def _encode(self, prompt: Prompt) -> Encoded:
        ids: list[int] = []
        for run in self._template.runs(prompt):
            ids += self._ids_of(run, at_start=not ids)
        return self._cut(self._with_bos(ids), prompt)

    def _ids_of(self, run: Piece, at_start: bool) -> list[int]:
        """A run's ids; a generation's own, but for an end of sequence."""
        if isinstance(run, str):
            return self._plain(run) if at_start else self._spliced(run)
        return run.token_ids[:-1] if run.finish_reason == "eos" else run.token_ids

    def preview(self, prompt: Prompt) -> str:
        """The prompt as the model sees it: its ids as text, special tokens included."""
        return self.decode(self.encode(prompt).ids)

    def continued(self, text: str) -> list[int]:
        """The ids of text that goes on after a prompt."""
        return self._spliced(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens spelled out."""
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def end_ids(self, declared: Collection[int] = ()) -> frozenset[int]:
        """Ids that end the model's turn.

        These are the tokenizer's end of sequence, the ids that the checkpoint declares, and known
        ends of a chat turn: all of these that the tokenizer has where the checkpoint declares
        nothing, else the one that the chat template writes after an assistant turn. So `<|end|>`
        ends a turn of Phi-3, and only a message of gpt-oss.

        Args:
            declared: `eos_token_id` of the checkpoint's generation config.
        """
        vocabulary = self.tokenizer.get_vocab()
        after = self._template.turn_end().lstrip()
        names = [name for name in _TURN_ENDS if not declared or after.startswith(name)]
        ids = {vocabulary[name] for name in names if name in vocabulary} | set(declared)
        if self.tokenizer.eos_token_id is not None:
            ids.add(self.tokenizer.eos_token_id)
        return frozenset(ids)

    def _plain(self, text: str) -> list[int]:
        return list(self._known(text))

    def _encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _spliced(self, text: str) -> list[int]:
        """Ids of text that goes on after other ids.

        Some tokenizers put a space before whatever they are given; an anchor takes it away.
        """
        if not self._spaces:
            return self._plain(text)
        for anchor in _ANCHORS:
            known, both = self._plain(anchor), self._plain(anchor + text)
            if both[: len(known)] == known:
                return both[len(known) :]
        return self._plain(text)

    def _with_bos(self, ids: list[int]) -> list[int]:
        if self._bos is None:
            return ids
        while ids[:2] == [self._bos, self._bos]:
            ids = ids[1:]
        return [self._bos, *ids] if self._adds_bos and ids[:1] != [self._bos] else ids

    def _cut(self, ids: list[int], prompt: Prompt) -> Encoded:
        """The ids within `model.max_length`; a beginning-of-sequence id stays.

        Cut from the right, the question loses its end. What follows it stays: the template's text,
        and what the model is made to say, such as the opening of a phase or a cue.
        """
        cut = len(ids) - (self._longest or len(ids))
        if cut <= 0:
            return Encoded(ids)
        first = 1 if ids[0] == self._bos else 0
        end = len(ids)
        if self._side == "right":
            kept = min(self._length_after_question(prompt), len(ids) - cut - first)
            end = len(ids) - kept
        start = end - cut if self._side == "right" else first
        return Encoded(ids[:start] + ids[start + cut :], cut)

    def _length_after_question(self, prompt: Prompt) -> int:
        runs = self._template.after_question(prompt)
        return sum(len(self._ids_of(run, at_start=False)) for run in runs)
