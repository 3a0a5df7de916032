"""The variables that Slurm gives to every task of a step.

Source: srun(1), "OUTPUT ENVIRONMENT VARIABLES"; sbatch(1) for those of the batch shell, in which PROCID, NODEID and
LOCALID are 0 whatever the job is. The variables of the step come before those of the job: a step may be smaller.
"""

from __future__ import annotations

from .contract import EnvError, Reader, Rendezvous, derive_port
from .hostlist import expand_task_counts, first_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def read(environ: Mapping[str, str]) -> Rendezvous | None:
    """The values of a Slurm task; None when this is none.

    Raises:
        EnvError: a shell of a job but no task (batch, allocation or attached shell), or a variable is missing or
            damaged.
    """
    if not environ.get("SLURM_PROCID"):
        if environ.get("SLURM_JOB_ID"):
            raise EnvError(
                f"this is a shell attached to Slurm job {environ['SLURM_JOB_ID']}, not one of its tasks: SLURM_PROCID, "
                "SLURM_NODEID and SLURM_LOCALID are not set; start the command with srun",
                ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"),
            )
        return None
    reader = Reader(environ)
    world_size = _world_size(reader)
    if not _step(environ) and (world_size > 1 or environ.get("SLURM_JOB_NUM_NODES", "1") != "1"):
        raise EnvError(
            f"this is the batch shell of a job with {world_size} tasks, not one of them: start the command with srun "
            "(srun shared-env exec -- CMD)",
            ("SLURM_STEP_ID",),
        )
    addr = reader.given_addr() or _rank_0_host(reader)
    port = reader.port() or _port(reader)
    return reader.finish(
        "slurm",
        addr,
        port,
        reader.number("NODE_RANK", "SLURM_NODEID"),
        reader.number("RANK", "SLURM_PROCID"),
        reader.number("LOCAL_RANK", "SLURM_LOCALID"),
        world_size,
    )


def _step(environ: Mapping[str, str]) -> str:
    """The step's number; empty in the batch shell, to which 26.05 gives the negative number of no step."""
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    return "" if step.startswith("-") else step


def _world_size(reader: Reader) -> int:
    environ = reader.environ
    if environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS"):
        return reader.number("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    # Some layouts and releases set no total.
    text = reader.text("WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    try:
        return sum(expand_task_counts(text))
    except ValueError as error:
        raise EnvError(f"{reader.sources['WORLD_SIZE']}: {error}") from None


def _port(reader: Reader) -> int:
    environ = reader.environ
    job = reader.number("MASTER_PORT", "SLURM_JOB_ID", "SLURM_JOBID")
    restarts = reader.number("MASTER_PORT", "SLURM_RESTART_COUNT") if environ.get("SLURM_RESTART_COUNT") else 0
    step = reader.number("MASTER_PORT", "SLURM_STEP_ID", "SLURM_STEPID") if _step(environ) else 0
    reader.sources["MASTER_PORT"] = "derived from SLURM_JOB_ID, SLURM_RESTART_COUNT, SLURM_STEP_ID"
    return derive_port(job, restarts, step)


def _rank_0_host(reader: Reader) -> str:
    environ = reader.environ
    if environ.get("SLURM_DISTRIBUTION") == "arbitrary":
        # The node list is sorted, so its first host need not run task 0; the host file is in task order.
        return _first_in_hostfile(reader)
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    text = reader.text("MASTER_ADDR", *names)
    source = reader.sources["MASTER_ADDR"]
    reader.sources["MASTER_ADDR"] = f"{source} (first host)"
    try:
        return first_host(text)
    except ValueError as error:
        raise EnvError(f"{source}: {error}") from None


def _first_in_hostfile(reader: Reader) -> str:
    path = reader.environ.get("SLURM_HOSTFILE", "")
    try:
        with open(path, encoding="utf-8") as lines:  # noqa: PTH123 (pathlib is slow to import)
            for line in lines:
                words = line.split("#")[0].split("*")[0].split()
                if words:
                    reader.sources["MASTER_ADDR"] = "SLURM_HOSTFILE (first host)"
                    return first_host(words[0])
    except (OSError, ValueError):
        pass
    raise EnvError(
        f"the host of task 0 is not known: the distribution is arbitrary and SLURM_HOSTFILE={path!r} names no host "
        "here; set MASTER_ADDR",
        ("MASTER_ADDR",),
    )
