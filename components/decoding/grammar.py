"""Text that matches a regex or a JSON schema: which ids may come next, by llguidance."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from pipeline.spec import Sampling, SpecError, require

if TYPE_CHECKING:
    from llguidance import LLMatcher

_NO_END = "<|there is no end of turn|>"
_COMPILED = 64  # grammars that are kept; a run has one


def refuse_format(sampling: Sampling) -> None:
    """Refuse a regex or schema that is none, or that the library does not know; loads no model.

    Raises:
        SpecError: names the config key and what is wrong.
    """
    key, value = _named(sampling)
    if key is None:
        return
    rule = "be null where llguidance is not installed (pip install 'rethink-pipeline[structured]')"
    require(find_spec("llguidance") is not None, key, rule, value)
    from llguidance import LLMatcher

    require(not isinstance(value, str) or key == "sampling.regex", key, "be a mapping here", value)
    failed, messages = LLMatcher.validate_grammar_with_warnings(_written(sampling))
    said = "; ".join(message.strip().splitlines()[0] for message in messages)
    if failed and key == "sampling.regex":
        said = " ".join(" ".join(messages).split("start:")[0].split())
    require(not failed, key, f"be one that llguidance can follow ({said})", value)


def _named(sampling: Sampling) -> tuple[str | None, object]:
    if sampling.regex is not None:
        return "sampling.regex", sampling.regex
    if sampling.json_schema is not None:
        return "sampling.json_schema", sampling.json_schema
    return None, None


def _written(sampling: Sampling) -> str:
    from llguidance import LLMatcher

    if sampling.regex is not None:
        return LLMatcher.grammar_from_regex(sampling.regex)
    # Without free white space a model cannot write blanks until the cap.
    spaces: Any = {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
    }
    return LLMatcher.grammar_from_json_schema(json.dumps(sampling.json_schema), overrides=spaces)


class Grammars:
    """Makes the grammars of rows, for one tokenizer and model."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: Collection[int]) -> None:
        """Read the vocabulary, which takes up to a second.

        `end_ids` end the model's turn: they may come where a text may end.

        Raises:
            SpecError: the tokenizer is none that the library reads.
        """
        from llguidance import LLTokenizer

        rule = "be null for a model whose tokenizer has no tokenizer.json"
        fast = isinstance(tokenizer, PreTrainedTokenizerFast)
        require(fast, "sampling.regex and json_schema", rule, type(tokenizer).__name__)
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        backend.no_padding()
        backend.no_truncation()
        size = backend.get_vocab_size()
        ends = sorted(end for end in end_ids if end < size)
        if not ends:  # the library needs one: an id that no model has stands for it
            backend.add_special_tokens([AddedToken(_NO_END, special=True)])
            ends = [size]
        try:
            self._tokenizer = LLTokenizer(backend.to_str(), eos_token=ends)
        except ValueError as error:
            rule = f"be null for this tokenizer, which llguidance cannot read ({error})"
            raise SpecError(f"sampling.regex and json_schema must {rule}") from error
        self._matcher = lru_cache(_COMPILED)(self._compile)

    def of(self, sampling: Sampling) -> "Grammar":
        """The grammar of one row. Raises SpecError where regex or schema cannot be followed."""
        refuse_format(sampling)
        matcher = self._matcher(_written(sampling))
        key, value = _named(sampling)
        rule = f"be one that a text can match ({_said(matcher)})"
        require(not matcher.is_error(), str(key), rule, value)
        return Grammar(matcher.deep_copy(), sampling)

    def _compile(self, grammar: str) -> "LLMatcher":
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar)
        matcher.compute_bitmask()  # a grammar that no text can begin becomes an error here
        return matcher


@dataclass(slots=True)
class Grammar:
    """Where one row stands in its grammar."""

    _matcher: "LLMatcher"
    _sampling: Sampling
    _known: int = 0  # ids read so far

    def allowed(self, ids: list[int], size: int) -> Tensor:
        """Which of `size` ids may come after the generated `ids`, bool [size].

        Raises:
            SpecError: the grammar has become too complex to follow.
        """
        self._read(ids)
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        flags = np.unpackbits(words, bitorder="little")[:size].astype(bool)
        if self._matcher.is_error():
            key, value = _named(self._sampling)
            said = f"after {len(ids)} tokens of this answer: {_said(self._matcher)}"
            require(
                False, str(key), f"be one that llguidance can follow to its end ({said})", value
            )
        return torch.from_numpy(np.pad(flags, (0, size - len(flags))))

    def is_complete(self, ids: list[int]) -> bool:
        """Whether nothing can follow the generated `ids`."""
        self._read(ids)
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def _read(self, ids: list[int]) -> None:
        self._matcher.consume_tokens(ids[self._known :])
        self._known = len(ids)


def _said(matcher: "LLMatcher") -> str:
    """What the library says of a grammar, on one line."""
    return (matcher.get_error() or "no error").splitlines()[0]
