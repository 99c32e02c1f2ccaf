"""A backend, a task and a cue of one's own: files beside a YAML each, none of ours touched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.configs import ROOT

CODE = {
    "mine/shouting.py": '''
"""A backend that shouts what it is asked."""

from pipeline.protocols import Backend, Capabilities, Generation, Request
from pipeline.spec import require


class Shouting(Backend):
    name = "shouting"
    capabilities = Capabilities(assistant_prefill=True, runs_model=False)

    def __init__(self, marks: int = 1) -> None:
        require(marks >= 0, "backend.marks", "be 0 or more", marks)
        self.marks = marks

    def identity(self):
        return {"backend": self.name, "backend.marks": self.marks}

    async def generate(self, request: Request) -> Generation:
        question = str(request.prompt.messages[-1].content[0])
        text = question.rpartition(" ")[2].upper() + "!" * self.marks
        return Generation([], text, "stop_token", tail=request.stop[0], num_tokens=1)
''',
    "mine/spelling.py": '''
"""A task that asks for a word in capitals."""

from pipeline.protocols import Example, Message, Phase, Prompt


class Capitals:
    name = "capitals"
    phases = (
        Phase("think", 20, "<think>\\n", ("</think>",), "</think>\\n"),
        Phase("answer", 10, "<answer>\\n", ("</answer>",), "</answer>"),
    )
    max_output_tokens = 30

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def examples(self):
        return [Example(word, f"Shout {word}", word.upper()) for word in self.words]

    def prompt(self, example):
        return Prompt((Message("user", (example.question,)),))

    def score(self, example, generations):
        answer = generations["answer"].text.rstrip("!")
        right = answer == example.target
        return {"pred_answer": answer, "pred_answer_canon": answer, "is_correct_pred": right}
''',
}
CONF = {
    "backend/shouting.yaml": "_target_: mine.shouting.Shouting\nmarks: 2\n",
    "task/capitals.yaml": "_target_: mine.spelling.Capitals\nwords: [plum, fig]\n",
    "cue/whisper.yaml": "whisper: {text: 'Now whisper it, please: HUSH'}\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("extension")
    files = CODE | {f"conf/{name}": text for name, text in CONF.items()}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = ["task=capitals", "backend=shouting", "cue=whisper", f"run.root={folder}/outputs"]
    search = f"hydra.searchpath=[file://{folder}/conf]"
    path = os.pathsep.join((str(folder), str(ROOT)))
    return subprocess.run(
        [sys.executable, "launch/run.py", *line, search, *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_backend_a_task_and_a_cue_of_ones_own_run_from_the_command_line(folder: Path) -> None:
    done = run(folder, "backend.marks=3")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (folder / "outputs").glob("default/capitals-shouting-T0.7-*/step-0/step*.jsonl")
    plum, fig = (json.loads(line) for line in path.open())
    assert (plum["model"], plum["backend"], plum["quantization"]) == (
        "shouting",
        "shouting",
        "none",
    )
    assert [plum["pass1"]["pred_answer"], fig["pass1"]["pred_answer"]] == ["PLUM", "FIG"]
    assert plum["pass1"]["is_correct_pred"] and plum["pass1"]["tokens_total"] == 2
    again = plum["pass2"]
    assert (again["cue"], again["pred_answer"], again["is_correct_pred"]) == (
        "whisper",
        "HUSH",
        False,
    )
    assert again["output"].startswith("<think>Now whisper it, please: HUSH HUSH!!!</think>")
    identity = json.loads((path.parent / "run.json").read_text())["identity"]
    assert identity["backend.marks"] == 3 and identity["task.name"] == "capitals"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("backend.marks=-1", "backend.marks must be 0 or more, got -1"),
        ("backend.volume=3", "there is no backend.volume; there are _target_, marks"),
        ("quantization=bf16", "quantization must be none with backend shouting"),
    ],
)
def test_what_is_wrong_with_it_is_one_sentence(folder: Path, word: str, said: str) -> None:
    done = run(folder, word)
    assert "Traceback" not in done.stderr
    assert done.returncode != 0 and said in done.stdout + done.stderr
