"""Which rank of a job is on which node: for a person who must find one of them."""

from __future__ import annotations

import re
from typing import NamedTuple

from shared_env import expand_nodelist

from .jobs import Job


class JobNode(NamedTuple):
    """One node of a running job. `ranks` is such as "2-3", empty where the flags leave the layout to Slurm."""

    node_rank: int
    host: str
    address: str
    gpus: str
    ranks: str


def job_nodes(job: Job) -> list[JobNode]:
    """The nodes of a job, rank 0 first; none before it runs.

    Raises:
        JobError: the job is not known, or the controller does not answer.
    """
    text = job.ask("scontrol", "--details", "show", "job", job.job_id)
    found = re.search(r"(?m)^ +NodeList=(\S+)", text)
    if not found or found[1] == "(null)":
        return []
    shown = job.ask("scontrol", "show", "node", found[1])
    addresses = dict(re.findall(r"NodeName=(\S+)[^\n]*\n(?:.*\n)*? +NodeAddr=(\S+)", shown))
    return read_nodes(text, addresses)


def read_nodes(text: str, addresses: dict[str, str]) -> list[JobNode]:
    """The nodes in the output of `scontrol --details show job`.

    >>> text = "   NodeList=n[1-2]\\n NumNodes=2 NumTasks=4 X\\n A NtasksPerN:B:S:C=2:0:*:*\\n"
    >>> read_nodes(text + "     Nodes=n[1-2] CPU_IDs=0 GRES=gpu:l4:2(IDX:0-1)\\n", {"n1": "10.0.0.1"})[0]
    JobNode(node_rank=0, host='n1', address='10.0.0.1', gpus='2 l4', ranks='0-1')
    """
    hosts = expand_nodelist(re.findall(r"(?m)^ +NodeList=(\S+)", text)[0])
    gpus = {}
    for nodes, gres in re.findall(r"(?m)^ +Nodes=(\S+) .*\bGRES=(\S*)", text):
        kinds = re.findall(r"gpu:(?:([^:(,]+):)?(\d+)", gres)
        gpus.update(
            dict.fromkeys(expand_nodelist(nodes), ", ".join(f"{count} {kind}".strip() for kind, count in kinds))
        )
    tasks, per_node = (re.search(pattern, text) for pattern in (r"\bNumTasks=(\d+)", r"\bNtasksPerN:B:S:C=(\d+):"))
    each = int(per_node[1]) if per_node else 0
    if not each and tasks and int(tasks[1]) == len(hosts):
        each = 1
    return [
        JobNode(rank, host, addresses.get(host, host), gpus.get(host, ""), _span(rank * each, each))
        for rank, host in enumerate(hosts)
    ]


def _span(first: int, count: int) -> str:
    return "" if count == 0 else str(first) if count == 1 else f"{first}-{first + count - 1}"
