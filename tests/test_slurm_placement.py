"""The task prolog finds its way to every node, or the job says why not; nothing is left behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_jobs import EXAMPLES, PROBE, PYTHON, files_left, follow, job_id, probes, sums, tl_slurm, wait_for, write_task

from shared_env import derive_port

SRUN_PROBE = f"srun sh -c '{PROBE}'\n"
RANKS = [(0, 0, 0, 2), (1, 0, 1, 2)]


@pytest.fixture
def tools(workdir: Path) -> Path:
    """A PATH directory with the commands that a job needs; tests take out or replace single ones."""
    directory = workdir / "tools"
    directory.mkdir()
    for name in ("sh", "bash", "srun", "sbcast", "sbatch", "scontrol", "env", "rm", "chmod", "hostname", "head", "test",
                 "sleep", "getent", "cat"):  # fmt: skip
        (directory / name).symlink_to(shutil.which(name) or f"/nonexistent/{name}")
    return directory


def in_path(tools: Path) -> str:
    return f"export PATH={tools}\n"


def test_no_scontrol_in_path(cluster: Cluster, workdir: Path, tools: Path) -> None:
    (tools / "scontrol").unlink()
    done = follow(cluster, workdir, SRUN_PROBE, setup=in_path(tools))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p[:4] for p in probes(done.stdout)] == RANKS
    assert {p.master_addr for p in probes(done.stdout)} == {cluster.nodes[0]}
    assert "tl-multinode" not in done.stdout


def test_sbcast_refused_uses_the_submit_directory(cluster: Cluster, workdir: Path, tools: Path) -> None:
    (tools / "sbcast").unlink()
    (tools / "sbcast").write_text("#!/bin/sh\necho 'sbcast: error: not allowed here' >&2\nexit 1\n")
    (tools / "sbcast").chmod(0o755)
    done = follow(cluster, workdir, SRUN_PROBE, setup=in_path(tools))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p[:4] for p in probes(done.stdout)] == RANKS
    assert f"not allowed here); trying {workdir}" in done.stdout
    assert files_left(cluster, workdir) == []


def test_no_sbcast_and_no_shared_submit_directory_goes_on_without(cluster: Cluster, workdir: Path, tools: Path) -> None:
    (tools / "sbcast").unlink()
    private = "/tmp/private"
    for node in (1, 2, 3):
        cluster.node(node, "mkdir", "-p", private, check=True)
    cluster.run("mkdir", "-p", private, check=True)
    path = write_task(
        workdir, "srun sh -c 'echo rank=${RANK-unset} master=$MASTER_ADDR'\necho here ${NODE_RANK}\n",
        setup=in_path(tools), env={"HOME": private},
    )  # fmt: skip
    try:
        done = tl_slurm(cluster, "submit", path, "--follow", "--sbatch-flags", f"--output={workdir}/log", cwd=private)
        assert done.returncode == 0, done.stdout + done.stderr
        # no frozen rank 0: a start from the environment fails at once instead of hanging
        assert done.stdout.count(f"rank=unset master={cluster.nodes[0]}") == 2
        assert "going on without a task prolog" in done.stdout
        assert "shared-env exec" in done.stdout
        assert "here 0" in done.stdout
        assert files_left(cluster, workdir) == []
    finally:
        for host in (cluster.login, *cluster.nodes):
            cluster.run("rmdir", private, host=host)


def test_per_node_stops_where_the_script_cannot_be_placed(cluster: Cluster, workdir: Path, tools: Path) -> None:
    (tools / "sbcast").unlink()
    cluster.run("mkdir", "-p", "/tmp/private", check=True)
    cluster.node(1, "mkdir", "-p", "/tmp/private", check=True)
    path = write_task(workdir, "echo unreached\n", setup=in_path(tools), launch="per-node", env={"HOME": "/dev/null"})
    done = tl_slurm(
        cluster, "submit", path, "--follow", "--sbatch-flags", f"--output={workdir}/log", cwd="/tmp/private"
    )
    cluster.run("rmdir", "/tmp/private")
    assert done.returncode == 1
    assert "the script cannot be placed on the nodes" in done.stdout
    assert "unreached" not in done.stdout
    assert files_left(cluster, workdir) == []
    cluster.node(1, "rmdir", "/tmp/private")


@pytest.mark.parametrize("where", ["env", "setup"])
def test_a_users_own_task_prolog_still_runs(cluster: Cluster, workdir: Path, where: str) -> None:
    prolog = workdir / "my prolog.sh"
    prolog.write_text(
        '#!/bin/sh\necho "print mine sees rank $RANK"\necho export MASTER_PORT=1234\necho export MINE=yes\n'
    )
    prolog.chmod(0o755)
    keys = {"env_": {"SLURM_TASK_PROLOG": str(prolog)}}
    if where == "setup":
        keys = {"setup": f"export SLURM_TASK_PROLOG='{prolog}'\n"}
    done = follow(cluster, workdir, f"srun sh -c '{PROBE}; echo MINE=$MINE'\n", **keys)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p[:4] for p in probes(done.stdout)] == RANKS
    assert {p.master_port for p in probes(done.stdout)} == {1234}
    assert done.stdout.count("MINE=yes") == 2
    assert {f"mine sees rank {rank}" for rank in (0, 1)} <= set(done.stdout.splitlines())


def test_a_failing_users_task_prolog_fails_the_step_as_it_would(cluster: Cluster, workdir: Path) -> None:
    done = follow(cluster, workdir, SRUN_PROBE, env_={"SLURM_TASK_PROLOG": "/nonexistent/prolog"})
    assert done.returncode != 0
    assert probes(done.stdout) == []
    assert files_left(cluster, workdir) == []


def test_a_foreign_file_of_the_same_name_is_not_used(cluster: Cluster, workdir: Path) -> None:
    """/tmp is everybody's: a file that somebody has put there for the next job ids is neither run nor overwritten."""
    evil = "#!/bin/sh\ntouch /tmp/evil_ran\n"
    job = int(cluster.sbatch("true", cwd=workdir))
    cluster.wait(str(job))
    names = [f"/tmp/tl-multinode.{job + 1}.0.{kind}" for kind in ("task-prolog", "src.task-prolog")]
    for name in names:
        for node in (1, 2):
            cluster.node(node, "sh", "-c", f"cat > {name} && chmod 755 {name}", input=evil, check=True)
    done = follow(cluster, workdir, SRUN_PROBE)
    assert job_id(done) == str(job + 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p[:4] for p in probes(done.stdout)] == RANKS  # by way of the submit directory
    for node in (1, 2):
        assert cluster.node(node, "test", "-e", "/tmp/evil_ran").returncode == 1
        cluster.node(node, "rm", "-f", *names)


