"""The real Slurm of tests/slurm/cluster.sh, which `make test-slurm` starts and stops."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable

import pytest
from filelock import FileLock

from tests.slurm.sweeps import LINES, SLOW, Lines, Sweep, lines_in

CLUSTER = "rethinktest"
# Minutes of waiting, which the other workers fill; what its worker keeps for later is short.
FIRST = ("in_jobs_of_one", "is_explained")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: [name not in item.name for name in FIRST])


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


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Lines]]:
    """The rows of an undisturbed run of a backend, made once for all workers, without a cluster."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def rows(backend: str) -> dict[str, Lines]:
        kept = folder / f"undisturbed-{backend}.json"
        with FileLock(f"{kept}.lock"):
            if not kept.exists():
                root = folder / f"undisturbed-{backend}"
                line = [option for option in LINES[backend] if option not in SLOW]
                Sweep("whole", root, *line, "cluster=local").end()
                kept.write_text(json.dumps(lines_in(root)))
        found: dict[str, Lines] = json.loads(kept.read_text())
        return found

    return rows
