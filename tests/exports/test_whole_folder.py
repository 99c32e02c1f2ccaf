"""A folder appears under its name when it is whole, whatever kills its writer."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from components.exports.whole_folder import whole_folder
from pipeline.spec import SpecError
from tests.fakes.configs import ROOT

# Writes an export of two files over another, and is killed when it has renamed for the n-th time.
KILLED = """
import os, signal, sys
from pathlib import Path
from components.exports.whole_folder import whole_folder
left = int(sys.argv[2])
def watch(event, arguments):
    global left
    if event == "os.rename":
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
with whole_folder(Path(sys.argv[1]), overwrite=True) as folder:
    (folder / "export.json").write_text("new")
"""


def write(target: Path, text: str, overwrite: bool = False) -> None:
    with whole_folder(target, overwrite) as folder:
        assert not target.exists() or overwrite
        (folder / "export.json").write_text(text)


def read(target: Path) -> str:
    return (target / "export.json").read_text()


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "out", False) as folder:
        (folder / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_is_there_is_replaced_only_when_that_is_said(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, "first")
    with pytest.raises(SpecError, match="is there already: name another, or add overwrite=true"):
        write(out, "second")
    assert read(out) == "first"
    write(out, "second", overwrite=True)
    assert read(out) == "second"
    assert list(tmp_path.iterdir()) == [out]


def test_what_is_no_export_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1.tex").write_text("dear")
    with pytest.raises(SpecError, match="is no export"):
        write(tmp_path / "thesis", "x", overwrite=True)
    (tmp_path / "file").write_text("dear")
    with pytest.raises(SpecError, match="is no export"):
        write(tmp_path / "file", "x", overwrite=True)


def test_files_have_the_rights_of_any_new_file(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "out", False) as folder:
        os.close(os.open(folder / "closed", os.O_CREAT, 0o600))
    (tmp_path / "other").touch()
    modes = {(tmp_path / name).stat().st_mode for name in ("out/closed", "other")}
    assert len(modes) == 1


@pytest.mark.parametrize(("renamed", "found"), [(0, "old"), (1, "old"), (2, "new")])
def test_a_kill_while_an_export_is_replaced_loses_neither(
    tmp_path: Path, renamed: int, found: str
) -> None:
    out = tmp_path / "[out]*{x}"
    write(out, "old")
    line = [sys.executable, "-c", KILLED, str(out), str(renamed)]
    killed = subprocess.run(line, cwd=ROOT, check=False, timeout=60)
    assert killed.returncode == (0 if renamed == 2 else -signal.SIGKILL)
    if renamed == 1:
        assert not out.exists()
    with pytest.raises(SpecError, match="is there already"):
        write(out, "next")
    assert read(out) == found
    assert list(tmp_path.iterdir()) == [out]


def test_an_export_that_another_process_writes_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with whole_folder(out, False) as folder:
        (folder / "export.json").write_text("mine")
        write(out, "theirs")
        assert read(folder) == "mine"
        out.rename(tmp_path / "away")
    assert read(out) == "mine"


def test_a_killed_export_leaves_no_half_file_under_its_name(smollm2: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = [sys.executable, "launch/export_model.py", "to=safetensors", "model=local"]
    line += [f"model.path={smollm2}", f"out={out}"]
    process = subprocess.Popen(line, cwd=ROOT)
    limit = time.monotonic() + 120
    while not list(tmp_path.glob(".out.part-*/new/*")) and time.monotonic() < limit:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert not out.exists() and list(tmp_path.glob(".out.part-*/new/*"))
    write(out, "whole")
    assert read(out) == "whole"
    assert list(tmp_path.iterdir()) == [out]
