"""The options of `conf/cluster/*.yaml`: where the jobs of a sweep run, and what they ask for."""

import math
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore

from pipeline.spec import SpecError, require

PLACES = ("here", "processes", "slurm")
OURS = ("where", "folder", "max_num_timeout", "max_array", "node_cache", "follow", "poll_seconds")
BOTH: tuple[str, ...] = (
    "name",
    "timeout_min",
    "nodes",
    "tasks_per_node",
    "cpus_per_task",
    "gpus_per_node",
    "mem_gb",
    "stderr_to_stdout",
)
ONE = "nodes tasks_per_node timeout_min array_parallelism max_array cpus_per_task cpus_per_gpu"
MINIMA = {  # the least that whole numbers may be
    1: ONE.split(),
    0: ["gpus_per_node", "gpus_per_task", "signal_delay_s", "max_num_timeout"],
}


@dataclass
class Cluster:
    """`hydra.launcher`: what is not null is asked of Slurm as it stands."""

    _target_: str = "hydra_plugins.rethink.launcher.ClusterLauncher"
    where: str = "here"  # here: one after the other; processes: submitit on this machine; slurm
    folder: str = "${hydra.sweep.dir}/.submitit/%j"  # job scripts, logs, results
    name: str = "${run.name}"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    nodelist: str | None = None
    exclusive: bool | None = None
    dependency: str | None = None
    comment: str | None = None
    wckey: str | None = None  # for sites whose accounting asks for one
    gres: str | None = None
    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    mem_gb: float | None = None
    mem_per_cpu: str | None = None
    mem_per_gpu: str | None = None
    timeout_min: int = 60
    signal_delay_s: int = 120  # the warning comes so long before the time limit
    max_num_timeout: int = 20  # how often a job that runs into its limit goes on; 0: never
    array_parallelism: int = 256  # jobs of one array that run at once; also of `processes`
    max_array: int | None = None  # jobs in one array; null: what the site's configuration says
    setup: list[str] = field(default_factory=list)  # shell lines before the job
    srun_args: list[str] = field(default_factory=list)
    additional_parameters: dict[str, Any] = field(default_factory=dict)  # any other sbatch option
    stderr_to_stdout: bool = False
    node_cache: str | None = None  # node-local folder for Triton, Inductor and hub caches
    follow: bool = True  # stay until the jobs have ended, then print the table of points
    poll_seconds: float = 30.0  # the longest time between two looks at the queue


def check_cluster(options: dict[str, Any]) -> None:
    """Refuse impossible options. Raises SpecError naming the key."""
    require(options["where"] in PLACES, "hydra.launcher.where", f"be in {PLACES}", options["where"])
    for bound, names in MINIMA.items():
        for name in names:
            value = options[name]
            fits = value is None or bound <= value < math.inf
            require(fits, f"hydra.launcher.{name}", f"be {bound} or more", value)
    for name in ("mem_gb", "poll_seconds"):
        value = options[name]
        fits = value is None or 0 < value < math.inf
        require(fits, f"hydra.launcher.{name}", "be above 0, and finite", value)
    gpus = [n for n in ("gpus_per_node", "gpus_per_task", "gres") if options[n] is not None]
    if len(gpus) > 1:
        raise SpecError(f"of hydra.launcher.{' and '.join(gpus)} give one: Slurm takes no two")
    late = options["signal_delay_s"] >= 60 * options["timeout_min"]
    rule = f"be below the time limit, {60 * options['timeout_min']} s"
    require(not late, "hydra.launcher.signal_delay_s", rule, options["signal_delay_s"])


def submitit_parameters(options: dict[str, Any]) -> dict[str, Any]:
    """The options in submitit's names; null ones are left out."""
    where = "slurm" if options["where"] == "slurm" else "local"
    chosen = {k: v for k, v in options.items() if k not in OURS and v not in (None, [], {})}
    if where == "local":
        kept = (*BOTH, "setup")
        chosen = {k: v for k, v in chosen.items() if k in kept}
    return {k if k in BOTH else f"{where}_{k}": v for k, v in chosen.items() if k != "_target_"}


def register() -> None:
    """Make `override /hydra/launcher: rethink` known to Hydra."""
    store = ConfigStore.instance()
    store.store(group="hydra/launcher", name="rethink", node=Cluster, provider="rethink")
