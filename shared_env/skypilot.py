"""The variables that SkyPilot gives to the run command of every node.

Source: SkyPilot's documentation, "Environment variables for `run`"; SKYPILOT_NODE_IPS has one address a line, the
first one is rank 0. One process a node is started, so RANK is the node rank and LOCAL_RANK 0.
"""

from __future__ import annotations

from .contract import PORT_COUNT, PORT_FIRST, EnvError, Reader, Rendezvous

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PORT = 29500


def node_ips(text: str) -> list[str]:
    r"""The addresses in SKYPILOT_NODE_IPS, rank 0 first; blank lines and carriage returns do not count.

    >>> node_ips("10.0.0.1\r\n\n10.0.0.2\n")
    ['10.0.0.1', '10.0.0.2']
    """
    return [line.strip() for line in text.splitlines() if line.strip()]


def task_port(task_id: str) -> int:
    """The MASTER_PORT of one SkyPilot job where MASTER_PORT=auto asks for it, in 10000..32767.

    It is the number that the digits of SKYPILOT_TASK_ID spell (a time in microseconds and the job's number), so it is
    the same on every node of a job, and jobs that run at once on one cluster have different ones but for a rare chance.

    Raises:
        EnvError: there is no digit.

    >>> task_port("sky-2026-11-02-09-15-22-401893_trainer_3"), task_port("sky-2026-11-02-09-15-22-401893_trainer_4")
    (28373, 28374)
    """
    digits = [char for char in task_id if char in "0123456789"]
    if not digits:
        raise EnvError(
            f"MASTER_PORT is auto, but SKYPILOT_TASK_ID={task_id!r} has no number: give a port", ("SKYPILOT_TASK_ID",)
        )
    number = 0
    for digit in digits:
        number = (number * 10 + int(digit)) % PORT_COUNT
    return PORT_FIRST + number


def read(environ: Mapping[str, str]) -> Rendezvous | None:
    """The values of a SkyPilot node; None when this is none.

    Raises:
        EnvError: a variable is missing or damaged, or the number of addresses is not the number of nodes.
    """
    if not environ.get("SKYPILOT_NODE_RANK"):
        if environ.get("SKYPILOT_SETUP_NODE_RANK"):
            raise EnvError(
                "this is SkyPilot's setup, before the nodes meet: SKYPILOT_NODE_RANK exists in run only",
                ("SKYPILOT_NODE_RANK",),
            )
        return None
    reader = Reader(environ)
    nodes = reader.number("WORLD_SIZE", "SKYPILOT_NUM_NODES")
    rank = reader.number("NODE_RANK", "SKYPILOT_NODE_RANK")
    ips = node_ips(environ.get("SKYPILOT_NODE_IPS", ""))
    if len(ips) != nodes:
        raise EnvError(
            f"SKYPILOT_NODE_IPS has {len(ips)} addresses for SKYPILOT_NUM_NODES={nodes} nodes", ("SKYPILOT_NODE_IPS",)
        )
    gpus = reader.number("WORLD_SIZE", "SKYPILOT_NUM_GPUS_PER_NODE") if environ.get("SKYPILOT_NUM_GPUS_PER_NODE") else 0
    reader.sources["WORLD_SIZE"] = "SKYPILOT_NUM_NODES * max(1, SKYPILOT_NUM_GPUS_PER_NODE)"
    reader.sources["RANK"] = "SKYPILOT_NODE_RANK"
    reader.sources["LOCAL_RANK"] = "0 (one process a node)"
    addr = reader.given_addr()
    if addr is None:
        addr, reader.sources["MASTER_ADDR"] = ips[0], "SKYPILOT_NODE_IPS (first line)"
    if environ.get("MASTER_PORT") == "auto":
        port: int | None = task_port(environ.get("SKYPILOT_TASK_ID", ""))
        reader.sources["MASTER_PORT"] = "SKYPILOT_TASK_ID (auto)"
    else:
        port = reader.port()
    if port is None:
        port, reader.sources["MASTER_PORT"] = DEFAULT_PORT, f"{DEFAULT_PORT} (default on SkyPilot)"
    return reader.finish("skypilot", addr, port, rank, rank, 0, nodes * max(1, gpus))
