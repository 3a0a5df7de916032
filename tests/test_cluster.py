"""The cluster keeps its promises: real Slurm, hosts that share nothing by accident, nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import Cluster, missing
from cluster.cluster import CHECKOUT, SCRIPT

Make = Callable[..., Cluster]

SERVER = """
import socket, sys
with socket.create_server((socket.gethostbyname(sys.argv[1]), 0)) as server:
    print(server.getsockname()[1], flush=True)
    peer, address = server.accept()
    print(address[0])
"""
CLIENT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)"
OWNER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from cluster import Cluster
print(Cluster().start().name, flush=True)
sys.stdin.read()
"""


def members(name: str) -> set[int]:
    """The processes that run on hosts of the cluster or name one of its files."""
    found = set()
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            text = (proc / "mountinfo").read_text() + cmdline(int(proc.name)).decode(errors="replace")
        except OSError:  # ended meanwhile, or a zombie
            continue
        if f"/{name}" in text:
            found.add(int(proc.name))
    return found


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def traces(name: str) -> list[str]:
    """Everything on this machine that shows that the cluster exists."""
    found = [f"process {pid}" for pid in members(name)]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line]
    found += [f"link {link}" for link in os.listdir("/sys/class/net") if name in link or "veth" in link]
    for directory in ("/run", "/run/netns", "/var/tmp", "/tmp", "/dev/shm"):
        found += [str(path) for path in Path(directory).glob(f"*{name}*")]
    return found


def start_time(pid_file: Path) -> str:
    """What tells one process from another, even of the same pid."""
    pid = pid_file.read_text().strip()
    return pid + " " + Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[19]


