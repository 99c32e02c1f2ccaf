"""What vLLM's processes log, so that the end of one can be told in its own words."""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

_PATH = "VLLM_LOGGING_CONFIG_PATH"
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*")


class EngineLog:
    """Errors of vLLM go into a file, which is told only if the engine dies.

    Processes that Ctrl-C reaches too log tracebacks that mean nothing. With $VLLM_LOGGING_LEVEL
    messages go to standard error as well. A logging configuration of the user's own
    ($VLLM_LOGGING_CONFIG_PATH) is left alone.
    """

    def __init__(self) -> None:
        """Write vLLM's logging configuration; its processes find it by the environment."""
        self._folder = tempfile.TemporaryDirectory(prefix="rethink-vllm-")
        self._file = Path(self._folder.name) / "errors.log"
        self._ours = _PATH not in os.environ
        if self._ours:
            config = Path(self._folder.name) / "logging.json"
            config.write_text(json.dumps(_configuration(self._file)), encoding="utf-8")
            os.environ[_PATH] = str(config)

    def text(self) -> str:
        """All that was logged so far."""
        there = self._file.is_file()
        return self._file.read_text(encoding="utf-8", errors="replace") if there else ""

    def error(self) -> str | None:
        """The line of the first exception that was logged, which is the cause of later ones."""
        lines = self.text().splitlines()
        return next((line.strip() for line in lines if _ERROR.match(line)), None)

    def close(self) -> None:
        """Remove the files."""
        if self._ours:
            os.environ.pop(_PATH, None)
        self._folder.cleanup()


def _configuration(errors: Path) -> dict[str, Any]:
    """As `logging.config.dictConfig` takes it."""
    asked = os.environ.get("VLLM_LOGGING_LEVEL")
    level = asked or "ERROR"
    handler = {"formatter": "plain", "level": level}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "vLLM %(levelname)s: %(message)s"}, "bare": {}},
        "handlers": {
            "stderr": {**handler, "class": "logging.StreamHandler", "stream": "ext://sys.stderr"},
            "errors": {
                "class": "logging.FileHandler",
                "filename": str(errors),
                "delay": True,
                "formatter": "bare",
                "level": "ERROR",
            },
        },
        "loggers": {
            "vllm": {
                "handlers": [*(["stderr"] if asked else []), "errors"],
                "level": level,
                "propagate": False,
            }
        },
    }