@pytest.mark.parametrize(
    "script",
    ["exit 5\n", "set -euo pipefail\nfalse\n", SRUN_PROBE + "exit 5\n", "kill -TERM $$\n", "srun false\n"],
    ids=["exit", "set -e", "srun, exit", "SIGTERM", "failing step"],
)
def test_nothing_is_left_when_the_job_fails(cluster: Cluster, workdir: Path, script: str) -> None:
    done = follow(cluster, workdir, script)
    assert done.returncode == (5 if "exit 5" in script else 143 if "TERM" in script else 1), done.stdout + done.stderr
    assert files_left(cluster, workdir) == []


def test_the_users_exit_trap_of_setup_and_ours_both_run(cluster: Cluster, workdir: Path) -> None:
    setup = "trap 'echo \"bye '\\''now'\\'' $?\"' EXIT\ntrap 'echo usr1' USR1\n"
    done = follow(cluster, workdir, "kill -USR1 $$\nexit 6\n", setup=setup)
    assert done.returncode == 6
    assert "bye 'now' 6" in done.stdout
    assert "usr1" in done.stdout
    assert files_left(cluster, workdir) == []


def test_strict_shell_options_of_setup_do_not_break_the_block(cluster: Cluster, workdir: Path) -> None:
    setup = "set -euo pipefail -o noclobber -f -a\nIFS=,1\nshopt -s failglob nullglob\nunset -f nothing\n"
    script = f"echo \"flags $- ifs $IFS\"\nset | grep -a _tlmn_ || :\nIFS=' '\n{SRUN_PROBE}"
    done = follow(cluster, workdir, script, setup=setup)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p[:4] for p in probes(done.stdout)] == RANKS
    assert "_tlmn_" not in done.stdout
    flags = next(line for line in done.stdout.splitlines() if line.startswith("flags"))
    assert set("eufaC") <= set(flags.split()[1])
    assert flags.endswith("ifs ,1")


def test_pasted_sbatch_script(cluster: Cluster, workdir: Path) -> None:
    script = (
        "#!/bin/bash -l\n#\n#SBATCH -J pasted  # the name\n#SBATCH --ntasks-per-node=2 -N 2\n#SBATCH -o %x.log\n\n"
        f"shopt -q login_shell && echo login shell\n#SBATCH --this-is-too-late\n{SRUN_PROBE}"
    )
    done = follow(cluster, workdir, script, "--sbatch-flags", "--job-name=stronger")
    assert done.returncode == 0, done.stdout + done.stderr
    log = (workdir / "stronger.log").read_text()
    assert [p.rank for p in probes(log)] == [0, 1, 2, 3]
    assert "login shell" in log


