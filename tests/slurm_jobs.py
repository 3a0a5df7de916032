"""Helpers for tests that run tasks on the real cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from cluster import Cluster

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PYTHON = sys.executable
BACKEND = os.environ.get("TL_TEST_BACKEND", "")
# One line per process, with the values it finds and the host it is on.
PROBE = (
    'echo "probe $RANK $LOCAL_RANK $NODE_RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT $(hostname) ${SLURM_STEP_ID:-none}"'
)


class Probe(NamedTuple):
    """What one process found."""

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    master_addr: str
    master_port: int
    host: str
    step: str


def probes(text: str) -> list[Probe]:
    """The lines of PROBE in a log, by step and rank."""
    # On a terminal other characters may stand before it.
    found = [line.split() for line in re.findall(r"probe (\d[^\r\n]*)", text)]
    return sorted(
        (Probe(*map(int, words[:4]), words[4], int(words[5]), words[6], words[7]) for words in found),
        key=lambda probe: (probe.step, probe.rank),
    )


def sums(text: str) -> list[tuple[int, int, str, str]]:
    """(rank, world size, host, sum) of each line that examples/train.py prints, by rank."""
    return sorted(
        (int(rank), int(size), host, total)
        for rank, size, host, total in re.findall(r"rank (\d+) of (\d+) on (\S+) \([^)]*\): sum (\d+)", text)
    )


def write_task(workdir: Path, script: str, name: str = "task.yaml", **keys: Any) -> Path:
    """A task.yaml for two nodes unless `resources` says otherwise; `env_` and `name_` are its env and name."""
    keys = {key.rstrip("_"): value for key, value in keys.items()}
    task = {"resources": {"provider": "slurm", "num_nodes": 2}, **keys, "script": script}
    path = workdir / name
    path.write_text(yaml.safe_dump(task, sort_keys=False, allow_unicode=True))
    return path


def tl_slurm(cluster: Cluster, *args: Any, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run tl-slurm on the login host; test_releases.py chooses the way in which it submits."""
    if args[0] == "submit" and BACKEND and not any(str(arg).startswith("--backend") for arg in args):
        args = (*args, "--backend", BACKEND)
    return cluster.run(PYTHON, "-m", "tl_slurm_adapter.cli", *map(str, args), **{"timeout": 100, **kwargs})


def follow(
    cluster: Cluster, workdir: Path, script: str, *args: str, env: dict[str, str | None] | None = None, **keys: Any
) -> subprocess.CompletedProcess[str]:
    """Submit a script for two nodes and follow it to its end; stdout is the job's log."""
    path = write_task(workdir, script, **keys)
    return tl_slurm(cluster, "submit", path, "--follow", *args, cwd=workdir, env=env)


def job_id(done: subprocess.CompletedProcess[str]) -> str:
    """The id in the messages of `submit --follow`."""
    found = re.search(r"submitted job (\d+)", done.stderr)
    assert found, done.stderr
    return found[1]


def files_left(cluster: Cluster, workdir: Path) -> list[str]:
    """Files of ours on the login host, on any node, or in the submit directory."""
    left = [str(path) for path in workdir.rglob("*tl-multinode*")]
    for host in (cluster.login, *cluster.nodes):
        done = cluster.run("find", "/tmp", "-name", "*tl-multinode*", host=host)
        left += [f"{host}:{line}" for line in done.stdout.split()]
    return left


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until `condition()` is true; an AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
