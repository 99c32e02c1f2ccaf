"""Processes of several ranks on this machine's processor, over gloo."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(ROOT),
}
TRAINED = ("1-fp32", "2-bf16", "3-fp32", "3-bf16", "3-fp32-groups")


def on_ranks(
    count: int, script: Path, *arguments: str, more: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """`count` processes of a script, started by torchrun."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    return subprocess.Popen(
        [sys.executable, *torchrun, str(script), *arguments],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | dict(more or {}),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def said(process: subprocess.Popen[str], seconds: float = 280) -> str:
    """What a process printed until it ended."""
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(40)


@pytest.fixture(autouse=True)
def _on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`trained("3-fp32")`: the folder of checkpoints that two ranks saved at ZeRO's stage 3."""
    folder = tmp_path_factory.mktemp("trained")
    process = on_ranks(2, HERE / "train.py", str(folder), *TRAINED)
    text = said(process)
    assert process.returncode == 0, text[-4000:]
    return lambda name: folder / name
