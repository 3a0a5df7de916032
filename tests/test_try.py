"""`shared-env try`: a task as several nodes on this machine."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
from try_runs import CHECKOUT, EXAMPLES, Directory, free_port, lines_of

from shared_env import derive_port, load_task
from shared_env.local.machine import make_nodes
from shared_env.local.slurm import SlurmRun

PROVIDERS = ["slurm", "skypilot"]
BAD_PORT = {"MASTER_PORT": "high"}
SHOW = "python -m shared_env.cli show --json"


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def port_option() -> list[str]:
    """SkyPilot's own port is one for the whole machine: take another one, unless it is what the test is about."""
    return ["--set", f"MASTER_PORT={free_port()}"]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("nodes", [2, 3])
def test_the_example_meets_and_sums_its_ranks(place: Directory, provider: str, nodes: int) -> None:
    done = place.run(EXAMPLES / "hello-multinode.yaml", "--provider", provider, "--nodes", nodes, *port_option())
    assert done.returncode == 0, done.stderr
    for rank in range(nodes):
        text = f"hello from rank {rank} of {nodes}: the ranks add up to {sum(range(nodes))}"
        assert lines_of(done.stdout, f"node{rank + 1}") == [text]
    assert done.stdout.count("\n") == nodes
    rows = [line.split() for line in done.stderr.splitlines()]
    assert rows[0] == ["node", "address", "ranks", "exit", "seconds"]
    assert [row[:4] for row in rows[1:-1]] == [[f"node{i + 1}", f"127.0.0.{i + 1}", str(i), "0"] for i in range(nodes)]
    assert "\x1b" not in done.stdout + done.stderr


def test_every_command_of_the_page_runs(place: Directory) -> None:
    page = (CHECKOUT / "docs" / "try.md").read_text(encoding="utf-8")
    commands = re.findall(r"^shared-env try (examples/.*)$", page, re.MULTILINE)
    assert len(commands) > 3
    for command in commands:
        done = place.run(*command.split(), cwd=CHECKOUT)
        assert done.returncode == 0, (command, done.stderr)


