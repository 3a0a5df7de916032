"""`tl-slurm preflight` and `srun shared-env preflight` on the real cluster: every fault is provoked, and named."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from slurm_jobs import PYTHON, files_left, tl_slurm, wait_for

PORT = 23456
SHARED_ENV = (PYTHON, "-m", "shared_env.cli")
SQUATTER = f"import socket, time; s = socket.create_server(('', {PORT})); print(flush=True); time.sleep(60)"
# For tests in which somebody waits in vain: long enough for all processes of a busy machine to start.
WAIT = "--timeout=4"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "preflight.md"
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
MakeCluster = Callable[..., Cluster]


def preflight(cluster: Cluster, *args: Any, nodes: int = 3, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    done = tl_slurm(cluster, "preflight", "--nodes", nodes, *args, **kwargs)
    assert "Traceback" not in done.stdout + done.stderr
    return done


def faults(done: subprocess.CompletedProcess[str]) -> list[tuple[str, list[str]]]:
    """(fault, hosts) of each fault in the text."""
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.findall(r"^FAULT: ([^(\n]+?)(?: \((.*)\))?$", done.stdout, re.MULTILINE)
    assert done.stdout.count("\n  to do: ") == len(found) + done.stdout.count("WARNING: ")
    return [(name, hosts.split(", ") if hosts else []) for name, hosts in found]


def table(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    lines = done.stdout.splitlines()
    names = re.split(r"  +", lines[0])
    return [dict(zip(names, re.split(r"  +", line, maxsplit=len(names) - 1), strict=True))
            for line in lines[1:] if line[0].isdigit()]  # fmt: skip


def hosts_of(cluster: Cluster, host: str) -> list[list[str]]:
    return [line.split() for line in cluster.run("cat", "/etc/hosts", host=host).stdout.splitlines()]


def address(cluster: Cluster, name: str) -> str:
    return next(words[0] for words in hosts_of(cluster, cluster.login) if name in words)


def replace_hosts(cluster: Cluster, node: int, text: str) -> None:
    """Another /etc/hosts for one node, in its own mount namespace."""
    private = cluster.base / f"hosts.{node}"
    private.write_text(text)
    cluster.node(node, "mount", "--bind", private, "/etc/hosts", check=True)


def firewall(cluster: Cluster, node: int, rule: str) -> None:
    """One nftables rule on one node, in its own network namespace; `rule` begins with the hook."""
    hook, _, rule = rule.partition(" ")
    text = f"table inet preflight {{\nchain c {{\ntype filter hook {hook} priority 0\n{rule}\n}}\n}}\n"
    cluster.node(node, "/usr/sbin/nft", "-f", "-", input=text, check=True)


# --- all is well ---------------------------------------------------------------------------------------------------


def test_all_well_shows_every_rank_and_leaves_nothing(cluster: Cluster, workdir: Path) -> None:
    done = preflight(cluster, "--sbatch-flags", "--ntasks-per-node=2 --gpus-per-node=2", cwd=workdir)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = table(done)
    assert [(row["RANK"], row["NODE"], row["LOCAL"]) for row in rows] == [
        (str(rank), str(rank // 2), str(rank % 2)) for rank in range(6)
    ]
    for row in rows:
        host = cluster.nodes[int(row["NODE"])]
        assert (row["HOST"], row["ADDRESS"], row["OWN NAME"]) == (host, *[address(cluster, host)] * 2)
        assert (row["GPUS"], row["STATE"]) == ("2", "ok")
    assert f"ok: 6 processes on 3 nodes met at {cluster.nodes[0]}:" in done.stdout
    assert list(workdir.iterdir()) == []
    assert files_left(cluster, workdir) == []


def test_second_network_and_addresses_instead_of_names(cluster: Cluster, workdir: Path) -> None:
    second = preflight(cluster, "--master-addr-suffix=-ib", "--export-hints", cwd=workdir, nodes=2)
    assert second.returncode == 0, second.stdout + second.stderr
    assert second.stdout == ""  # no interface is to blame
    assert address(cluster, f"{cluster.nodes[1]}-ib") in second.stderr
    by_ip = preflight(cluster, "--master-addr=ip", "--json", cwd=workdir, nodes=2)
    verdict = json.loads(by_ip.stdout)
    assert verdict["ok"] is True
    assert {each["master_addr"] for each in verdict["ranks"]} == {address(cluster, cluster.nodes[0])}


def test_in_a_step_rank_0_prints_the_table(cluster: Cluster, workdir: Path) -> None:
    done = cluster.run("srun", "-N3", "--gpus-per-node=1", *SHARED_ENV, "preflight", cwd=workdir)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["HOST"] for row in table(done)] == cluster.nodes
    assert {row["TORCH"].split("+")[0] for row in table(done)} == {"2.13.0"}
    assert {row["GPUS"] for row in table(done)} == {"1"}
    as_json = cluster.run("srun", "-N3", *SHARED_ENV, "preflight", "--json", cwd=workdir)
    assert json.loads(as_json.stdout)["ok"] is True


def test_the_log_stays_where_the_user_put_it(cluster: Cluster, workdir: Path) -> None:
    done = preflight(cluster, "--sbatch-flags", "--output=here.log", cwd=workdir, nodes=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (workdir / "here.log").read_text().count("preflight-record ") == 2


# --- names and addresses -----------------------------------------------------------------------------------------


def test_name_does_not_resolve_on_one_node(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    name = f"{cluster.nodes[0]}-ib"
    known = [words for words in hosts_of(cluster, cluster.login) if name not in words]
    replace_hosts(cluster, 3, "".join(" ".join(words) + "\n" for words in known))
    done = preflight(cluster, WAIT, "--master-addr-suffix=-ib")
    assert faults(done) == [("name does not resolve", [cluster.nodes[2]])]
    assert f"MASTER_ADDR={name!r} does not resolve" in done.stdout
    assert [row["STATE"] for row in table(done)] == ["ok", "ok", "name does not resolve"]

    # Without a program that collects, rank 0 says who is missing, and the node says why.
    for kill in ("0", "1"):
        env = {"MASTER_ADDR": name, "SLURM_KILL_BAD_EXIT": kill}
        step = cluster.run("srun", "-N3", *SHARED_ENV, "preflight", WAIT, env=env)
        assert step.returncode == 1 or (kill == "1" and step.returncode == 128 + signal.SIGTERM)
        step.returncode = 1
        assert faults(step) == [("missing", [cluster.nodes[2]])]
        assert f"rank 2 did not report; nothing came from {cluster.nodes[2]}" in step.stdout
        assert f"preflight: {cluster.nodes[2]} (rank 2): name does not resolve: MASTER_ADDR={name!r}" in step.stderr


@pytest.mark.parametrize("addr", ["localhost", "127.0.0.1"])
def test_loopback(cluster: Cluster, workdir: Path, addr: str) -> None:
    done = preflight(cluster, WAIT, "--env", f"MASTER_ADDR={addr}", cwd=workdir)
    assert faults(done) == [("loopback address", cluster.nodes[1:])]
    assert f"MASTER_ADDR={addr!r} is a loopback address" in done.stdout
    step = cluster.run("srun", "-N3", *SHARED_ENV, "preflight", WAIT, env={"MASTER_ADDR": addr})
    assert faults(step) == [("loopback address", cluster.nodes[:1]), ("missing", cluster.nodes[1:])]
    assert step.stderr.count("loopback address") == 4  # of each of two nodes, title and sentence


def test_address_of_another_host(cluster: Cluster, workdir: Path) -> None:
    second = address(cluster, cluster.nodes[1])
    done = preflight(cluster, WAIT, "--env", f"MASTER_ADDR={second}", "--export-hints", cwd=workdir)
    done.stdout, hints = done.stderr[done.stderr.index("RANK  ") :], done.stdout
    assert faults(done) == [("wrong interface", cluster.nodes)]
    assert f"{second}:{_port(done)} is no address of {cluster.nodes[0]}, where rank 0 runs (eth0 " in done.stdout
    assert hints == "export NCCL_SOCKET_IFNAME=eth0\nexport GLOO_SOCKET_IFNAME=eth0\n"


def test_network_that_one_node_is_not_on(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.node(3, "ip", "link", "set", "ib0", "down", check=True)
    done = preflight(cluster, WAIT, "--master-addr-suffix=-ib", "--export-hints")
    first = address(cluster, cluster.nodes[0])
    assert done.stdout.splitlines() == [
        f"export MASTER_ADDR={first}", "export NCCL_SOCKET_IFNAME=eth0", "export GLOO_SOCKET_IFNAME=eth0",
    ]  # fmt: skip
    done.stdout = done.stderr[done.stderr.index("RANK  ") :]
    assert faults(done) == [("wrong interface", [cluster.nodes[2]])]
    assert f"is ib0 of {cluster.nodes[0]}; this host has no way there (eth0 " in done.stdout
    assert f"to do: set MASTER_ADDR={first}" in done.stdout
    # what it prints is right
    env = [word for line in done.stdout.splitlines() if line.startswith("  set in env") for word in line.split()[3:]]
    hinted = preflight(cluster, *(f"--env={each}" for each in env or [f"MASTER_ADDR={first}"]))
    assert hinted.returncode == 0, hinted.stdout


def test_interface_that_does_not_exist(cluster: Cluster, workdir: Path) -> None:
    done = preflight(
        cluster, "--env", "NCCL_SOCKET_IFNAME=ens", "--env", "GLOO_SOCKET_IFNAME=eth0", cwd=workdir, nodes=2
    )
    assert [name for name, _ in faults(done)] == ["wrong interface"]
    assert "NCCL_SOCKET_IFNAME=ens names no interface here" in done.stdout
    assert "set in env: NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0" in done.stdout


def test_own_name_is_a_loopback_as_debian_has_it(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2)
    for node, host in enumerate(cluster.nodes, 1):
        known = [words for words in hosts_of(cluster, cluster.login) if host not in words]
        replace_hosts(cluster, node, f"127.0.1.1 {host}\n" + "".join(" ".join(words) + "\n" for words in known))
    done = preflight(cluster, nodes=2)
    # torch listens on all addresses, so rank 0 is found; gloo is what fails.
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"WARNING: own name is a loopback address ({', '.join(cluster.nodes)})" in done.stdout
    assert "set in env: NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0" in done.stdout
    assert [row["ADDRESS"] for row in table(done)] == [address(cluster, host) for host in cluster.nodes]
    assert "WARNING" not in preflight(cluster, "--env", "GLOO_SOCKET_IFNAME=eth0", nodes=2).stdout


# --- the port ----------------------------------------------------------------------------------------------------


def test_port_taken(cluster: Cluster, workdir: Path) -> None:
    with cluster.popen(PYTHON, "-c", SQUATTER, host=cluster.nodes[0], stdout=subprocess.PIPE) as squatter:
        assert squatter.stdout is not None
        squatter.stdout.readline()
        done = preflight(cluster, WAIT, "--env", f"MASTER_PORT={PORT}", cwd=workdir)
        step = cluster.run("srun", "-N2", *SHARED_ENV, "preflight", WAIT, env={"MASTER_PORT": str(PORT)})
        squatter.kill()
    assert faults(done) == faults(step) == [("port taken", [cluster.nodes[0]])]
    assert f"another program has port {PORT} of {cluster.nodes[0]}" in done.stdout
    assert "set another MASTER_PORT" in done.stdout
    assert f"{cluster.nodes[1]} (rank 1): port taken" in step.stderr


@pytest.mark.parametrize(
    ("node", "rule", "lost"),
    [
        (3, f"output tcp dport {PORT} drop", [2]),
        (3, "input tcp sport 23456 drop", [2]),
        (1, f"input iif != lo tcp dport {PORT} drop", [1, 2]),
    ],
    ids=["on the way out", "on the way back", "at rank 0"],
)
def test_firewall_drops(make_cluster: MakeCluster, node: int, rule: str, lost: list[int]) -> None:
    cluster = make_cluster()
    firewall(cluster, node, rule)
    done = preflight(cluster, WAIT, "--env", f"MASTER_PORT={PORT}")
    assert faults(done) == [("no answer, firewall?", [cluster.nodes[each] for each in lost])]
    assert f"{cluster.nodes[0]}:{PORT} ({address(cluster, cluster.nodes[0])}) does not answer" in done.stdout
    assert "wrong interface" not in done.stdout


@pytest.mark.parametrize(
    ("verdict", "title"),
    [("reject with tcp reset", "port refused"), ("reject with icmpx type admin-prohibited", "unreachable")],
)
def test_firewall_rejects(make_cluster: MakeCluster, verdict: str, title: str) -> None:
    cluster = make_cluster(nodes=2)
    firewall(cluster, 1, f"input iif != lo tcp dport {PORT} {verdict}")
    done = preflight(cluster, WAIT, "--env", f"MASTER_PORT={PORT}", nodes=2)
    assert faults(done) == [(title, [cluster.nodes[1]])]
    assert "firewall" in done.stdout


# --- who is there ------------------------------------------------------------------------------------------------


def prolog(workdir: Path, text: str) -> str:
    path = workdir / "prolog.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"SLURM_TASK_PROLOG={path}"


@pytest.mark.parametrize("rank", [0, 2])
def test_a_node_never_starts(cluster: Cluster, workdir: Path, rank: int) -> None:
    hangs = prolog(workdir, f'[ "$SLURM_PROCID" != {rank} ] || sleep 60')
    done = preflight(cluster, WAIT, "--env", hangs, cwd=workdir)
    host = cluster.nodes[rank]
    others = [each for each in cluster.nodes if each != host]
    assert faults(done) == [*([("port refused", others)] if rank == 0 else []), ("missing", [host])]
    assert f"rank {rank} did not report; nothing came from {host}" in done.stdout
    assert [row["STATE"] for row in table(done) if row["RANK"] == str(rank)] == ["missing"]


@pytest.mark.parametrize("value", [0, 1])
def test_duplicate_rank(cluster: Cluster, workdir: Path, value: int) -> None:
    done = preflight(cluster, WAIT, "--env", f"RANK={value}", cwd=workdir)
    assert ("duplicate rank", cluster.nodes) in faults(done)
    assert f"RANK={value} in 3 processes, on {', '.join(cluster.nodes)}" in done.stdout
    assert "remove RANK from env" in done.stdout
    assert "missing" not in done.stdout


@pytest.mark.parametrize(
    ("name", "flags", "text"),
    [
        ("NODE_RANK", "--ntasks-per-node=1", "NODE_RANK=0 on {0}, {1}"),
        ("LOCAL_RANK", "--ntasks-per-node=2", "LOCAL_RANK=0 in 2 processes on {0}"),
    ],
)
def test_duplicate_node_rank_and_local_rank(cluster: Cluster, workdir: Path, name: str, flags: str, text: str) -> None:
    done = preflight(cluster, "--env", f"{name}=0", "--sbatch-flags", flags, cwd=workdir, nodes=2)
    assert {title for title, _ in faults(done)} == {"duplicate rank"}
    assert text.format(*cluster.nodes) in done.stdout


@pytest.mark.parametrize(
    ("world", "text"),
    [
        (5, "but 3 processes were started: ranks 3-4 never come"),
        (2, "but 3 processes were started: ranks 2 have no place"),
    ],
)
def test_world_size_and_processes_disagree(cluster: Cluster, workdir: Path, world: int, text: str) -> None:
    done = preflight(cluster, "--env", f"WORLD_SIZE={world}", cwd=workdir)
    assert faults(done) == [("world size and processes disagree", [cluster.nodes[0]])]
    assert f"WORLD_SIZE={world}, {text}" in done.stdout
    assert {row["STATE"] for row in table(done)} == {"ok"}


def test_gpu_counts_differ(cluster: Cluster, workdir: Path) -> None:
    gpus = prolog(
        workdir, 'case $SLURM_PROCID in 2) gpus=0 ;; *) gpus=0,1 ;; esac\necho "export CUDA_VISIBLE_DEVICES=$gpus"'
    )
    done = preflight(cluster, "--env", gpus, cwd=workdir)
    assert [name for name, _ in faults(done)] == ["GPU counts differ"]
    assert "2 on {}, {}, 1 on {}".format(*cluster.nodes) in done.stdout
    assert [row["GPUS"] for row in table(done)] == ["2", "2", "1"]


# --- the page, and the command ----------------------------------------------------------------------------------


def test_no_python_on_the_nodes(cluster: Cluster, workdir: Path) -> None:
    tools = workdir / "tools"
    tools.mkdir()
    for name in ("srun", "sbcast", "sh", "env", "rm", "chmod", "scontrol"):
        (tools / name).symlink_to(cluster.run("sh", "-c", f"command -v {name}").stdout.strip())
    done = preflight(cluster, "--env", f"PATH={tools}", cwd=workdir, nodes=2)
    assert done.returncode == 1
    assert "python3" in done.stderr
    assert "error: no process of job" in done.stderr


def test_batch_shell_is_told_to_use_srun(cluster: Cluster, workdir: Path) -> None:
    job = cluster.sbatch(f"{' '.join(SHARED_ENV)} preflight\n", "-N2", "--output=log", cwd=workdir)
    assert cluster.wait(job) == "FAILED"
    assert "start the command with srun" in (workdir / "log").read_text()


def test_interrupt_ends_the_job(cluster: Cluster, workdir: Path) -> None:
    hangs = prolog(workdir, "sleep 60")
    command = (PYTHON, "-m", "tl_slurm_adapter.cli", "preflight", "--nodes=2", "--timeout=60", "--env", hangs)
    with cluster.popen(*command, cwd=workdir, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: "RUNNING" in cluster.run("squeue", "--noheader", "--format=%T").stdout)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    wait_for(lambda: cluster.run("squeue", "--noheader").stdout == "", 90)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--nodes", "1"], "--nodes"),
        (["--nodes", "2", "--env", "RANK"], "--env RANK: write NAME=VALUE"),
        (["--nodes", "2", "--env", "A-B=1"], "'A-B' is no variable name"),
        (["--nodes", "2", "--sbatch-flags", "--nodes=3"], "nodes"),
        (["--nodes", "2", "--partition", "none"], "invalid partition"),
    ],
)
def test_wrong_usage(cluster: Cluster, workdir: Path, args: list[str], words: str) -> None:
    done = tl_slurm(cluster, "preflight", *args, cwd=workdir)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("line", [line for block in BLOCKS for line in block.splitlines()])
def test_command_of_the_page(cluster: Cluster, workdir: Path, line: str) -> None:
    path = f"{Path(PYTHON).parent}:/usr/local/bin:/usr/bin:/bin"
    done = cluster.run("bash", "-c", line, cwd=workdir, env={"PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok: " in done.stdout + done.stderr or json.loads(done.stdout)["ok"]


def _port(done: subprocess.CompletedProcess[str]) -> str:
    found = re.search(r":(\d{5}) is no address", done.stdout)
    assert found, done.stdout
    return found[1]
