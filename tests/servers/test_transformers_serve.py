"""`transformers serve` with SmolLM2, started and stopped here, says what backend=hf says."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launch import api
from launch.config.setup import setup_of
from tests.fakes.configs import composed


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its base URL. Greedy decoding in float32 on the CPU, as the other side."""
    port = free_port()
    log = tmp_path_factory.mktemp("serve") / "log.txt"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(smollm2)]
    command += ["--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1"]
    command += ["--port", str(port)]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ.copy())
        try:
            wait_until_up(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_up(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(f"no server after 5 minutes: {log.read_text()}")


def run(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    """Rows of a run, in order."""
    outcome = api.run(
        setup_of(composed("sampling=greedy", f"run.root={folder}", *overrides), overrides)
    )
    assert outcome.status == 0
    return [json.loads(line) for line in outcome.point.rows_path.open(encoding="utf-8")]


CAPS = ("sampling.think_cap=24", "sampling.answer_cap=12")
SHORT = "task.system_prompt='Think briefly in think tags, then answer in answer tags.'"
SERVED = ("backend=local_server", "backend.stop_text=kept", "backend.pace.start=1")


def test_one_phase_of_chat_is_the_text_of_hf(server: str, smollm2: Path, tmp_path: Path) -> None:
    asked = ("task=math", SHORT, "run.limit=2", "run.phases=single", "sampling.max_new_tokens=40")
    cache = f"run.cache_dir={tmp_path / 'cache'}"
    where = (f"backend.endpoint={server}", f"backend.deployment={smollm2}", cache)
    served = run(tmp_path / "served", *asked, *SERVED, *where)
    local = run(tmp_path / "local", *asked, "backend=hf", "quantization=fp32")
    for there, here in zip(served, local, strict=True):
        assert there["pass1"]["output"] == here["pass1"]["output"] != ""
        assert there["pass1"]["tokens_total"] == here["pass1"]["tokens_total"]
        assert there["pass1"]["finish_reason"] == here["pass1"]["finish_reason"]
        assert there["phases"] == "single" and there["pass1"]["entropy"] is None
    assert not server_continues(tmp_path)


def server_continues(folder: Path) -> bool:
    """What the probe found: this server opens a new turn after a given one."""
    (found,) = json.loads((folder / "cache/gateways/prefill.json").read_text()).values()
    return bool(found)


def test_tagged_phases_and_a_second_pass_by_completions_are_those_of_hf(
    server: str, smollm2: Path, tmp_path: Path
) -> None:
    """Completions are given the text that hf's ids spell, so a prefill is continued exactly."""
    asked = ("task=math", SHORT, "run.limit=1", "cue=wait", *CAPS)
    where = (f"backend.endpoint={server}", f"backend.deployment={smollm2}")
    text = ("backend.api=completions", f"model.tokenizer={smollm2}", "backend.prefill=yes")
    served = run(tmp_path / "served", *asked, *SERVED, *where, *text)
    local = run(tmp_path / "local", *asked, "backend=hf", "quantization=fp32")
    for there, here in zip(served, local, strict=True):
        assert there["phases"] == "tagged"
        for name in ("pass1", "pass2"):
            assert there[name]["output"] == here[name]["output"]
            assert there[name]["prompt_tokens"] == here[name]["prompt_tokens"]
        assert there["pass2"]["cue_prefilled"]
