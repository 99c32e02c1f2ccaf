"""launch/chat.py as a user meets it: typed into a terminal, piped, or with nothing to answer."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.hf.test_architectures import memory_adapter
from tests.fakes.configs import ROOT

ECHO = ("launch/chat.py", "backend=echo")
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


def piped(text: str, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *ECHO, *words]
    return subprocess.run(
        line, input=text, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False
    )


def test_piped_lines_are_answered_without_a_terminal() -> None:
    done = piped("red red red\n/temp 7\n/temp -1\n\n/cue\nquit\nnever\n")
    assert done.returncode == 0, done.stderr
    assert "backend echo, number of parameters unknown, chat" in done.stdout
    assert "error: sampling.temperature must be 0 (greedy) or more" in done.stdout
    assert "red" in done.stdout and "never" not in done.stdout
    assert done.stdout.index("[before]") < done.stdout.index("[after]")


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_line_that_is_no_text_is_refused_and_the_next_is_answered(locale: str) -> None:
    done = subprocess.run(
        [sys.executable, *ECHO],
        input=b"caf\xe9 noir\nred red red\n",
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0"},
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"error: a line must be UTF-8 text" in done.stdout and b"[" in done.stdout
    assert b"red red" in done.stdout


def test_with_nothing_to_answer_it_says_what_to_do() -> None:
    done = piped("")
    assert done.returncode == 1 and "pipe lines into it" in done.stderr


@pytest.mark.parametrize("model", ["bdh_tiny", "mini_llm_tiny", "memory"])
def test_models_of_our_own_architectures_continue_a_text(model: str, tmp_path: Path) -> None:
    which = [f"model={model}"]
    if model == "memory":
        path = memory_adapter(tmp_path / "memory", "hybrid")
        which = ["model=local", f"model.path={path}", f"run.cache_dir={tmp_path}"]
    line = ("launch/chat.py", *which, "quantization=fp32", "sampling.max_new_tokens=8")
    done = subprocess.run(
        [sys.executable, *line],
        input="The import statement\n/entropy on\n/retry\nquit\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("checkpoint-3" if model == "memory" else model) in done.stdout
    assert "completion" in done.stdout
    assert done.stdout.count("8 tokens") == 2, done.stdout
    # A pipe has no colours: each token of the second answer is followed by its entropy.
    assert len(re.findall(r"\[\d+\.\d\d\]", done.stdout)) == 8, done.stdout


class Terminal:
    """A tmux session of 100 columns that runs one command."""

    def __init__(self, name: str, command: str) -> None:
        self._socket = name
        self("new-session", "-d", "-s", "talk", "-x", "100", "-y", "40", command)

    def __call__(self, *words: str) -> str:
        line = ["tmux", "-L", self._socket, *words]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout

    def type(self, text: str) -> None:
        self("send-keys", "-t", "talk", "-l", text)
        self("send-keys", "-t", "talk", "Enter")

    def read_until(self, text: str) -> str:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            shown = self("capture-pane", "-p", "-t", "talk")
            if text in shown:
                return shown
            time.sleep(0.1)
        raise AssertionError(f"{text!r} did not appear:\n{shown}")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    state = f"env XDG_STATE_HOME={tmp_path} PYTHONPATH={ROOT} OMP_NUM_THREADS=1"
    script = f"cd '{ROOT}'; {state} '{sys.executable}' {' '.join(ECHO)}"
    made = Terminal(f"rethink-{os.getpid()}", f"{script} backend.seconds_per_token=0.2; sleep 60")
    yield made
    made("kill-server")


@needs_tmux
def test_a_chat_in_a_terminal_is_typed_and_read_back(terminal: Terminal) -> None:
    terminal.read_until("\n>")  # tmux drops blanks at the end of a line
    terminal.type("one one one one")
    terminal.read_until("tokens")
    terminal.type("/top_p 3")
    terminal.read_until("sampling.top_p must lie in (0, 1], got 3.0")
    terminal.type("/max_tokens 3000")
    terminal.type("go on")  # echo says 95 times "one", which takes more than a minute
    terminal.read_until("> go on\none")  # as it comes
    terminal("send-keys", "-t", "talk", "-l", "/meanwhile")
    assert "meanwhile" not in terminal.read_until("> go on\none one one")
    terminal("send-keys", "-t", "talk", "C-c")
    terminal.read_until("stopped")
    terminal.type("/settings")
    terminal.read_until("/max_tokens 3000")
