"""The contract: six variables that every process of a multi-node task can rely on."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE")

# Derived ports lie above the privileged ones and below the kernel's ephemeral range (32768-60999 by default, see
# ip(7), ip_local_port_range), so that no outgoing connection of the node can hold them.
PORT_FIRST = 10000
PORT_COUNT = 22768
# Far apart, so that the steps and restarts of one job do not meet those of the jobs with the next ids.
PORT_STEP = 14071
PORT_RESTART = 9349
# Slurm numbers its special steps (batch, extern, interactive) downwards from 2^32.
FIRST_SPECIAL_STEP = 10_000_000


class EnvError(RuntimeError):
    """The environment does not describe one process of a multi-node task.

    Attributes:
        missing: names of the variables that would have to be set.
    """

    def __init__(self, message: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


class Rendezvous:
    """The six values of one process, as numbers and text.

    Args:
        master_addr: host name or address of the process with rank 0.
        master_port: TCP port on that host, 1..65535.
        node_rank: number of this node, from 0.
        rank: number of this process in the whole task, 0..world_size-1.
        local_rank: number of this process on its node, from 0.
        world_size: number of processes in the whole task.
        system: what started the process: "slurm", "skypilot", "torchrun", "openmpi" or "pmi".
        sources: for each of the six names, the variable or rule that its value comes from.

    Raises:
        ValueError: a value is outside its range.

    >>> Rendezvous("n1", 29500, 1, 1, 0, 2).as_env()["WORLD_SIZE"]
    '2'
    """

    __slots__ = (
        "local_rank",
        "master_addr",
        "master_port",
        "node_rank",
        "rank",
        "sources",
        "system",
        "world_size",
    )

    def __init__(
        self,
        master_addr: str,
        master_port: int,
        node_rank: int,
        rank: int,
        local_rank: int,
        world_size: int,
        system: str = "",
        sources: Mapping[str, str] | None = None,
    ) -> None:
        if not master_addr:
            raise ValueError("MASTER_ADDR is empty")
        if not 1 <= master_port <= 65535:
            raise ValueError(f"MASTER_PORT={master_port} is not a port: give a number from 1024 to 65535")
        if not 0 <= rank < world_size:
            raise ValueError(f"RANK={rank} is not in 0..{world_size - 1} (WORLD_SIZE={world_size})")
        for name, value in (("NODE_RANK", node_rank), ("LOCAL_RANK", local_rank)):
            if not 0 <= value < world_size:
                raise ValueError(f"{name}={value} is not in 0..{world_size - 1} (WORLD_SIZE={world_size})")
        self.master_addr = master_addr
        self.master_port = master_port
        self.node_rank = node_rank
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self.system = system
        self.sources = dict(sources or {})

    def as_env(self) -> dict[str, str]:
        """The six variables, as text for an environment."""
        return {name: str(getattr(self, name.lower())) for name in NAMES}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rendezvous) and self.as_env() == other.as_env()

    def __hash__(self) -> int:
        return hash(tuple(self.as_env().values()))

    def __repr__(self) -> str:
        return "Rendezvous(" + ", ".join(f"{k.lower()}={getattr(self, k.lower())!r}" for k in NAMES) + ")"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Rendezvous:
        """Read the variables that Slurm, SkyPilot, torchrun or an MPI launcher gave to one process.

        A process that torchrun or an MPI launcher started keeps the rank from there; then SkyPilot is asked before
        Slurm, because SkyPilot on Slurm has the variables of both. MASTER_ADDR and MASTER_PORT win when they are set.

        Args:
            environ: the environment of that process; `os.environ` when left out.

        Raises:
            EnvError: this is no task of a launcher (a batch shell, an attached shell, a login shell), or a variable
                is missing or damaged; the message says which, and what to do.

        >>> Rendezvous.from_environ({"SKYPILOT_NODE_IPS": "10.0.0.1\\n10.0.0.2", "SKYPILOT_NUM_NODES": "2",
        ...     "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_GPUS_PER_NODE": "4"}).world_size
        8
        """
        if environ is None:
            import os

            environ = os.environ
        from . import launchers, skypilot, slurm

        for reader in (launchers, skypilot, slurm):
            values: Rendezvous | None = reader.read(environ)
            if values is not None:
                return values
        raise EnvError(
            "this process is not part of a multi-node task: none of SLURM_PROCID, SKYPILOT_NODE_RANK, "
            "TORCHELASTIC_RUN_ID, OMPI_COMM_WORLD_RANK, PMI_RANK is set; start it with srun, torchrun or mpirun",
            ("SLURM_PROCID", "SKYPILOT_NODE_RANK"),
        )


def derive_port(job_id: int, restart_count: int = 0, step_id: int = 0) -> int:
    """The MASTER_PORT of one Slurm step, in 10000..32767: the same number in every task, without talking.

    Step 0 has the port of the batch shell. Two jobs whose ids differ by a multiple of 22768 share a port, which
    matters only when they share a node.

    >>> derive_port(4242), derive_port(4242, restart_count=1), derive_port(4242, step_id=1)
    (14242, 23591, 28313)
    """
    if min(job_id, restart_count, step_id) < 0:
        raise ValueError(f"job id, restart count and step id are not negative: {job_id}, {restart_count}, {step_id}")
    if step_id >= FIRST_SPECIAL_STEP:
        step_id = 0
    return PORT_FIRST + (job_id + PORT_RESTART * restart_count + PORT_STEP * step_id) % PORT_COUNT


class Reader:
    """The native variables of one process, read with readable errors."""

    __slots__ = ("environ", "sources")

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.sources: dict[str, str] = {}

    def text(self, name: str, *variables: str) -> str:
        """The first of `variables` that is set and not empty, noted as the source of `name`."""
        for variable in variables:
            value = self.environ.get(variable)
            if value:
                self.sources[name] = variable
                return value
        raise EnvError(f"{name} is not known: {' and '.join(variables)} not set", variables)

    def number(self, name: str, *variables: str) -> int:
        """Like `text`, a number >= 0."""
        value = self.text(name, *variables)
        if not (value.isascii() and value.isdigit()):
            raise EnvError(f"{self.sources[name]}={value!r} is not a number")
        return int(value)

    def port(self) -> int | None:
        """MASTER_PORT where it is given."""
        if not self.environ.get("MASTER_PORT"):
            return None
        port = self.number("MASTER_PORT", "MASTER_PORT")
        if not 1 <= port <= 65535:
            raise EnvError(f"MASTER_PORT={port} is not a port: give a number from 1024 to 65535")
        return port

    def given_addr(self) -> str | None:
        """MASTER_ADDR where it is given."""
        return self.text("MASTER_ADDR", "MASTER_ADDR") if self.environ.get("MASTER_ADDR") else None

    def finish(
        self, system: str, master_addr: str, master_port: int, node_rank: int, rank: int, local_rank: int, size: int
    ) -> Rendezvous:
        """The Rendezvous; ranges that do not fit are an EnvError."""
        try:
            return Rendezvous(master_addr, master_port, node_rank, rank, local_rank, size, system, self.sources)
        except ValueError as error:
            raise EnvError(f"{error}; the variables of this process contradict each other") from None