def expect(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def script(_cluster_possible: None) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """cluster.sh itself, as a user of the shell calls it: script("start", NODES="2")."""
    name = f"mnsh{os.getpid()}x"

    def call(*argv: str, **settings: str) -> subprocess.Popen[str]:
        env = {"PATH": os.environ["PATH"], "PFX": "mnsh", "BASE": f"/run/{name}", **settings}
        return subprocess.Popen(
            [SCRIPT, *argv], env=env, cwd=CHECKOUT, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    yield call
    assert call("stop").wait() == 0
    assert traces(name) == []


# --- hosts ------------------------------------------------------------------------


def test_every_host_has_its_own_name_addresses_and_hosts_file(cluster: Cluster) -> None:
    hosts = Path(cluster.base, "hosts").read_text()
    addresses = []
    for i, name in enumerate(cluster.nodes, 1):
        assert cluster.node(i, "hostname").stdout == f"{name}\n"
        own = cluster.node(i, "hostname", "-I").stdout.split()
        assert own == [cluster.node(i, "getent", "hosts", n).stdout.split()[0] for n in (name, f"{name}-ib")]
        assert cluster.node(i, "cat", "/etc/hosts").stdout == hosts
        addresses += own
    assert cluster.run("hostname").stdout == f"{cluster.login}\n"
    addresses += cluster.run("hostname", "-I").stdout.split()
    assert len(set(addresses)) == len(addresses) == 2 * 3 + 1
    assert Path("/etc/hosts").read_text() != hosts


def test_a_credential_is_new_on_every_host(cluster: Cluster) -> None:
    """A replayed one is an error, and two at once can end a slurmd."""
    credential = cluster.run("munge", "--no-input", f"--socket={cluster.base}/munge/munge.socket", check=True).stdout
    for i in range(1, 4):
        decoded = cluster.node(i, "unmunge", f"--socket={cluster.base}/munge/munge.socket", input=credential)
        assert "Success (0)" in decoded.stdout, decoded.stderr


def test_tmp_is_private_to_each_host(cluster: Cluster) -> None:
    mark = f"/tmp/{cluster.name}-mark"
    for i, name in enumerate([cluster.login, *cluster.nodes]):
        assert cluster.run("ls", mark, host=name).returncode != 0, f"{name} sees the file of another host"
        cluster.run("sh", "-c", 'echo "$0" > "$1"', str(i), mark, host=name, check=True)
    for i, name in enumerate([cluster.login, *cluster.nodes]):
        assert cluster.run("cat", mark, host=name).stdout == f"{i}\n"
        cluster.run("rm", mark, host=name, check=True)
    assert not Path(mark).exists()


def test_checkout_interpreter_and_workdir_are_at_the_same_path_everywhere(cluster: Cluster, workdir: Path) -> None:
    for i in range(1, 4):
        probe = (
            f"import os, pytest; assert os.path.samefile(os.getcwd(), {str(workdir)!r}); print(len(os.listdir('.')))"
        )
        assert cluster.node(i, sys.executable, "-c", probe, cwd=workdir).stdout == f"{i - 1}\n"
        cluster.node(i, "touch", f"of-node-{i}", cwd=workdir, check=True)
        cluster.node(i, "cmp", CHECKOUT / "pyproject.toml", CHECKOUT / "pyproject.toml", check=True)


def test_a_kept_directory_below_tmp_is_shared_and_survives_stop(make_cluster: Make, tmp_path: Path) -> None:
    """The checkout or the interpreter may be below /tmp: their directories are kept."""
    kept, hidden = tmp_path / "kept" / "deep", tmp_path / "hidden"
    kept.mkdir(parents=True)
    hidden.mkdir()
    (kept / "file").write_text("here\n")
    own = make_cluster(nodes=2, keep=str(kept))
    job = own.run("srun", "-N2", "sh", "-c", 'cat file && touch "from-$SLURM_NODEID"', cwd=kept)
    assert job.stdout == "here\nhere\n", job.stderr
    if tmp_path.is_relative_to("/tmp"):
        assert own.node(1, "ls", tmp_path).stdout == "kept\n"
    own.stop()
    assert sorted(path.name for path in kept.iterdir()) == ["file", "from-0", "from-1"]


@pytest.mark.parametrize("suffix", ["", "-ib"])
def test_nodes_reach_each_other_on_both_networks(cluster: Cluster, suffix: str) -> None:
    client, server = (f"{name}{suffix}" for name in cluster.nodes[:2])
    with cluster.popen(
        sys.executable, "-c", SERVER, server, host=cluster.nodes[1], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        port = process.stdout.readline().strip()
        cluster.node(1, sys.executable, "-c", CLIENT, server, port, check=True)
        peer = process.stdout.readline().strip()
    assert peer == cluster.node(1, "getent", "hosts", client).stdout.split()[0]


def test_nothing_leads_out_of_the_cluster(cluster: Cluster) -> None:
    for name in [cluster.login, *cluster.nodes]:
        assert "default" not in cluster.run("ip", "route", host=name).stdout
        assert "unreachable" in cluster.run("ip", "route", "get", "192.0.2.1", host=name).stderr
    # Names only: outside they do not resolve, so a stray client fails there at once.
    assert not re.search(r"\d+\.\d+\.\d+\.\d+", cluster.conf.read_text())


# --- jobs -------------------------------------------------------------------------


def test_a_step_runs_on_all_nodes(cluster: Cluster) -> None:
    job = cluster.run("srun", "-N3", "-l", "hostname")
    assert sorted(job.stdout.splitlines()) == [f"{i}: {name}" for i, name in enumerate(cluster.nodes)], job.stderr


def test_gpus_are_visible_in_a_step(cluster: Cluster) -> None:
    show = ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"')
    assert cluster.run("srun", "-N2", "--gpus-per-node=2", *show).stdout == "0,1\n0,1\n"
    assert cluster.run("srun", "--gpus-per-node=l4:3", *show).stdout == "0,1,2\n"
    assert cluster.run("srun", *show).stdout == "\n"
    for absent in ("5", "a100:1"):
        refused = cluster.run("srun", f"--gpus-per-node={absent}", *show)
        assert refused.returncode != 0
        assert "Requested node configuration is not available" in refused.stderr


@pytest.mark.parametrize(
    ("gres", "asked", "seen"),
    [("gpu:4", "gpu:4", "0,1,2,3"), ("gpu:l4:2,gpu:a100:1", "gpu:a100:1", "2"), ("gpu:1,nic:2", "gpu:1,nic:1", "0")],
)
def test_other_kinds_of_gres(make_cluster: Make, gres: str, asked: str, seen: str) -> None:
    own = make_cluster(nodes=1, gres=gres)
    job = own.run("srun", f"--gres={asked}", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"')
    assert job.stdout == f"{seen}\n", job.stderr


def test_a_cluster_without_gres(make_cluster: Make) -> None:
    own = make_cluster(nodes=1, gres="")
    assert own.run("srun", "true").returncode == 0
    assert own.run("sinfo", "-h", "-o", "%G", "-p", "debug").stdout == "(null)\n"


def test_batch_jobs_end_with_their_state_and_are_remembered(cluster: Cluster, workdir: Path) -> None:
    good = cluster.sbatch("srun -l hostname", "-N2", "-p", "short", "-o", "out", cwd=workdir)
    assert cluster.wait(good) == "COMPLETED"
    assert {line[3:] for line in (workdir / "out").read_text().splitlines()} == set(cluster.nodes[:2])
    bad = cluster.sbatch('exit "$SLURM_ARRAY_TASK_ID"', "--array=0,3", "-o", "/dev/null", cwd=workdir)
    assert cluster.wait(bad) == "FAILED"
    assert cluster.wait(good) == "COMPLETED"


def test_a_requeued_job_keeps_its_id(cluster: Cluster, workdir: Path) -> None:
    text = 'echo "$SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0}"; [ -n "$SLURM_RESTART_COUNT" ] || sleep 1000'
    job = cluster.sbatch(text, "--open-mode=append", "-o", "out", "-e", "/dev/null", cwd=workdir)
    expect(lambda: (workdir / "out").exists() and (workdir / "out").read_text() == f"{job} 0\n")
    cluster.requeue(job)
    assert cluster.wait(job) == "COMPLETED"
    assert (workdir / "out").read_text() == f"{job} 0\n{job} 1\n"


def test_extra_conf_adds_and_replaces_lines(make_cluster: Make, workdir: Path) -> None:
    prolog = workdir / "prolog"
    prolog.write_text('#!/bin/sh\necho "export FROM_SITE=$SLURM_PROCID"\n')
    prolog.chmod(0o755)
    own = make_cluster(nodes=2, extra_conf=f"TaskProlog={prolog}\nKillWait=7")
    assert sorted(own.run("srun", "-N2", "-l", "printenv", "FROM_SITE").stdout.splitlines()) == ["0: 0", "1: 1"]
    config = own.run("scontrol", "show", "config")
    assert re.search(r"KillWait\s+= 7 sec", config.stdout)
    assert config.stderr == ""


# --- running commands ----------------------------------------------------------------


def test_commands_see_the_callers_path_and_no_surrounding_job(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CONF", "SBATCH_PARTITION", "PMI_RANK", "MASTER_ADDR", "RANK", "TMPDIR"):
        monkeypatch.setenv(name, "stale")
    monkeypatch.setenv("KEPT", "kept")
    seen = dict(line.split("=", 1) for line in cluster.run("env").stdout.splitlines())
    assert "stale" not in seen.values()
    assert seen["SLURM_CONF"] == str(cluster.conf)
    assert (seen["PATH"], seen["KEPT"]) == (os.environ["PATH"], "kept")
    changed = cluster.run("env", env={"KEPT": None, "RANK": "5", "PATH": "/usr/bin"}).stdout.splitlines()
    assert {"RANK=5", "PATH=/usr/bin"} <= set(changed)
    assert not any(line.startswith("KEPT=") for line in changed)


def test_input_output_status_and_bytes(cluster: Cluster) -> None:
    assert cluster.run("sh", "-c", "cat; echo oops >&2; exit 7", input="text \u00e9").stdout == "text \u00e9"
    result = cluster.node(2, "sh", "-c", "cat; echo oops >&2; exit 7", input=b"\xff\x00", text=False)
    assert (result.stdout, result.stderr, result.returncode) == (b"\xff\x00", b"oops\n", 7)
    with pytest.raises(RuntimeError, match="exit status 3: no"):
        cluster.run("sh", "-c", "echo no >&2; exit 3", check=True)


def test_a_command_that_takes_too_long_is_killed_with_its_children(cluster: Cluster, workdir: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run("sh", "-c", "sleep 1000 & echo $! > pid; wait", cwd=workdir, timeout=0.5)
    stat = Path("/proc", (workdir / "pid").read_text().strip(), "stat")
    expect(lambda: not stat.exists() or ") Z " in stat.read_text())


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing() == ""
    monkeypatch.setattr("cluster.cluster.SBIN", "/nonexistent")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert missing().endswith("type: make setup")
    assert "slurmctld, slurmd, munged" in missing()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in missing()


# --- start and stop ---------------------------------------------------------------------


def test_stop_leaves_nothing_not_even_what_a_job_detached(make_cluster: Make) -> None:
    own = make_cluster(nodes=2)
    name, links = own.name, set(os.listdir("/sys/class/net"))
    own.sbatch("srun -N2 sh -c 'setsid -f sleep 1000; sleep 1000'", "-N2")
    own.node(1, "setsid", "-f", "sleep", "1000", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    expect(lambda: sum(cmdline(pid) == b"sleep\0001000\000" for pid in members(name)) == 5)
    assert len(traces(name)) > 10
    own.stop()
    assert traces(name) == []
    assert set(os.listdir("/sys/class/net")) == links
    own.stop()


def test_start_is_idempotent(make_cluster: Make) -> None:
    own = make_cluster(nodes=2)
    job = own.sbatch("sleep 1000")
    files = sorted(own.base.glob("*.pid"))
    before = [start_time(path) for path in files]
    own.start()
    assert [start_time(path) for path in files] == before
    assert len(files) == 3 + 3
    assert own.run("squeue", "-h", "-j", job, "-o", "%A").stdout.strip() == job


def test_a_host_outlives_its_daemon_and_start_brings_the_daemon_back(make_cluster: Make) -> None:
    own = make_cluster(nodes=2)
    job = own.sbatch("sleep 1000", "-w", own.nodes[0])
    expect(lambda: own.run("squeue", "-h", "-o", "%T").stdout == "RUNNING\n")
    pid_files = [own.base / f"{daemon}.pid" for daemon in ("slurmctld", f"slurmd.{own.nodes[1]}")]
    for pid_file in pid_files:
        os.kill(int(pid_file.read_text()), signal.SIGTERM)  # it saves its state and removes its file
    expect(lambda: not any(pid_file.exists() for pid_file in pid_files))
    ping = own.run("scontrol", "ping")
    assert (ping.returncode, f"{own.login} is DOWN" in ping.stdout) == (1, True)
    assert own.node(2, "hostname").stdout.strip() == own.nodes[1]
    own.start()
    assert own.run("squeue", "-h", "-o", "%A %T").stdout == f"{job} RUNNING\n"
    assert own.run("srun", "-N1", "-w", own.nodes[1], "hostname").stdout.strip() == own.nodes[1]


@pytest.mark.parametrize("victims", ["everything", "one host"])
def test_start_after_a_dirty_kill(make_cluster: Make, victims: str) -> None:
    own = make_cluster(nodes=2)
    own.sbatch("sleep 1000")
    old = members(own.name) - {os.getpid()}
    guard = own._guard.pid if own._guard else 0
    host = int((own.base / f"host.{own.nodes[0]}.pid").read_text())
    for pid in {"everything": old - {guard}, "one host": {host}}[victims]:
        os.kill(pid, signal.SIGKILL)
    own.start()
    assert sorted(own.run("srun", "-N2", "hostname").stdout.split()) == own.nodes
    assert members(own.name) & old == {guard}
    name = own.name
    own.stop()
    assert traces(name) == []


def test_two_clusters_at_once_do_not_meet(cluster: Cluster, make_cluster: Make) -> None:
    own = make_cluster(nodes=2, gres="gpu:2")
    assert own.base != cluster.base
    assert own.scratch != cluster.scratch
    for one in (cluster, own):
        step = one.run("srun", f"-N{len(one.nodes)}", "hostname")
        assert sorted(step.stdout.split()) == one.nodes, step.stderr
    assert cluster.run("getent", "hosts", own.nodes[0]).returncode != 0
    own.stop()
    assert sorted(cluster.run("srun", "-N3", "hostname").stdout.split()) == cluster.nodes


def test_a_cluster_ends_with_its_owner(_cluster_possible: None) -> None:
    """A killed test session leaves nothing behind either."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, SCRIPT.parents[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout
    name = owner.stdout.readline().strip()
    assert len(traces(name)) > 10
    owner.kill()
    owner.communicate()
    expect(lambda: traces(name) == [])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"extra_conf": "SelectType=select/nonsense"}, "nonsense"),
        ({"gres": "gpu:l4:lots"}, "GRES: 'gpu:l4:lots' is not name"),
        ({"nodes": 0}, "NODES='0'"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(
    _cluster_possible: None, settings: dict[str, str | int], words: str
) -> None:
    own = Cluster(settings)
    own._claim()
    name = own.name
    with pytest.raises(RuntimeError, match=words):
        own.start()
    assert traces(name) == []


# --- the script by itself -----------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", [0.01, 0.04, 0.07, 0.1, 0.14, 0.18, 0.3])
def test_an_interrupted_start_leaves_nothing(
    script: Callable[..., subprocess.Popen[str]], how: signal.Signals, after: float
) -> None:
    start = script("start")
    time.sleep(after)
    os.killpg(start.pid, how)
    start.communicate()
    if start.returncode == 0:  # the signal came too late
        assert script("stop").wait() == 0
    assert not members(f"mnsh{os.getpid()}x")
    assert not Path(f"/run/mnsh{os.getpid()}x").exists()


def test_the_commands_of_the_script(script: Callable[..., subprocess.Popen[str]]) -> None:
    def run(*argv: str, **settings: str) -> tuple[int, str, str]:
        process = script(*argv, **settings)
        out, err = process.communicate()
        return process.returncode, out, err

    assert run("exec", "true")[0] == 1
    assert "cluster.sh start" in run("exec", "true")[2]
    assert run("start", NODES="2", NET="10.99.1")[0] == 0
    assert run("exec", "hostname")[1] == "mnshctl\n"
    assert run("node", "2", "hostname", "-I")[1] == "10.99.1.12 10.214.1.12 \n"
    assert run("node", "1", "sh", "-c", "exit 5")[0] == 5
    assert "mnsh2" in run("status")[1]
    assert "other settings" in run("start", NODES="4", NET="10.99.1")[2]
    assert run("start", NODES="2", NET="10.99.1")[0] == 0
    assert run("stop")[0] == run("stop")[0] == 0
    assert run("nonsense")[0] == 2


def test_a_directory_of_somebody_else_is_neither_used_nor_removed(
    script: Callable[..., subprocess.Popen[str]], workdir: Path
) -> None:
    (workdir / "file").touch()
    refused = script("start", BASE=str(workdir))
    assert "holds files of something else" in refused.communicate()[1]
    assert refused.returncode == 1
    assert script("stop", BASE=str(workdir)).wait() == 0
    assert (workdir / "file").exists()
