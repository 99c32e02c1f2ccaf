"""Does a service go on with an assistant turn that it is given, or does it begin a new one?"""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.protocols import Group, Message, Prompt, Request
from pipeline.spec import Sampling, digest
from pipeline.store import files

_LOG = logging.getLogger(__name__)
MODES = ("auto", "yes", "no")
OPENING = "one, two, three, four,"
NEXT = re.compile(r"\W*(five|5)\b", re.IGNORECASE)


def question() -> Request:
    """A request whose answer begins with "five" only where the given turn is continued."""
    ask = "Count from one to ten in words, in one line, separated by commas. Write nothing else."
    prompt = Prompt((Message("user", (ask,)),), (OPENING,))
    sampling = Sampling(temperature=1.0, top_p=1.0)
    group = Group("prefill", 0, 1)
    return Request(prompt, (), 16, sampling, seed=0, trace_id=0, group=group, entropy=False)


def continues(text: str) -> bool:
    """Whether an answer to `question` goes on where the given turn stops."""
    return NEXT.match(text.strip()) is not None


class Findings:
    """What was found out about services, kept in the cache so that a rerun has the same phases."""

    def __init__(self, cache: Path) -> None:
        """`cache` is the run's cache folder."""
        self.path = cache / "gateways" / "prefill.json"

    def get(self, where: Mapping[str, Any]) -> bool | None:
        """What is known; None: not asked yet."""
        return self._all().get(digest(where))

    def put(self, where: Mapping[str, Any], answer: bool) -> None:
        """Remember an answer."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(self.path, [files.encode(self._all() | {digest(where): answer})])

    def _all(self) -> dict[str, bool]:
        if not self.path.exists():
            return {}
        found = files.decode(self.path.read_bytes())
        if found is None:
            _LOG.warning("%s is damaged: services are asked anew", self.path)
        return {name: answer for name, answer in (found or {}).items() if isinstance(answer, bool)}
