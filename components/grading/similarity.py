"""How close two texts are in meaning, by a sentence-embedding model that the user names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from components.grading.libraries import library
from pipeline.spec import SpecError

BATCH = 32  # texts that are read at once
MAX_LENGTH = 100_000  # characters of a text that reach the tokenizer


class SentenceEmbedding:
    """A model of Sentence Transformers, or an encoder of Transformers, whose states are averaged.

    `truncated` counts texts longer than the model reads, whose rest said nothing.
    """

    def __init__(self, model: str, device: str | None = None) -> None:
        """Load the folder or hub id; code that comes with it is not run. Raises SpecError."""
        local = Path(model).expanduser()
        if model.startswith((".", "/", "~")) and not local.is_dir():
            raise SpecError(f"--embedding must name a folder or a hub id, and there is no {model}")
        module = library("sentence_transformers", "sentence-transformers", "semantic_similarity")
        try:
            self._model: Any = module.SentenceTransformer(
                str(local) if local.is_dir() else model, device=device, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError) as error:
            raise SpecError(
                f"--embedding must name a sentence-embedding model (a folder, or a hub id), "
                f"{model} cannot be loaded: {error}"
            ) from error
        self.name = model
        self.truncated = 0
        self._vectors: dict[str, Any] = {}

    def about(self) -> dict[str, Any]:
        """Which model it is, how it makes one vector of a text, and how many tokens it reads."""
        pooled = (getattr(module, "pooling_mode", None) for module in self._model)
        return {
            "model": self.name,
            "pooling": next((mode for mode in pooled if mode), None),
            "max_tokens": self._model.max_seq_length,
        }

    def read(self, texts: Sequence[str]) -> None:
        """Embed texts, each once, so that they can be compared."""
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if not new:
            return
        shown = [text[:MAX_LENGTH] for text in new]
        self.truncated += sum(self._is_longer(text) for text in shown)
        vectors = self._model.encode(
            shown, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False
        )
        self._vectors |= dict(zip(new, vectors, strict=True))

    def cosine(self, one: str, other: str) -> float:
        """The cosine of two texts that were read, -1 to 1."""
        cosine = float(self._vectors[one] @ self._vectors[other])
        return min(max(cosine, -1.0), 1.0)  # float32 may leave it a little outside

    def _is_longer(self, text: str) -> bool:
        most = self._model.max_seq_length
        if most is None or len(text) < most:  # a token is a character at least
            return False
        ids: list[int] = self._model.tokenizer(text, truncation=False)["input_ids"]
        return len(ids) > int(most)