def test_posix_sh_script(cluster: Cluster, workdir: Path) -> None:
    done = follow(cluster, workdir, f"#!/bin/sh\n{SRUN_PROBE}")
    assert [p[:4] for p in probes(done.stdout)] == RANKS
    assert files_left(cluster, workdir) == []


def test_requeue_same_job_other_port(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, f"{SRUN_PROBE}[ -e again ] || {{ touch again; sleep 60; }}\n")
    done = tl_slurm(
        cluster,
        "submit",
        path,
        "--requeue",
        "--sbatch-flags",
        "--open-mode=append --output=log",
        cwd=workdir,
        check=True,
    )
    job = done.stdout.strip()
    wait_for((workdir / "again").exists)
    cluster.requeue(job)
    assert tl_slurm(cluster, "wait", job).returncode == 0
    found = probes((workdir / "log").read_text())
    assert {p.master_port for p in found} == {derive_port(int(job)), derive_port(int(job), restart_count=1)}
    assert len(found) == 4
    assert files_left(cluster, workdir) == []


def test_one_dead_rank_ends_the_job(cluster: Cluster, workdir: Path) -> None:
    script = (
        f'srun {PYTHON} -c \'import os, time\nif os.environ["RANK"] == "1": raise SystemExit(3)\ntime.sleep(60)\'\n'
    )
    done = follow(cluster, workdir, script)
    assert done.returncode not in (0, 124)
    assert "FAILED" in done.stderr
    status = tl_slurm(cluster, "status", job_id(done), "--json").stdout
    assert '"state": "failed"' in status
    idle = cluster.run("sinfo", "--noheader", "--format=%T", "--partition=debug").stdout
    assert "idle" in idle
    assert files_left(cluster, workdir) == []


def test_master_addr_suffix_names_the_second_network(cluster: Cluster, workdir: Path) -> None:
    script = f"{SRUN_PROBE}srun {PYTHON} {EXAMPLES}/train.py\n"
    done = follow(cluster, workdir, script, "--master-addr-suffix=-ib")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {p.master_addr for p in probes(done.stdout)} == {f"{cluster.nodes[0]}-ib"}
    assert [total for *_, total in sums(done.stdout)] == ["3", "3"]
    small = follow(
        cluster, workdir, f"srun -N1 -n1 -w {cluster.nodes[1]} sh -c '{PROBE}'\n", "--master-addr-suffix=-ib"
    )
    assert [p.master_addr for p in probes(small.stdout)] == [f"{cluster.nodes[1]}-ib"]


@pytest.mark.parametrize("flag", ["hostname", "ip"])
def test_master_addr_where_names_of_nodes_do_not_resolve(make_cluster, flag: str) -> None:
    cluster = make_cluster(nodes=2)
    # Every node forgets the names of the others (its own name becomes a loopback address, as Debian has it).
    hosts = {host: cluster.run("cat", "/etc/hosts", host=host).stdout for host in cluster.nodes}
    addresses = {name: line.split()[0] for line in hosts[cluster.nodes[0]].splitlines() for name in line.split()[1:]}
    conf = cluster.conf.read_text()
    for host in cluster.nodes:
        conf = conf.replace(f"NodeName={host} ", f"NodeName={host} NodeAddr={addresses[host]} ")
    conf = conf.replace(f"SlurmctldHost={cluster.login}", f"SlurmctldHost={cluster.login}({addresses[cluster.login]})")
    cluster.conf.write_text(conf)
    for host in cluster.nodes:
        private = cluster.base / f"hosts.{host}"
        private.write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}\n{addresses[cluster.login]} {cluster.login}\n")
        cluster.run("sh", "-c", f"mount --bind {private} /etc/hosts", host=host, check=True)
    cluster.run("scontrol", "reconfigure", check=True)
    workdir = cluster.scratch
    script = (
        f"{SRUN_PROBE}srun {PYTHON} -c 'import os, socket; socket.getaddrinfo(os.environ[\"MASTER_ADDR\"], 1)'\n"
        f"srun -N1 -n1 -w {cluster.nodes[1]} sh -c '{PROBE}'\n"
    )
    done = follow(cluster, workdir, script, f"--master-addr={flag}")
    found = probes(done.stdout)
    if flag == "hostname":
        assert "gaierror" in done.stdout
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p.master_addr for p in found] == [addresses[cluster.nodes[0]]] * 2 + [addresses[cluster.nodes[1]]]
    train = follow(cluster, workdir, f"srun {PYTHON} {EXAMPLES}/train.py\n", f"--master-addr={flag}",
                   env_={"GLOO_SOCKET_IFNAME": "eth0"})  # fmt: skip
    assert [total for *_, total in sums(train.stdout)] == ["3", "3"], train.stdout
