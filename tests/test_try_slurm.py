"""`shared-env try` beside a real Slurm: the same variables, and a local cluster for scripts that call srun."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_jobs import EXAMPLES, tl_slurm, write_task
from try_runs import PATH, Directory, lines_of, read_until

from shared_env import check, load_task
from shared_env.local import TryError
from shared_env.local import cluster as local_cluster

DUMP = 'env -0 > "task.$SLURM_NODEID.part" && mv "task.$SLURM_NODEID.part" "task.$SLURM_NODEID"'
OURS = re.compile(r"SLURM|PET_|MASTER_|NODE_RANK$|RANK$|LOCAL_RANK$|WORLD_SIZE$|CUDA_VISIBLE_DEVICES$|ENVIRONMENT$")
# Of a network, a configuration or a release: nothing that a script may rely on.
NOT_PLAYED = {
    "SLURM_CONF", "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_MEM_PER_CPU",
    "SLURM_NODE_ALIASES", "SLURM_PRIO_PROCESS", "SLURM_SCRIPT_CONTEXT", "SLURM_SRUN_COMM_HOST", "SLURM_SRUN_COMM_PORT",
    "SLURM_STEP_LAUNCHER_PORT", "SLURM_TASK_PID", "SLURM_TASK_PROLOG", "SLURM_TOPOLOGY_ADDR",
    "SLURM_TOPOLOGY_ADDR_PATTERN", "SLURM_UMASK", "SLURM_WORKING_CLUSTER",
}  # fmt: skip
# The machine is another one, the job has another id.
OTHER_VALUE = {
    "MASTER_ADDR", "MASTER_PORT", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ID", "SLURMD_NODENAME",
    "SLURM_CLUSTER_NAME", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_JOBID", "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_PARTITION", "SLURM_NODELIST", "SLURM_STEP_NODELIST",
    "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "SLURM_JOB_USER",
}  # fmt: skip
SRUN = "srun bash -c 'echo \"rank $RANK of $WORLD_SIZE on $(hostname)\"'\n"


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def variables(path: Path) -> dict[str, str]:
    pairs = (pair.split("=", 1) for pair in path.read_text().split("\0") if "=" in pair)
    return {name: value for name, value in pairs if OURS.match(name)}


@pytest.mark.parametrize("accelerators", [None, "L4:2"])
def test_a_node_finds_what_a_task_of_a_real_job_finds(
    cluster: Cluster, workdir: Path, place: Directory, accelerators: str | None
) -> None:
    resources = {"provider": "slurm", "num_nodes": 2} | ({"accelerators": accelerators} if accelerators else {})
    file = write_task(workdir, DUMP, resources=resources, launch="per-node", name_="hello")
    done = tl_slurm(cluster, "submit", file, "--follow", cwd=workdir)
    assert done.returncode == 0, done.stderr
    task = place.path / "task.yaml"
    task.write_text(file.read_text())
    tried = place.run(task)
    assert tried.returncode == 0, tried.stderr
    for node in (0, 1):
        real, played = variables(workdir / f"task.{node}"), variables(place.path / f"task.{node}")
        assert set(played) == set(real) - NOT_PLAYED
        same = set(played) - OTHER_VALUE
        assert {name: played[name] for name in same} == {name: real[name] for name in same}


@pytest.fixture
def name_of_cluster(place: Directory, _cluster_possible: None) -> Iterator[list[str]]:
    """Filled by the test with the text that names the hosts; afterwards nothing of that cluster is there."""
    seen: list[str] = []
    yield seen
    [name] = set(re.findall(r" on (mn[a-z]+)[0-9[]", "".join(seen)))
    assert not Path("/run", name).exists() and not Path("/var/tmp", name).exists()
    tagged = f" - tmpfs mncluster:/run/{name} rw"
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            assert tagged not in path.read_text()
        except OSError:
            continue
    place.assert_clean()


NO_CLUSTER = {"SLURM_CONF": "/nonexistent/slurm.conf"}


def test_a_script_that_calls_srun_gets_a_cluster_on_this_machine(place: Directory, name_of_cluster: list[str]) -> None:
    task = place.task(f"{SRUN}pwd\nexit 4\n", resources={"provider": "slurm", "accelerators": "H100:2"})
    done = place.run(task, "--nodes", "3", env=NO_CLUSTER, cwd=Path(__file__).parent)
    name_of_cluster.append(done.stdout)
    assert done.returncode == 4, done.stderr
    assert sorted(re.findall(r"rank (\d) of 3 on mn[a-z]+(\d)", done.stdout)) == [("0", "1"), ("1", "2"), ("2", "3")]
    assert "(script) calls srun, which needs Slurm: starting a Slurm cluster of 3 nodes" in done.stderr
    assert str(Path(__file__).parent) in done.stdout.splitlines()
    assert not list(Path(__file__).parent.glob("slurm-*.out"))


@pytest.mark.parametrize(("number", "options", "status"), [
    (signal.SIGINT, [], 130), (signal.SIGTERM, [], 143), (None, ["--timeout", "8"], 124),
])  # fmt: skip
def test_the_cluster_goes_with_an_interrupt_and_at_the_end_of_the_time(
    place: Directory, name_of_cluster: list[str], number: signal.Signals | None, options: list[str], status: int
) -> None:
    task = place.task("srun sleep 600\n", resources={"provider": "slurm"})
    with place.popen(task, *options, env=NO_CLUSTER, cwd=Path(__file__).parent) as process:
        name_of_cluster.append(read_until(process.stderr, "RUNNING"))
        if number:
            os.killpg(process.pid, number)
        process.communicate(timeout=60)
    assert process.returncode == status


def test_where_a_cluster_answers_the_task_belongs_there(cluster: Cluster, workdir: Path) -> None:
    file = write_task(workdir, SRUN)
    done = cluster.run(sys.executable, "-m", "shared_env.cli", "try", file, cwd=workdir)
    assert done.returncode == 2
    assert f"line 4 (script) calls srun, which needs Slurm; a cluster answers here, so run it there: tl-slurm submit "\
        f"--follow {file}" in done.stderr.replace("\n", " ")  # fmt: skip


@pytest.mark.parametrize("script", [SRUN, "bash -c 'srun hostname'", "f() { exec /usr/bin/srun hostname; }\nf"])
def test_without_slurm_it_says_what_to_type(place: Directory, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    task = load_task(place.task(script, resources={"provider": "slurm"}))
    monkeypatch.setenv("SLURM_CONF", NO_CLUSTER["SLURM_CONF"])
    monkeypatch.setattr(local_cluster, "CLUSTER", Path("/nonexistent/cluster.py"))
    with pytest.raises(TryError, match=r"tl-slurm submit --follow .*launch: per-node.*apt-get install slurmctld"):
        local_cluster.run_on_cluster(task, "it calls srun")


def test_the_example_is_the_same_job_on_a_real_cluster(cluster: Cluster, workdir: Path) -> None:
    done = tl_slurm(cluster, "submit", EXAMPLES / "hello-multinode.yaml", "--follow", cwd=workdir)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"hello from rank {rank} of 2: the ranks add up to 1" for rank in (0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("provider", ["slurm", "skypilot"])
def test_the_example_has_no_mistake_that_is_known(provider: str) -> None:
    assert check(load_task(EXAMPLES / "hello-multinode.yaml", overrides=[f"resources.provider={provider}"])) == []


def test_srun_in_a_comment_or_a_message_needs_no_slurm(place: Directory) -> None:
    task = place.task("# srun x\necho srun this\ncat << 'END'\nsrun that\nEND\n", resources={"provider": "slurm"})
    done = place.run(task, env={"PATH": PATH})
    assert lines_of(done.stdout, "node1") == ["srun this", "srun that"]
