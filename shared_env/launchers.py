"""Processes that torchrun, Open MPI or a PMI launcher started: their rank is the launcher's.

Sources: torch's "torchrun" page (environment variables), Open MPI's mpirun(1), and the names that MPICH's hydra sets.
"""

from __future__ import annotations

from .contract import EnvError, Reader, Rendezvous, derive_port
from .hostlist import expand_nodelist, first_host
from .skypilot import DEFAULT_PORT, node_ips

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def read(environ: Mapping[str, str]) -> Rendezvous | None:
    """The values of a process that a launcher inside the job started; None when this is none.

    Raises:
        EnvError: a variable is missing or damaged, or the host of rank 0 cannot be known.
    """
    if environ.get("TORCHELASTIC_RUN_ID") and environ.get("RANK"):
        return _torchrun(Reader(environ))
    if environ.get("OMPI_COMM_WORLD_RANK"):
        return _mpi(Reader(environ), "openmpi", "OMPI_COMM_WORLD_{}")
    # srun's own PMI plugins set PMI_RANK too, equal to SLURM_PROCID: that is a Slurm task (or a SkyPilot node).
    if environ.get("PMI_RANK") and (environ["PMI_RANK"], environ.get("PMI_SIZE")) != (
        environ.get("SLURM_PROCID"),
        environ.get("SLURM_STEP_NUM_TASKS", environ.get("SLURM_NTASKS")),
    ):
        return _mpi(Reader(environ), "pmi", "PMI_{}")
    return None


def _torchrun(reader: Reader) -> Rendezvous:
    port = reader.port()
    if port is None:
        raise EnvError("MASTER_PORT is not set in a process of torchrun", ("MASTER_PORT",))
    return reader.finish(
        "torchrun",
        reader.text("MASTER_ADDR", "MASTER_ADDR"),
        port,
        reader.number("NODE_RANK", "GROUP_RANK"),
        reader.number("RANK", "RANK"),
        reader.number("LOCAL_RANK", "LOCAL_RANK"),
        reader.number("WORLD_SIZE", "WORLD_SIZE"),
    )


def _mpi(reader: Reader, system: str, names: str) -> Rendezvous:
    rank = reader.number("RANK", names.format("RANK"))
    size = reader.number("WORLD_SIZE", names.format("SIZE"))
    local = reader.number("LOCAL_RANK", names.format("LOCAL_RANK"), "MPI_LOCALRANKID")
    return reader.finish(system, _addr(reader), _port(reader), _node_rank(reader, rank, size), rank, local, size)


def _addr(reader: Reader) -> str:
    environ = reader.environ
    given = reader.given_addr()
    if given:
        return given
    ips = node_ips(environ.get("SKYPILOT_NODE_IPS", ""))
    if ips:
        reader.sources["MASTER_ADDR"] = "SKYPILOT_NODE_IPS (first line)"
        return ips[0]
    # mpirun fills the nodes of the allocation in their order.
    text = reader.text("MASTER_ADDR", "SLURM_JOB_NODELIST")
    reader.sources["MASTER_ADDR"] += " (first host)"
    return first_host(text)


def _port(reader: Reader) -> int:
    given = reader.port()
    if given is not None:
        return given
    if reader.environ.get("SKYPILOT_NODE_IPS"):
        reader.sources["MASTER_PORT"] = f"{DEFAULT_PORT} (default on SkyPilot)"
        return DEFAULT_PORT
    job = reader.number("MASTER_PORT", "SLURM_JOB_ID")
    restarts = reader.environ.get("SLURM_RESTART_COUNT", "")
    reader.sources["MASTER_PORT"] = "derived from SLURM_JOB_ID, SLURM_RESTART_COUNT"
    return derive_port(job, int(restarts) if restarts.isdigit() else 0)


def _node_rank(reader: Reader, rank: int, size: int) -> int:
    environ = reader.environ
    if environ.get("SKYPILOT_NODE_RANK"):
        return reader.number("NODE_RANK", "SKYPILOT_NODE_RANK")
    # mpirun starts its daemons with an srun of their own, so SLURM_NODEID counts other nodes: the name is reliable.
    hosts, here = environ.get("SLURM_JOB_NODELIST"), environ.get("SLURMD_NODENAME")
    if hosts and here and here in (names := expand_nodelist(hosts)):
        reader.sources["NODE_RANK"] = "SLURMD_NODENAME in SLURM_JOB_NODELIST"
        return names.index(here)
    local_size = reader.number("NODE_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    if local_size < 1 or size % local_size:
        raise EnvError("NODE_RANK is not known: the nodes run different numbers of processes; set SLURMD_NODENAME")
    reader.sources["NODE_RANK"] = "RANK // processes on this node"
    return rank // local_size