@pytest.mark.parametrize(("provider", "resources", "options"), [
    ("slurm", {"accelerators": "L4:2"}, []),
    ("skypilot", {}, ["--gpus-per-node", "2"]),
])  # fmt: skip
def test_bare_torchrun_trains_with_two_processes_on_each_of_two_nodes(
    place: Directory, provider: str, resources: dict[str, str], options: list[str]
) -> None:
    task = place.task("torchrun train.py\n", launch="per-node", resources={"provider": provider, **resources})
    done = place.run(task, *options, *port_option(), cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr
    # Without a buffer the two processes of a node may write into one line.
    ranks = {node: re.findall(r"rank (\d) of 4 on \S+ \([^)]*\): sum 10(?!\d)", "\n".join(lines_of(done.stdout, node)))
             for node in ("node1", "node2")}  # fmt: skip
    assert {node: sorted(found) for node, found in ranks.items()} == {"node1": ["0", "1"], "node2": ["2", "3"]}
    assert [row.split()[2] for row in done.stderr.splitlines()[1:3]] == ["0-1", "2-3"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_six_values_of_every_node(place: Directory, provider: str) -> None:
    task = place.task(SHOW, launch="per-node", resources={"provider": provider})
    done = place.run(task, "--nodes", 3, *(port_option() if provider == "skypilot" else ()))
    assert done.returncode == 0, done.stderr
    found = [json.loads("".join(lines_of(done.stdout, f"node{i}"))) for i in (1, 2, 3)]
    ports = {values["values"].pop("MASTER_PORT") for values in found}
    assert len(ports) == 1
    for rank, values in enumerate(found):
        assert values["system"] == provider
        assert values["values"] == {
            "MASTER_ADDR": "127.0.0.1", "NODE_RANK": f"{rank}", "RANK": f"{rank}", "LOCAL_RANK": "0", "WORLD_SIZE": "3",
        }  # fmt: skip


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_the_task_gives_wins_and_what_surrounds_us_does_not(place: Directory, provider: str) -> None:
    script = 'echo "$MASTER_ADDR $WORLD_SIZE $RANK ${SLURM_HOSTFILE-unset} $PET_NNODES [$TEXT] $SECRET"'
    given = {"WORLD_SIZE": "7", "MASTER_ADDR": "localhost", "TEXT": "it's $HOME\n`date`"}
    task = place.task(script, launch="per-node", resources={"provider": provider}, env_=given, secrets={"SECRET": "s"})
    stale = {"RANK": "9", "MASTER_ADDR": "stale", "SLURM_HOSTFILE": "stale", "PET_NNODES": "9", "SLURM_PROCID": "5"}
    done = place.run(task, env=stale)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert lines_of(done.stdout, f"node{rank + 1}") == [f"localhost 7 {rank} unset 2 [it's $HOME", "`date`] s"]


def test_gpus_are_announced_only_when_asked_for(place: Directory) -> None:
    script = (
        'echo "${SKYPILOT_NUM_GPUS_PER_NODE-}${SLURM_GPUS_ON_NODE-} ${CUDA_VISIBLE_DEVICES-unset} $PET_NPROC_PER_NODE"'
    )
    expect = {("slurm", ()): " unset 1", ("skypilot", ()): "0 unset 1"}
    for provider in PROVIDERS:
        expect[provider, ("--gpus-per-node", "3")] = "3 0,1,2 3"
        expect[provider, ("--set", "resources.accelerators=L4:2")] = "2 0,1 2"
    expect["slurm", ("--gpus-per-node", "0", "--set", "resources.accelerators=L4:2")] = " unset 1"
    for (provider, options), line in expect.items():
        task = place.task(script, launch="per-node", resources={"provider": provider})
        done = place.run(task, *options, *port_option())
        assert lines_of(done.stdout, "node2") == [line], (provider, options, done.stderr)


def test_real_gpus_are_shared_out(place: Directory) -> None:
    task = place.task("echo $CUDA_VISIBLE_DEVICES", resources={"provider": "skypilot", "accelerators": "H100:2"})
    done = place.run(task, *port_option(), env={"CUDA_VISIBLE_DEVICES": "3,5,6,7"})
    assert (lines_of(done.stdout, "node1"), lines_of(done.stdout, "node2")) == (["3,5"], ["6,7"])


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_node_has_a_temporary_directory_that_goes_with_the_run(place: Directory, provider: str) -> None:
    task = place.task('touch "$TMPDIR/x.$RANK"; ls "$TMPDIR"', launch="per-node", resources={"provider": provider})
    done = place.run(task, *port_option())
    assert (lines_of(done.stdout, "node1"), lines_of(done.stdout, "node2")) == (["x.0"], ["x.1"])
    given = place.run(task, *port_option(), "--set", f"TMPDIR={place.path / 'home'}")
    assert given.returncode == 0
    assert sorted(path.name for path in (place.path / "home").iterdir()) == ["x.0", "x.1"]


def test_sbatch_lines_of_the_script_count(place: Directory) -> None:
    task = place.task("#!/bin/sh\n#SBATCH --gres=gpu:2 --ntasks-per-node=4\necho $SLURM_GPUS_ON_NODE $WORLD_SIZE\n")
    done = place.run(task)
    assert lines_of(done.stdout, "node1") == ["2 8"]
    assert "run as on slurm" in done.stderr


def test_skypilot_sets_up_every_node_in_another_shell(place: Directory) -> None:
    setup = "echo setup $SKYPILOT_SETUP_NODE_RANK $SKYPILOT_NUM_NODES ${SKYPILOT_NODE_RANK-none}\nexport LOST=1\n"
    script = "echo run $SKYPILOT_NODE_RANK $SKYPILOT_NODE_IPS ${LOST-lost} ${SKYPILOT_SETUP_NODE_RANK-none}\n"
    task = place.task(script, setup=setup, resources={"provider": "skypilot"})
    done = place.run(task, *port_option())
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        lines = lines_of(done.stdout, f"node{rank + 1}")
        assert lines == [f"setup {rank} 2 none", f"run {rank} 127.0.0.1 127.0.0.2 lost none"]
    failing = place.task(
        "echo run", setup="[ $SKYPILOT_SETUP_NODE_RANK = 0 ] || exit 4", resources={"provider": "skypilot"}
    )
    done = place.run(failing, *port_option())
    assert (done.returncode, done.stdout) == (4, "")
    assert "node2 failed with exit status 4" in done.stderr


def test_a_server_of_the_setup_lives_until_the_end_on_skypilot(place: Directory) -> None:
    setup = "sleep 600 & echo $! > server.$SKYPILOT_SETUP_NODE_RANK"
    task = place.task(
        "kill -0 $(cat server.$SKYPILOT_NODE_RANK) && echo alive", setup=setup, resources={"provider": "skypilot"}
    )
    done = place.run(task, *port_option())
    assert "alive" in lines_of(done.stdout, "node1") and "alive" in lines_of(done.stdout, "node2")


def test_skypilot_runs_the_script_in_an_interactive_bash_without_traces(place: Directory) -> None:
    script = """
case $- in *i*) echo interactive ;; esac
alias hi="echo alias"
hi
echo error >&2
printenv HISTFILE || echo unset
: ${NO:?none}
echo on
"""
    task = place.task(script, nodes=1, resources={"provider": "skypilot"})
    (place.path / "home" / ".bashrc").write_text("echo start-up file\n")
    done = place.run(task)
    lines = lines_of(done.stdout, "node1")
    assert lines == ["interactive", "alias", "error", "unset", "bash: NO: none", "on"]
    assert [path.name for path in (place.path / "home").iterdir()] == [".bashrc"]


def test_slurm_sets_up_once_and_the_tasks_inherit_it(place: Directory) -> None:
    (place.path / "below").mkdir()
    setup = """
echo "setup $SLURM_PROCID"
export KEPT="a
b"
cd below
umask 027
set -euo pipefail
trap "echo trap" EXIT
"""
    task = place.task('echo "$SLURM_PROCID $KEPT" $(basename "$PWD") $(umask)', setup=setup, launch="per-node",
                      resources={"provider": "slurm"})  # fmt: skip
    done = place.run(task)
    assert done.returncode == 0, done.stderr
    assert lines_of(done.stdout, "node1") == ["setup 0", "0 a", "b below 0027", "trap"]
    assert lines_of(done.stdout, "node2") == ["1 a", "b below 0027"]


@pytest.mark.parametrize(("setup", "status"), [("exit 5", 5), ("exit 0", 0), ("trap 'exit 6' EXIT", 6)])
def test_a_setup_on_slurm_can_end_the_job(place: Directory, setup: str, status: int) -> None:
    task = place.task("true", setup=setup, launch="per-node", resources={"provider": "slurm"})
    done = place.run(task)
    assert done.returncode == status, done.stderr
    assert ("failed" in done.stderr) == bool(status)


def test_a_slurm_script_without_srun_runs_on_the_first_node_only(place: Directory) -> None:
    task = place.task(
        'echo "$RANK $WORLD_SIZE $NODE_RANK"; env | grep -c ^RANK=', resources={"provider": "slurm"}, nodes=3
    )
    done = place.run(task)
    assert done.stdout == "[node1] 0 3 0\n[node1] 0\n"  # expanded here, not exported: as in a batch shell
    assert "node2 to node3 are idle" in done.stderr
    assert [line.split()[2:] for line in done.stderr.splitlines() if line.startswith("node3")] == [
        ["-", "not", "started"]
    ]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_task_of_one_node_is_left_as_it_is(place: Directory, provider: str) -> None:
    task = place.task(
        "echo ${MASTER_ADDR-none} ${RANK-none}", nodes=1, launch="per-node", resources={"provider": provider}
    )
    assert place.run(task).stdout == "[node1] none none\n"


def test_json_is_alone_on_stdout(place: Directory) -> None:
    task = place.task('echo "hello $NODE_RANK"; exit $((NODE_RANK * 3))', resources={"provider": "skypilot"})
    done = place.run(task, "--json", *port_option())
    result = json.loads(done.stdout)
    assert done.returncode == result["exit_status"] == 3
    assert (result["provider"], result["ended_by"]) == ("skypilot", "failure")
    assert [(node["node"], node["address"], node["ranks"]) for node in result["nodes"]] == [
        ("node1", "127.0.0.1", [0]), ("node2", "127.0.0.2", [1]),
    ]  # fmt: skip
    assert lines_of(done.stderr, "node2") == ["hello 1"]


@pytest.mark.parametrize(("content", "options", "words"), [
    ({"script": ""}, [], "has no script"),
    ({"script": "true", "resources": {"provider": "runpod", "num_nodes": 2}}, [], "'runpod': only slurm and skypilot"),
    ({"script": "#!/usr/bin/python3\n1"}, ["--provider", "slurm"], "no shell"),
    ({"script": "true", "workdir": "nowhere"}, ["--provider", "skypilot"], "workdir 'nowhere' is no directory"),
    ({"script": "true", "env": BAD_PORT}, ["--provider", "slurm", "--nodes", "2"], "'high' is not a port"),
    ({"script": "true", "env": BAD_PORT}, ["--provider", "skypilot", "--nodes", "2"], "'high' is not a port"),
    ({"script": "true", "resources": {"num_nodes": "two"}}, [], "num_nodes"),
    ({"script": "true"}, ["--set", "=3"], "--set KEY=VALUE"),
    ({"script": "true"}, ["--nodes", "0"], "--nodes"),
])  # fmt: skip
def test_what_cannot_be_run_here_is_said_in_one_sentence(
    place: Directory, content: dict[str, object], options: list[str], words: str
) -> None:
    file = place.path / "task.yaml"
    file.write_text(json.dumps(content))
    done = place.run(file, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr and "Traceback" not in done.stderr


def test_a_missing_file_is_said(place: Directory) -> None:
    done = place.run("none.yaml")
    assert done.returncode == 2
    assert "none.yaml" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_port_that_is_taken_is_said(place: Directory, provider: str) -> None:
    task = place.task("echo never", launch="per-node", resources={"provider": provider})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = place.run(task, "--set", f"MASTER_PORT={port}")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"MASTER_PORT would be {port}, but on this machine: address already in use" in done.stderr
    assert "--set MASTER_PORT=" in done.stderr


def test_a_job_id_is_taken_whose_port_is_free() -> None:
    task = load_task({"script": "true", "resources": {"num_nodes": 2}})
    nodes = make_nodes(2, 0, {})
    first = SlurmRun(task, nodes, 0, {}, "/").job_id
    with socket.create_server(("", derive_port(first))):
        second = SlurmRun(task, nodes, 0, {}, "/").job_id
    assert second > first and derive_port(second) != derive_port(first)


def test_an_automatic_port_on_skypilot(place: Directory) -> None:
    task = place.task("echo $MASTER_PORT", resources={"provider": "skypilot"}, env_={"MASTER_PORT": "auto"})
    done = place.run(task)
    assert done.returncode == 0, done.stderr
    [port] = {line for node in ("node1", "node2") for line in lines_of(done.stdout, node)}
    assert 10000 <= int(port) < 32768
