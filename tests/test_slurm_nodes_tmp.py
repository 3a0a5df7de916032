"""Nodes whose /tmp or home is small, closed or missing: the ranks are right by another way, or the log says why not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_jobs import PROBE, files_left, follow, job_id, probes, tl_slurm, wait_for, write_task

SRUN_PROBE = f"srun sh -c '{PROBE}'\n"
RANKS = [(0, 0, 0, 2), (1, 0, 1, 2)]
TINY = ("-t", "tmpfs", "-o", "size=4k,mode=1777", "tmpfs")
FULL = ("-t", "tmpfs", "-o", "nr_inodes=1,mode=1777", "tmpfs")
CLOSED = ("-t", "tmpfs", "-o", "ro,mode=1777", "tmpfs")
NOEXEC = ("-t", "tmpfs", "-o", "noexec,mode=1777", "tmpfs")


@contextmanager
def mounted(cluster: Cluster, nodes: tuple[int, ...], what: tuple[str, ...], where: str = "/tmp") -> Iterator[None]:
    """A mount in the namespaces of some nodes, gone afterwards."""
    with ExitStack() as stack:
        for node in nodes:
            cluster.node(node, "mount", *what, where, check=True)
            stack.callback(cluster.node, node, "umount", "--lazy", where, check=True)
        yield


@pytest.mark.parametrize("launch", ["script", "per-node"])
@pytest.mark.parametrize(
    ("nodes", "what", "reason"),
    [
        ((1, 2, 3), TINY, "No space left on device"),
        ((2,), TINY, "REQUEST_FILE_BCAST({node2})"),
        ((1,), FULL, "No space left on device"),
        ((2,), CLOSED, "REQUEST_FILE_BCAST({node2})"),
        ((1, 2, 3), NOEXEC, "noexec"),
    ],
    ids=["tiny", "tiny on the other", "full on the first", "closed on the other", "noexec"],
)
def test_broken_tmp(
    cluster: Cluster, workdir: Path, launch: str, nodes: tuple[int, ...], what: tuple[str, ...], reason: str
) -> None:
    script = SRUN_PROBE if launch == "script" else f"{PROBE}\n"
    with mounted(cluster, nodes, what):
        done = follow(cluster, workdir, script, launch=launch)
        assert done.returncode == 0, done.stdout + done.stderr
        assert [p[:4] for p in probes(done.stdout)] == RANKS
        assert reason.format(node2=cluster.nodes[1]) in done.stdout
        assert f"trying {workdir}" in done.stdout
        assert files_left(cluster, workdir) == []
    assert files_left(cluster, workdir) == []


def test_noexec_on_the_other_node_alone_is_an_error_at_once(cluster: Cluster, workdir: Path) -> None:
    """The first node cannot know it: Slurm names node and file, and no process starts with a wrong rank there."""
    with mounted(cluster, (2,), NOEXEC):
        done = follow(cluster, workdir, f"{SRUN_PROBE}")
        assert done.returncode == 1
        assert all(p.node_rank == 0 for p in probes(done.stdout))
        assert f"srun: error: {cluster.nodes[1]}: task 1" in done.stdout
        assert re.search(rf"\(/tmp/tl-multinode.{job_id(done)}.0.task-prolog\):? Permission denied", done.stdout)
        assert files_left(cluster, workdir) == []


def test_broken_tmp_and_a_private_submit_directory(cluster: Cluster, workdir: Path) -> None:
    """Submitted from a directory that no node has: the home directory is left."""
    cluster.run("mkdir", "-p", "/tmp/private", check=True)
    path = write_task(workdir, SRUN_PROBE, env={"HOME": str(workdir)})
    flags = ("--sbatch-flags", f"--output={workdir}/log")
    try:
        with mounted(cluster, (1, 2, 3), CLOSED):
            done = tl_slurm(cluster, "submit", path, "--follow", *flags, cwd="/tmp/private")
    finally:
        cluster.run("rmdir", "/tmp/private", check=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p[:4] for p in probes(done.stdout)] == RANKS
    assert re.search(rf"trying /tmp/private\n(.*\n)+.*trying {workdir}\n", done.stdout), done.stdout
    assert files_left(cluster, workdir) == []


def test_a_directory_that_one_node_lacks(cluster: Cluster, workdir: Path) -> None:
    with mounted(cluster, (1,), CLOSED), mounted(cluster, (2,), TINY, str(workdir)):
        script = "srun sh -c 'echo rank=${RANK-unset}'\n"
        setup = f"export HOME={workdir}/absent\n"
        done = follow(cluster, workdir, script, setup=setup)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("rank=unset") == 2
        assert f"{cluster.nodes[1]} cannot run a file in {workdir}" in done.stdout
        assert "going on without a task prolog" in done.stdout
        assert files_left(cluster, workdir) == []


PLANTED = ("ln -s /tmp/target {name}", "mkfifo {name}", "ln -s {device} {name}")


@pytest.mark.parametrize("plant", PLANTED, ids=["dangling link", "pipe", "link to a device"])
@pytest.mark.parametrize(("node", "kind"), [(1, "src.task-prolog"), (1, "task-prolog"), (2, "task-prolog")])
def test_planted_files_are_not_followed(cluster: Cluster, workdir: Path, plant: str, node: int, kind: str) -> None:
    """/tmp is everybody's, and the next job id is easy to guess."""
    job = int(cluster.sbatch("true", cwd=workdir))
    name = f"/tmp/tl-multinode.{job + 1}.0.{kind}"
    device = cluster.base / "dev" / "fake0"
    before = device.stat()
    cluster.node(node, "sh", "-c", plant.format(name=name, device=device), check=True)
    done = follow(cluster, workdir, SRUN_PROBE)
    assert job_id(done) == str(job + 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p[:4] for p in probes(done.stdout)] == RANKS
    assert f"trying {workdir}" in done.stdout
    assert cluster.node(node, "test", "-e", "/tmp/target").returncode == 1
    assert device.stat().st_mode == before.st_mode


