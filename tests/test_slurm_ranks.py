"""Every process of a real job finds the right six values, whatever the layout of the step."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from cluster import Cluster
from slurm_jobs import EXAMPLES, PROBE, PYTHON, files_left, follow, job_id, probes, sums, tl_slurm, write_task

from shared_env import derive_port
from shared_env.shell import task_prolog

SRUN_TRAIN = f"srun {PYTHON} {EXAMPLES}/train.py\n"


@pytest.mark.parametrize(
    ("nodes", "flags", "tasks"),
    [(2, "", [1, 1]), (3, "--ntasks-per-node=2", [2, 2, 2]), (2, "--ntasks=3", [2, 1])],
    ids=["2x1", "3x2", "3 on 2"],
)
def test_env_start_without_torchrun(cluster: Cluster, workdir: Path, nodes: int, flags: str, tasks: list[int]) -> None:
    script = f"srun sh -c '{PROBE}'\n{SRUN_TRAIN}"
    done = follow(
        cluster, workdir, script, "--sbatch-flags", flags, resources={"provider": "slurm", "num_nodes": nodes}
    )
    assert done.returncode == 0, done.stderr
    size = sum(tasks)
    expected = [(node, local) for node, count in enumerate(tasks) for local in range(count)]
    found = [probe for probe in probes(done.stdout) if probe.step == "0"]
    assert [probe.rank for probe in found] == list(range(size))
    assert [(probe.node_rank, probe.local_rank) for probe in found] == expected
    assert [probe.host for probe in found] == [cluster.nodes[node] for node, _ in expected]
    assert {(p.world_size, p.master_addr, p.master_port) for p in found} == {
        (size, found[0].host, derive_port(int(job_id(done))))
    }
    assert sums(done.stdout) == [
        (rank, size, cluster.nodes[node], str(size * (size + 1) // 2)) for rank, (node, _) in enumerate(expected)
    ]
    assert files_left(cluster, workdir) == []


def test_a_smaller_step_has_its_own_world(cluster: Cluster, workdir: Path) -> None:
    script = f"srun -N1 -n1 -w {cluster.nodes[1]} sh -c '{PROBE}'\nsrun sh -c '{PROBE}'\n"
    done = follow(cluster, workdir, script)
    small, *whole = probes(done.stdout)
    job = int(job_id(done))
    assert small[:7] == (0, 0, 0, 1, cluster.nodes[1], derive_port(job), cluster.nodes[1])
    assert [p.rank for p in whole] == [0, 1]
    assert {(p.world_size, p.master_addr, p.master_port) for p in whole} == {
        (2, cluster.nodes[0], derive_port(job, step_id=1))
    }


def test_two_steps_at_once_have_different_ports(cluster: Cluster, workdir: Path) -> None:
    step = f"srun --overlap -n2 sh -c '{PROBE}; sleep 1'"
    done = follow(cluster, workdir, f"{step} &\n{step} &\nwait\n", "--sbatch-flags", "--ntasks-per-node=2")
    found = probes(done.stdout)
    ports = {step: {p.master_port for p in found if p.step == step} for step in ("0", "1")}
    assert [len(each) for each in ports.values()] == [1, 1]
    assert ports["0"] != ports["1"]
    assert [p.rank for p in found] == [0, 1, 0, 1]


def test_arbitrary_distribution_meets_at_the_first_host_of_the_host_file(cluster: Cluster, workdir: Path) -> None:
    first, second, third = cluster.nodes
    (workdir / "hosts").write_text(f"# in task order\n\n{third}\n{first}\n{first}\n{second}\n")
    script = f"export SLURM_HOSTFILE={workdir}/hosts\nsrun -n4 -m arbitrary sh -c '{PROBE}; shared-env show --json'\n"
    done = follow(
        cluster,
        workdir,
        script,
        "--sbatch-flags",
        "--ntasks-per-node=2",
        resources={"provider": "slurm", "num_nodes": 3},
        env={"PATH": f"{Path(PYTHON).parent}:/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    found = probes(done.stdout)
    assert [p.host for p in found] == [third, first, first, second]
    assert [(p.rank, p.local_rank) for p in found] == [(0, 0), (1, 0), (2, 1), (3, 0)]
    assert {(p.world_size, p.master_addr) for p in found} == {(4, third)}
    assert done.stdout.count(f'"MASTER_ADDR": "{third}"') == 4  # the Python side agrees


def test_arbitrary_distribution_without_a_readable_host_file_says_so(cluster: Cluster, workdir: Path) -> None:
    hosts = f"{cluster.nodes[1]}\\n{cluster.nodes[0]}\\n"
    script = (
        f"printf '{hosts}' > /tmp/private\nexport SLURM_HOSTFILE=/tmp/private\n"
        "srun -m arbitrary sh -c 'echo addr=$MASTER_ADDR'\nrm /tmp/private\n"
    )
    done = follow(cluster, workdir, script)
    assert f"addr={cluster.nodes[1]}" in done.stdout  # the node that has the file
    assert "addr=\n" in done.stdout  # the other one does not guess
    assert "set MASTER_ADDR" in done.stdout


def test_array_elements_have_their_own_ports(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, f"srun sh -c '{PROBE}'\n")
    done = tl_slurm(cluster, "submit", path, "--sbatch-flags", "--array=0-1 --output=%a.log", cwd=workdir, check=True)
    waited = tl_slurm(cluster, "wait", done.stdout.strip())
    assert waited.returncode == 0, waited.stderr
    found = [probes((workdir / f"{element}.log").read_text()) for element in (0, 1)]
    for element in found:
        assert [p.rank for p in element] == [0, 1]
        assert {p.world_size for p in element} == {2}
    assert found[0][0].master_port != found[1][0].master_port


def test_heterogeneous_job_by_shared_env_exec_and_by_the_task_prolog(cluster: Cluster, workdir: Path) -> None:
    prolog = workdir / "prolog.sh"
    prolog.write_text(tl_slurm(cluster, "task-prolog", check=True).stdout)
    prolog.chmod(0o755)
    script = workdir / "het.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH -N1 -n1 --output=het.log\n#SBATCH hetjob\n#SBATCH -N2 -n2\n"
        f"srun --het-group=0,1 {PYTHON} -m shared_env.cli exec -- sh -c '{PROBE}'\n"
        f"srun --het-group=0,1 --task-prolog={prolog} sh -c '{PROBE}'\n"
    )
    job = cluster.run("sbatch", "--parsable", script, cwd=workdir, check=True).stdout.strip()
    assert tl_slurm(cluster, "wait", job).returncode == 0
    found = probes((workdir / "het.log").read_text())
    assert [(p.step, p.rank, p.node_rank, p.host) for p in found] == [
        (step, rank, rank, cluster.nodes[rank]) for step in ("0", "1") for rank in range(3)
    ]
    assert {(p.world_size, p.master_addr) for p in found} == {(3, cluster.nodes[0])}


def test_salloc_with_shared_env_exec(cluster: Cluster, workdir: Path) -> None:
    shared_env = f"{PYTHON} -m shared_env.cli"
    done = cluster.run(
        "salloc", "-N2", "sh", "-c", f"{shared_env} show; srun {shared_env} exec -- sh -c '{PROBE}'", cwd=workdir
    )
    assert "attached to Slurm job" in done.stderr  # the shell of salloc is no task
    assert "srun" in done.stderr
    assert [(p.rank, p.world_size, p.host) for p in probes(done.stdout)] == [
        (0, 2, cluster.nodes[0]),
        (1, 2, cluster.nodes[1]),
    ]


def test_srun_pty_is_a_step_of_one_task(cluster: Cluster, workdir: Path) -> None:
    prolog = workdir / "prolog.sh"
    prolog.write_text(tl_slurm(cluster, "task-prolog", check=True).stdout)
    prolog.chmod(0o755)
    inner = f"srun --pty -N1 -n1 --task-prolog={prolog} sh -c '[ -t 0 ] && {PROBE}'"
    (workdir / "inner.sh").write_text(inner)
    done = cluster.run("script", "-qec", f"salloc -N2 sh {workdir}/inner.sh", "/dev/null", cwd=workdir)
    ((rank, local, node, size, addr, _, host, _),) = probes(done.stdout)
    assert (rank, local, node, size, addr) == (0, 0, 0, 1, host)


def test_site_wide_task_prolog(make_cluster, tmp_path: Path) -> None:
    cluster = make_cluster(nodes=2)
    prolog = cluster.scratch / "task-prolog.sh"
    prolog.write_text(task_prolog())
    prolog.chmod(0o755)
    with cluster.conf.open("a") as conf:
        conf.write(f"TaskProlog={prolog}\n")
    cluster.run("scontrol", "reconfigure", check=True)
    done = cluster.run("srun", "-N2", "--ntasks-per-node=2", "sh", "-c", PROBE)
    found = probes(done.stdout)
    assert [(p.rank, p.local_rank, p.node_rank, p.world_size) for p in found] == [
        (0, 0, 0, 4),
        (1, 1, 0, 4),
        (2, 0, 1, 4),
        (3, 1, 1, 4),
    ]
    given = cluster.run("srun", "-N2", "sh", "-c", PROBE, env={"MASTER_PORT": "12321", "RANK": "7"})
    assert {(p.master_port, p.rank) for p in probes(given.stdout)} == {(12321, 7)}
    # a job with the adapter's own prolog is not disturbed by it
    path = cluster.scratch / "task.yaml"
    path.write_text(
        yaml.safe_dump({"resources": {"provider": "slurm", "num_nodes": 2}, "script": f"srun sh -c '{PROBE}'"})
    )
    done = tl_slurm(cluster, "submit", path, "--follow")
    assert [(p.rank, p.world_size, p.master_addr) for p in probes(done.stdout)] == [
        (0, 2, cluster.nodes[0]),
        (1, 2, cluster.nodes[0]),
    ]
