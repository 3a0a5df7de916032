"""The rendezvous block of the batch shell and the task prolog, beside empty scripts and the literal preamble."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shared_env.shell import slurm_block, task_prolog

from .measure import Row, interleaved, process, ratio

ROUNDS = 200
# What the specification proposes: five exports, the first of them with two processes.
LITERAL = """\
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=${MASTER_PORT:-29500}
export NODE_RANK=$SLURM_NODEID
export RANK=$SLURM_PROCID
export WORLD_SIZE=$SLURM_NTASKS
"""
FRAGMENTS = "node[" + ",".join(f"{first:05}-{first + 2:05}" for first in range(1, 10_001, 4)) + "]"
LISTS = {"4 nodes": "node[1-4]", "10,000 nodes": "node[00001-10000]", "2,500 ranges of nodes": FRAGMENTS}


def environ(nodes: str, conf: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"], "SLURM_CONF": conf, "SLURM_JOB_ID": "4242", "SLURM_JOB_NODELIST": nodes,
        "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": nodes, "SLURM_STEP_NUM_TASKS": "4",
    }  # fmt: skip


def forks(argv: list[str], env: dict[str, str]) -> int:
    """How many processes a script starts."""
    trace = ["strace", "-f", "-qq", "-e", "trace=fork,vfork,clone,clone3", "-e", "signal=none", *argv]
    done = subprocess.run(trace, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    return sum("fork(" in line or "clone" in line for line in done.stderr.splitlines() if "resumed" not in line)


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        yield from _rows(Path(name))


def _rows(where: Path) -> Iterator[Row]:
    conf = where / "slurm.conf"  # scontrol reads it to split a host list; nothing is contacted
    conf.write_text(
        "ClusterName=bench\nSlurmctldHost=localhost(127.0.0.1)\nNodeName=localhost\nPartitionName=p Nodes=ALL\n"
    )
    texts = {"empty": "#!/bin/bash\n", "block": slurm_block(4, 4, with_prolog=False), "literal": LITERAL}
    for script, text in texts.items():
        (where / script).write_text(text)
    for title, nodes in LISTS.items():
        env = environ(nodes, str(conf))
        run = {
            script: lambda script=script, env=env: process(["/bin/bash", str(where / script)], env) for script in texts
        }
        took = interleaved(ROUNDS, **run)
        extra = 1000 * (statistics.median(took["block"]) - statistics.median(took["empty"]))
        started = forks(["/bin/bash", str(where / "block")], env)
        goal = None if nodes is FRAGMENTS else 1.1
        note = f"{extra:.2f} ms more; starts {started} processes"
        yield Row(
            f"rendezvous block, {title}",
            "an empty bash script",
            ratio(took["block"], took["empty"]),
            goal=goal,
            note=note,
        )
        yield Row(f"rendezvous block, {title}", "the literal preamble", ratio(took["block"], took["literal"]))
    (where / "prolog").write_text(task_prolog())
    for title, nodes in LISTS.items():
        env = environ(nodes, str(conf))
        run = {
            script: lambda script=script, env=env: process(["/bin/sh", str(where / script)], env)
            for script in ("empty", "prolog")
        }
        took = interleaved(ROUNDS, **run)
        yield Row(f"task prolog, {title}", "an empty sh script", ratio(took["prolog"], took["empty"]), goal=2)