HOMES: dict[str, tuple[str, dict[str, str]]] = {
    "HOME unset": ("unset HOME\n", {}),
    "HOME missing": ("", {"HOME": "/nonexistent"}),
    "TMPDIR missing": ("", {"TMPDIR": "/dev/null/absent"}),
    "TMPDIR odd": ("", {"TMPDIR": "it's $(odd) * \n", "TMP": "", "TEMP": "/dev/null"}),
}


@pytest.mark.parametrize(("setup", "env"), HOMES.values(), ids=HOMES)
def test_home_and_tmpdir_do_not_matter(cluster: Cluster, workdir: Path, setup: str, env: dict[str, str]) -> None:
    done = follow(cluster, workdir, f"set -u\n{SRUN_PROBE}", setup=f"set -u\n{setup}", env_=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p[:4] for p in probes(done.stdout)] == RANKS
    assert "tl-multinode" not in done.stdout
    assert files_left(cluster, workdir) == []


@pytest.mark.parametrize("what", ["read-only", "not there"])
def test_no_home_on_the_nodes(cluster: Cluster, workdir: Path, what: str) -> None:
    if what == "read-only":
        mount, where = ("--bind", "-o", "ro", "/root"), "/root"
    else:
        (workdir / "passwd").write_text(Path("/etc/passwd").read_text().replace(":/root:", ":/nonexistent:"))
        mount, where = ("--bind", str(workdir / "passwd")), "/etc/passwd"
    with mounted(cluster, (1, 2, 3), mount, where):
        done = follow(cluster, workdir, SRUN_PROBE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p[:4] for p in probes(done.stdout)] == RANKS
    assert "tl-multinode" not in done.stdout
    assert files_left(cluster, workdir) == []


@pytest.mark.one_release  # in others slurmstepd starts itself again for the task prolog, through the wrapper
def test_tmp_that_sbcast_does_not_see(make_cluster: Callable[..., Cluster]) -> None:
    """Some sites give each job its /tmp in slurmstepd (a SPANK plugin); sbcast writes to the node's own."""
    cluster = make_cluster(nodes=2)
    real = cluster.base / "slurmstepd"
    for node in (1, 2):
        cluster.node(node, "sh", "-c", f"mkdir {cluster.base}/private.$(hostname)", check=True)
    stepd = cluster.base / "wrapper"
    stepd.write_text(
        "#!/bin/sh\nexec unshare --mount --propagation private sh -c \\\n"
        f'  \'mount --bind {cluster.base}/private.$(hostname) /tmp && exec {real} "$@"\' slurmstepd "$@"\n'
    )
    stepd.chmod(0o755)
    cluster.run("sh", "-c", f'cp "$(command -v slurmstepd)" {real}', check=True)
    for node in (1, 2):
        cluster.node(node, "sh", "-c", f'mount --bind {stepd} "$(command -v slurmstepd)"', check=True)
    done = follow(cluster, cluster.scratch, SRUN_PROBE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p[:4] for p in probes(done.stdout)] == RANKS
    assert f"not the one that sbcast writes to); trying {cluster.scratch}" in done.stdout
    # known: what sbcast wrote is out of the job's reach
    left = [f"{host}:/tmp/tl-multinode.{job_id(done)}.0.task-prolog" for host in cluster.nodes]
    assert files_left(cluster, cluster.scratch) == left


@pytest.mark.one_release
def test_a_private_tmp_for_each_job(make_cluster: Callable[..., Cluster]) -> None:
    """With Slurm's own plugin (job_container/tmpfs), sbcast writes to the /tmp of the job."""
    cpus = os.sched_getaffinity(0)
    # On one CPU: newer kernels number namespaces for each CPU apart, and refuse to bind one with a smaller number.
    os.sched_setaffinity(0, {min(cpus)})
    try:
        cluster = make_cluster(nodes=2, private_tmp=1)
    finally:
        os.sched_setaffinity(0, cpus)
    script = f"{SRUN_PROBE}srun sh -c 'ls -d /tmp/tl-multinode.*'\n"
    done = follow(cluster, cluster.scratch, script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p[:4] for p in probes(done.stdout)] == RANKS
    assert done.stdout.count(f"/tmp/tl-multinode.{job_id(done)}.0.task-prolog\n") == 2
    assert "trying" not in done.stdout
    assert files_left(cluster, cluster.scratch) == []
    # and when it is cancelled, Slurm takes the job's /tmp away
    path = write_task(cluster.scratch, "touch running\nsleep 60\n", name="sleep.yaml")
    job = tl_slurm(cluster, "submit", path, cwd=cluster.scratch, check=True).stdout.strip()
    wait_for((cluster.scratch / "running").exists)
    cluster.run("scancel", job, check=True)
    cluster.wait(job)
    assert files_left(cluster, cluster.scratch) == []
    wait_for(lambda: not list(cluster.base.glob("private.*/*/*/.*/*")))
