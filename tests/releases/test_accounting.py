"""The status of a job from each of its sources: squeue, accounting, scontrol."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_jobs import tl_slurm, wait_for, write_task

# A job is out of squeue's and scontrol's sight this many seconds after its end.
JOB_AGE = 2


@pytest.fixture(scope="module")
def accounted() -> Iterator[Cluster]:
    with Cluster({"nodes": 2, "acct": 1, "extra_conf": f"MinJobAge={JOB_AGE}"}) as started:
        yield started


def submit(cluster: Cluster, workdir: Path, script: str, *args: str) -> str:
    path = write_task(workdir, script)
    return tl_slurm(cluster, "submit", path, *args, cwd=workdir, check=True).stdout.strip()


def forgotten(cluster: Cluster, job: str) -> bool:
    cluster.run("scontrol", "show", "jobs")  # slurmctld purges what is old when it has something to do
    return cluster.run("scontrol", "show", "job", job).returncode != 0


def test_a_job_that_slurmctld_has_forgotten_is_found_in_accounting(accounted: Cluster) -> None:
    ends = {
        "succeeded": "echo out of $SLURM_JOB_ID\n",
        "failed": "exit 3\n",
        "killed": "kill -9 $$\n",
        "cancelled": "sleep 60\n",
    }
    jobs = {end: submit(accounted, accounted.scratch, script) for end, script in ends.items()}
    wait_for(lambda: accounted.run("squeue", "-h", "-t", "R", "-j", jobs["cancelled"]).stdout != "")
    assert tl_slurm(accounted, "cancel", jobs["cancelled"]).returncode == 0
    for job in jobs.values():
        accounted.wait(job)
    wait_for(lambda: all(forgotten(accounted, job) for job in jobs.values()), 90)
    time.sleep(1)
    found = {end: json.loads(tl_slurm(accounted, "status", job, "--json").stdout) for end, job in jobs.items()}
    assert {end: (status["state"], status["raw_state"]) for end, status in found.items()} == {
        "succeeded": ("succeeded", "COMPLETED"),
        "failed": ("failed", "FAILED"),
        "killed": ("failed", "FAILED"),
        "cancelled": ("cancelled", "CANCELLED"),
    }
    assert found["failed"]["exit_code"] == 3
    assert found["failed"]["reason"] == "NonZeroExitCode"
    assert found["killed"]["signal"] == 9
    assert found["succeeded"]["nodes"].startswith(accounted.nodes[0][:-1])
    # where the log was is known to accounting since 24.05
    assert tl_slurm(accounted, "logs", jobs["succeeded"]).stdout == f"out of {jobs['succeeded']}\n"
    assert tl_slurm(accounted, "wait", jobs["failed"]).returncode == 3


def test_without_a_controller_accounting_still_answers(accounted: Cluster) -> None:
    job = submit(accounted, accounted.scratch, "true\n")
    accounted.wait(job)
    wait_for(lambda: "COMPLETED" in accounted.run("sacct", "-nXj", job, "-o", "state").stdout)
    pid = (accounted.base / "slurmctld.pid").read_text().strip()
    accounted.run("kill", pid, check=True)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    try:
        done = tl_slurm(accounted, "status", job)
        assert done.stdout.startswith(f"job {job}: COMPLETED"), done.stderr
    finally:
        accounted.start()


def test_an_unknown_job_is_an_error_in_slurms_words(accounted: Cluster) -> None:
    done = tl_slurm(accounted, "status", "999999")
    assert (done.returncode, done.stderr) == (1, "error: slurm_load_jobs error: Invalid job id specified\n")
