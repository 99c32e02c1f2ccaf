"""Runs through the real command line, against a service of the test's own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.fakes.configs import ROOT

KEY = "sk-proj-Zq81xVbN0aLmKw73-never-written"
BASE = (
    "task=crossword",
    "backend=openai",
    "backend.deployment=gpt-4o-mini",
    "backend.samples_per_request=false",
    "backend.retry.retries=8",
    "backend.retry.backoff=0.02",
    "backend.retry.longest_backoff=0.3",
    "backend.retry.timeout=1",
)


def start(url: str, *overrides: str, key: str = KEY, door: str = "run") -> "subprocess.Popen[str]":
    environment = os.environ | {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": url}
    return subprocess.Popen(
        [sys.executable, str(ROOT / f"launch/{door}.py"), *BASE, *overrides],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]", status: int = 0, seconds: float = 400) -> str:
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == status, out + err
    return out + err


def rows_in(folder: Path) -> list[dict[str, Any]]:
    found = [p for p in folder.rglob("step*.jsonl") if "part" not in p.name]
    return [json.loads(line) for line in found[0].open(encoding="utf-8")] if found else []


def wait_for_rows(folder: Path, count: int, process: "subprocess.Popen[str]") -> None:
    for _ in range(4000):
        files = list(folder.rglob("step*.jsonl"))
        if files and files[0].read_bytes().count(b"\n") >= count:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError(f"no {count} rows in {folder}")


def holds_no_key(folder: Path, shown: str) -> None:
    """No file of the run, nor anything shown, has the key or a part of it."""
    parts = (KEY, KEY[:16], KEY[-16:])
    assert not [part for part in parts if part in shown]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        assert not [part for part in parts if part.encode() in data], path
