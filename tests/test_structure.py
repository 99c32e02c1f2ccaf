"""What docs/structure.md says exists, and its recipes work as they stand there."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name

import pytest

from launch import api
from tests.fakes.configs import ROOT, composed

PAGE = (ROOT / "docs/structure.md").read_text(encoding="utf-8")
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
BLOCKS = re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
TOPS = ("pipeline", "components", "launch")


def in_ticks() -> set[str]:
    return set(re.findall(r"`([\w/.]+)`", PROSE))


def test_every_path_on_the_page_exists() -> None:
    paths = {name for name in in_ticks() if "/" in name and not name.startswith("/")}
    assert len(paths) > 40
    assert not sorted(path for path in paths if not (ROOT / path).exists())


def test_every_dotted_name_on_the_page_is_something() -> None:
    names = {n for n in in_ticks() if "/" not in n and n.partition(".")[0] in TOPS and "." in n}
    assert len(names) > 15
    for name in names:
        module, _, rest = name.rpartition(".")
        parent, _, owner = module.rpartition(".")
        of_class = owner[:1].isupper()
        assert resolve_name(f"{parent}:{owner}.{rest}" if of_class else f"{module}:{rest}"), name


def test_every_class_in_the_table_of_objects_is_in_its_file() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \| `([\w/]+\.py)` \|", PAGE, re.MULTILINE)
    assert len(rows) > 7
    for names, path in rows:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        wanted = {name for name in re.findall(r"`(\w+)`", names) if name[0].isupper()}
        assert {name for name in wanted if not name.isupper()} <= classes, path


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file of the page, as a reader would type it."""
    folder = tmp_path_factory.mktemp("recipes")
    for name, text in BLOCKS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("/path/mine", str(folder)), encoding="utf-8")
    return folder


def test_a_data_set_a_backend_a_cue_and_an_experiment_run_as_the_page_says(mine: Path) -> None:
    (line,) = re.findall(r"^ {4}PYTHONPATH=\S+ python (.*)$", PAGE, re.MULTILINE)
    words = line.replace("/path/mine", str(mine)).replace("'", "").split()
    path = os.pathsep.join((str(mine), str(ROOT)))
    ran = subprocess.run(
        [sys.executable, *words, f"run.root={mine}/outputs"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    files = sorted((mine / "outputs/shouted").rglob("step0000_test.jsonl"))
    rows = [json.loads(row) for file in files for row in file.open(encoding="utf-8")]
    assert {(row["seed"], row["gold_answer"]) for row in rows} == {
        (seed, town) for seed in (1, 2) for town in ("LIMA", "NAIROBI")
    }
    assert {row["backend"] for row in rows} == {"shouting"}
    assert {row["pass2"]["cue"] for row in rows} == {"whisper"}
    assert rows[0]["metadata"] == {"continent": "America"}


def test_a_quantization_runs_as_the_page_says(
    mine: Path, monkeypatch: pytest.MonkeyPatch, tiny_llama: Callable[..., Path], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(mine))
    words = ["task=qa", "backend=hf", "backend.device=cpu", "quantization=rounded", "run.limit=1"]
    words += ["model=local", f"model.path={tiny_llama()}", "sampling.max_new_tokens=3"]
    words += [f"hydra.searchpath=[file://{mine}/conf]", f"run.root={tmp_path}"]
    outcome = api.run(api.compose(*words))
    assert outcome.state == "complete"
    assert [row["quantization"] for row in outcome.rows()] == ["rounded"]
    assert outcome.point.identity["quantization.step"] == 0.01


def test_a_cluster_asks_slurm_for_what_the_page_says(mine: Path) -> None:
    words = (f"hydra.searchpath=[file://{mine}/conf]", "cluster=mysite", "task=qa")
    launcher = composed(*words, with_hydra=True).hydra.launcher
    assert (launcher.where, launcher.partition) == ("slurm", "long")
    assert launcher.additional_parameters == {"reservation": "mine"}
