"""A thousand submissions at once: every one is a job of its own, and nothing is left in the process that made them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from cluster import Cluster
from slurm_jobs import BACKEND, PYTHON

TOTAL, WORKERS = 1000, 8
# Submits the jobs n<FIRST> to n<LAST - 1>; prints their ids, and what the process holds before and after.
SUBMIT = """
import json, os, sys
from concurrent.futures import ThreadPoolExecutor
from tl_slurm_adapter import submit

first, last, threads = map(int, sys.argv[1:4])

def one(number):
    job = submit("srun hostname\\n", num_nodes=2, job_name=f"n{number}", backend=sys.argv[4], sbatch_flags="--hold")
    return job.job_id

def holds():
    try:
        os.waitpid(-1, os.WNOHANG)
        children = True
    except ChildProcessError:
        children = False
    return [len(os.listdir("/proc/self/fd")), children]

jobs = {f"n{first}": one(first)}  # after it, what is loaded once is there
before = holds()
with ThreadPoolExecutor(threads) as pool:
    numbers = range(first + 1, last)
    jobs.update(zip((f"n{number}" for number in numbers), pool.map(one, numbers)))
print(json.dumps({"jobs": jobs, "before": before, "after": holds()}))
"""


def start(cluster: Cluster, first: int, last: int, threads: int) -> subprocess.Popen[str]:
    return cluster.popen(
        PYTHON, "-c", SUBMIT, *map(str, (first, last, threads)), BACKEND or "sbatch",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=110)
    assert (process.returncode, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    assert found["before"][1] is False
    assert found["after"] == found["before"]  # open files, children that live or were not waited for
    return found


def named(cluster: Cluster) -> dict[str, str]:
    """The id of each job of the cluster, by name; there must be no two of a name."""
    lines = cluster.run("squeue", "--noheader", "--states=all", "--format=%j %i", check=True).stdout.splitlines()
    found = dict(line.split() for line in lines)
    assert len(found) == len(lines)
    return found


def test_a_thousand_submissions_from_eight_threads(make_cluster) -> None:
    cluster = make_cluster(nodes=2)
    jobs = result(start(cluster, 0, TOTAL, WORKERS))["jobs"]
    assert len(jobs) == TOTAL
    assert jobs == named(cluster)


def test_a_thousand_submissions_from_eight_processes(make_cluster) -> None:
    cluster = make_cluster(nodes=2)
    each = TOTAL // WORKERS
    running = [start(cluster, first, first + each, 1) for first in range(0, TOTAL, each)]
    jobs: dict[str, str] = {}
    for process in running:
        jobs.update(result(process)["jobs"])
    assert len(jobs) == TOTAL
    assert jobs == named(cluster)
