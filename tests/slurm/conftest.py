"""The real Slurm of tests/slurm/cluster.sh, which `make test-slurm` starts and stops."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLUSTER = "rethinktest"


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    if shutil.which("scontrol") is None:
        pytest.skip("no Slurm here; make test-slurm installs and starts one")
    shown = subprocess.run(
        ["scontrol", "show", "config"], capture_output=True, text=True, check=False
    )
    if f"ClusterName             = {CLUSTER}" not in shown.stdout:
        pytest.skip("another cluster's Slurm; make test-slurm starts the one of the tests")
    for name in list(os.environ):  # as if typed on a login node
        if name.startswith(("SLURM_", "SUBMITIT_")):
            del os.environ[name]
