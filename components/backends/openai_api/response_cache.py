"""The response cache: generations by everything that shapes them, in files."""

import logging
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pipeline.protocols import Generation
from pipeline.spec import digest
from pipeline.store import files

_LOG = logging.getLogger(__name__)
# Part of every key: a record of another shape, of an earlier version, is another file.
RECORD = [item.name for item in fields(Generation)]


class KeptAnswers:
    """A folder of generations. Off by default: a cached answer is not a new sample."""

    def __init__(self, folder: Path) -> None:
        """The folder is made when something is kept."""
        self.folder = folder
        self.hits = 0

    def key(self, where: dict[str, Any], body: dict[str, Any], seed: int) -> str:
        """What names an answer: the service, the whole request, and the row's seed."""
        return digest([where, body, seed, RECORD])

    def get(self, key: str) -> Generation | None:
        """The kept generation, marked as such and free of charge."""
        path = self._path(key)
        if not path.exists():
            return None
        fields = files.decode(path.read_bytes())
        if fields is None or set(fields) != set(RECORD):
            _LOG.warning("%s is damaged: the request is sent again", path)
            return None
        kept = Generation(**fields)
        kept.backend_columns |= {"from_cache": True, "cost_usd": 0.0}
        self.hits += 1
        return kept

    def put(self, key: str, generation: Generation) -> None:
        """Keep one generation; readers never see a part of it."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, [files.encode(asdict(generation))])

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
