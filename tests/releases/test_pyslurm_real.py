"""The real pyslurm beside a real Slurm: every option, refusals, several clusters and threads in one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest
from cluster import Cluster
from slurm_jobs import PYTHON, tl_slurm, write_task

from tl_slurm_adapter.option_table import TABLE, Spec

# Rows whose attribute only other releases of pyslurm have.
NOT_IN_25_11 = {"container-type", "power"}


def run_python(cluster: Cluster, code: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return cluster.run(PYTHON, "-c", code, timeout=100, **kwargs)


def test_every_row_of_the_option_table_is_an_attribute_or_an_error(cluster: Cluster) -> None:
    code = "import pyslurm; print(*(name for name in dir(pyslurm.JobSubmitDescription) if name[0] != '_'))"
    known = set(run_python(cluster, code, check=True).stdout.split())

    def has(spec: Spec) -> bool:
        return spec.name == "export" or not known.isdisjoint(spec.pyslurm or ())

    rows = [spec for spec in TABLE.values() if spec.pyslurm and not spec.refused]
    assert len(rows) > 70
    assert {spec.name for spec in rows if not has(spec)} == NOT_IN_25_11
    cannot = [spec for spec in TABLE.values() if not has(spec) and not spec.refused]
    task = write_task(cluster.scratch, "true\n", resources={"provider": "slurm"})
    for spec in cannot:
        flag = f"--{spec.name}" if spec.kind == "none" else f"--{spec.name}=1"
        done = tl_slurm(cluster, "submit", task, "--backend=pyslurm", "--sbatch-flags", flag)
        assert (done.returncode, done.stdout) == (1, "")
        assert flag in done.stderr
        assert "submit with backend sbatch" in done.stderr or "clusters" in flag
    assert cluster.run("squeue", "--noheader").stdout == ""


def test_auto_uses_pyslurm_and_says_why_when_it_does_not(cluster: Cluster) -> None:
    task = write_task(cluster.scratch, "true\n")

    def facts(*flags: str) -> tuple[str, str]:
        done = tl_slurm(
            cluster, "submit", task, "--backend=auto", "--json", "--sbatch-flags", " ".join(flags), check=True
        )
        job = json.loads(done.stdout)
        assert cluster.wait(job["job_id"]) == "COMPLETED"
        return job["backend"], job["note"]

    assert facts("-t 5") == ("pyslurm", "")
    backend, note = facts("-t 5", "--mail-type=ALL")
    assert backend == "sbatch"
    assert note.startswith("sbatch was used: ")
    assert "--mail-type=ALL" in note


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("-p nowhere", "Invalid partition name specified"),
        ("--mem=2T", "Requested node configuration is not available"),
        ("--gres=warp:1", "Invalid generic resource (gres) specification"),
        ("--array=0-99999999", "Invalid job array specification"),
        ("--dependency=after:no", "Job dependency problem"),
    ],
)
def test_a_refusal_is_one_line_in_slurms_words(cluster: Cluster, flags: str, words: str) -> None:
    task = write_task(cluster.scratch, "true\n")
    done = tl_slurm(cluster, "submit", task, "--backend=pyslurm", "--sbatch-flags", flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: Slurm did not take the job: ")
    assert done.stderr.endswith(f"{words}\n")
    assert done.stderr.count("\n") == 1


def test_threads_other_configurations_and_torch_in_one_process(cluster: Cluster) -> None:
    # another configuration of the same cluster, in which nobody listens at the controller's port
    other = cluster.scratch / "other.conf"
    other.write_text(f"{cluster.conf.read_text()}\nSlurmctldPort=1\nMessageTimeout=2\n")
    code = f"""
import os, sys
from concurrent.futures import ThreadPoolExecutor
from tl_slurm_adapter import SubmitError, submit
flags, environ = sys.getdlopenflags(), dict(os.environ)
with ThreadPoolExecutor(8) as pool:
    jobs = list(pool.map(lambda n: submit("true\\n", job_name=f"n{{n}}", backend="pyslurm").job_id, range(40)))
assert len(set(jobs)) == 40
assert (flags, environ) == (sys.getdlopenflags(), dict(os.environ))
import torch
assert torch.ones(2).sum() == 2
os.environ["SLURM_CONF"] = {str(other)!r}
try:
    submit("true\\n", backend="pyslurm")
except SubmitError as error:
    print(error)
os.environ["SLURM_CONF"] = {str(cluster.conf)!r}
print(submit("true\\n", job_name="back", backend="pyslurm", sbatch_flags="--hold").job_id)
"""
    done = run_python(cluster, code)
    assert (done.returncode, done.stderr) == (0, "")
    refusal, back = done.stdout.splitlines()
    assert refusal.startswith("Slurm did not take the job: ")
    assert "Unable to contact slurm controller" in refusal
    assert "JobName=back" in cluster.run("scontrol", "show", "job", back, check=True).stdout


def test_without_a_slurm_conf_the_caller_survives(cluster: Cluster) -> None:
    code = """
from tl_slurm_adapter import SubmitError, submit
for backend in ("pyslurm", "auto"):
    try:
        submit("true\\n", backend=backend)
    except SubmitError as error:
        print(error)
"""
    done = run_python(cluster, code, env={"SLURM_CONF": None})
    assert done.returncode == 0, done.stderr
    pyslurm, auto = done.stdout.splitlines()
    assert pyslurm.startswith("pyslurm cannot be imported here: ")
    assert "configuration source" in pyslurm
    assert auto.startswith("Slurm did not take the job: ")


def test_long_and_foreign_values_arrive(cluster: Cluster) -> None:
    long = "x" * 100_000
    task = write_task(cluster.scratch, 'echo "${#LONG} $UMLAUT $LINES_"\n', env_={"UMLAUT": "äöü€", "LINES_": "a\nb"})
    done = tl_slurm(
        cluster, "submit", task, "--backend=pyslurm", "--follow", cwd=cluster.scratch, env={"LONG": long, "UTF": "ß"}
    )
    assert done.stdout == "100000 äöü€ a\nb\n", done.stderr


def test_an_answer_that_comes_too_late(make_cluster) -> None:
    cluster = make_cluster(nodes=1, extra_conf="MessageTimeout=2")
    code = f"""
import os, signal
from tl_slurm_adapter import submit
# The first one asks for the cluster's configuration, too.
submit("true\\n", job_name="first", backend="pyslurm", sbatch_flags="--hold")
os.kill({cluster.controller}, signal.SIGSTOP)
def tell(text):
    print(text)
    os.kill({cluster.controller}, signal.SIGCONT)
print(submit("true\\n", job_name="late", backend="pyslurm", sbatch_flags="--hold", on_retry=tell).job_id)
"""
    try:
        done = run_python(cluster, code)
    finally:
        os.kill(cluster.controller, signal.SIGCONT)
    assert done.returncode == 0, done.stderr
    said, job = done.stdout.splitlines()
    assert "looking whether the job arrived" in said
    assert cluster.run("squeue", "--noheader", "--name=late", "--format=%i").stdout.split() == [job]
