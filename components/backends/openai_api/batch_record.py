"""What is remembered of a batch under way, in a file of the cache folder."""

import logging
from dataclasses import dataclass
from pathlib import Path

from pipeline.store import files

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What a file of the cache folder says of a batch under way: its requests, and its id.

    The id is None until the service has told it.
    """

    path: Path
    where: str
    ids: tuple[str, ...]
    batch: str | None = None

    @classmethod
    def read(cls, path: Path) -> "BatchRecord | None":
        """The record in a file; None, with a warning, where the file is damaged."""
        found = files.decode(path.read_bytes())
        try:
            assert found is not None
            return cls(path, str(found["where"]), tuple(map(str, found["ids"])), found["batch"])
        except (AssertionError, KeyError, TypeError):
            text = "%s is damaged: the batch that it names is not collected; delete the file"
            _LOG.warning(text, path)
            return None

    def write(self) -> None:
        """Replace the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"where": self.where, "ids": self.ids, "batch": self.batch}
        files.write_atomically(self.path, [files.encode(content)])
